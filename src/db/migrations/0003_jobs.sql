-- Jobs, their leases, stagings and outputs; what is told about them; links for people without an account.
--
-- Whoever changes anything of a job locks the job's row first and the team's row in `event_counts` last, so that no two
-- transactions wait for each other. Times are microseconds since 1970, flags 0 or 1, ids UUIDs in text.

CREATE TABLE jobs (
    id                TEXT   NOT NULL PRIMARY KEY,
    team              TEXT   NOT NULL,
    name              TEXT   NOT NULL,
    state             TEXT   NOT NULL,
    -- why the newest lease ended
    reason            TEXT,
    -- the job file as JSON
    spec              TEXT   NOT NULL,
    -- epoch of the newest lease
    epoch             BIGINT NOT NULL,
    callback_url      TEXT,
    -- sealed
    callback_secret   BLOB,
    -- the receiver said 410
    callback_disabled BIGINT NOT NULL,
    created_at        BIGINT NOT NULL,
    changed_at        BIGINT NOT NULL
);
CREATE INDEX jobs_of_team ON jobs (team, id);

-- A reference: the version cannot be deleted while the job is not over.
CREATE TABLE job_inputs (
    job      TEXT   NOT NULL REFERENCES jobs (id),
    position BIGINT NOT NULL,
    version  TEXT   NOT NULL,
    path     TEXT   NOT NULL,
    -- the version's document as it was at submit, for the time after its deletion
    snapshot TEXT   NOT NULL,
    PRIMARY KEY (job, position)
);
CREATE INDEX job_inputs_of_version ON job_inputs (version);

CREATE TABLE leases (
    id         TEXT   NOT NULL PRIMARY KEY,
    team       TEXT   NOT NULL,
    job        TEXT   NOT NULL REFERENCES jobs (id),
    node       TEXT   NOT NULL,
    epoch      BIGINT NOT NULL,
    gpus       BIGINT,
    until      BIGINT NOT NULL,
    released   TEXT,
    created_at BIGINT NOT NULL,
    changed_at BIGINT NOT NULL,
    UNIQUE (job, epoch)
);
CREATE UNIQUE INDEX leases_live ON leases (job) WHERE released IS NULL;
CREATE INDEX leases_due ON leases (until) WHERE released IS NULL;

CREATE TABLE stagings (
    id            TEXT   NOT NULL PRIMARY KEY,
    team          TEXT   NOT NULL,
    job           TEXT   NOT NULL REFERENCES jobs (id),
    -- '' without one: it ends at `near`
    lease         TEXT   NOT NULL,
    node          TEXT,
    state         TEXT   NOT NULL,
    state_seq     BIGINT NOT NULL,
    ready_seq     BIGINT NOT NULL,
    epoch         BIGINT NOT NULL,
    bytes_total   BIGINT NOT NULL,
    bytes_done    BIGINT NOT NULL,
    bytes_reused  BIGINT NOT NULL,
    from_cache    BIGINT NOT NULL,
    from_peer     BIGINT NOT NULL,
    from_store    BIGINT NOT NULL,
    path          TEXT,
    receipt       TEXT,
    error_code    TEXT,
    error_detail  TEXT,
    -- what the receipt must say: the tree of exactly what is staged
    tree          BLOB,
    tree_files    BIGINT,
    tree_bytes    BIGINT,
    ready_by      BIGINT,
    created_at    BIGINT NOT NULL,
    changed_at    BIGINT NOT NULL,
    -- when bytes were first reported after the pull began, and how many
    pulled_at     BIGINT,
    pulled_bytes  BIGINT,
    ready_at      BIGINT,
    -- the node has cleaned up after it
    cleaned_at    BIGINT,
    -- whoever looks into the inputs owns it until then
    claimed_until BIGINT NOT NULL
);
CREATE UNIQUE INDEX stagings_live ON stagings (job, lease) WHERE state NOT IN ('failed', 'cancelled', 'released');
CREATE INDEX stagings_of_job ON stagings (job, id);
CREATE INDEX stagings_of_node ON stagings (node) WHERE node IS NOT NULL AND cleaned_at IS NULL;
CREATE INDEX stagings_unchecked ON stagings (claimed_until) WHERE tree IS NULL AND state NOT IN ('near', 'failed', 'cancelled', 'released');

-- Every receipt ever countersigned; the newest also stands in `stagings`.
CREATE TABLE receipts (
    staging    TEXT   NOT NULL REFERENCES stagings (id),
    ready_seq  BIGINT NOT NULL,
    envelope   TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (staging, ready_seq)
);

-- Epoch 0 holds what the job declared; each lease has its own row.
CREATE TABLE outputs (
    job          TEXT   NOT NULL REFERENCES jobs (id),
    epoch        BIGINT NOT NULL,
    name         TEXT   NOT NULL,
    position     BIGINT NOT NULL,
    state        TEXT   NOT NULL,
    -- the lease's end asked for it
    due          BIGINT NOT NULL,
    version      TEXT,
    files        BIGINT NOT NULL,
    bytes        BIGINT NOT NULL,
    skipped      TEXT   NOT NULL,
    error_code   TEXT,
    error_detail TEXT,
    changed_at   BIGINT NOT NULL,
    PRIMARY KEY (job, epoch, name)
);

-- Numbers of a team's events rise in the order of commits: the row is locked until the transaction ends.
CREATE TABLE event_counts (
    team  TEXT   NOT NULL PRIMARY KEY,
    count BIGINT NOT NULL
);

CREATE TABLE events (
    id   TEXT   NOT NULL PRIMARY KEY,
    team TEXT   NOT NULL,
    seq  BIGINT NOT NULL,
    job  TEXT   NOT NULL,
    kind TEXT   NOT NULL,
    at   BIGINT NOT NULL,
    data TEXT   NOT NULL,
    UNIQUE (team, seq)
);

CREATE TABLE deliveries (
    event         TEXT   NOT NULL PRIMARY KEY REFERENCES events (id),
    team          TEXT   NOT NULL,
    job           TEXT   NOT NULL,
    seq           BIGINT NOT NULL,
    url           TEXT   NOT NULL,
    -- scheme, host and port: a receiver's share of the attempts at once
    origin        TEXT   NOT NULL,
    state         TEXT   NOT NULL,
    attempts      BIGINT NOT NULL,
    next_at       BIGINT NOT NULL,
    last_error    TEXT,
    -- whoever attempts it owns it until then
    claimed_until BIGINT NOT NULL
);
CREATE INDEX deliveries_pending ON deliveries (job, seq) WHERE state = 'pending';
CREATE INDEX deliveries_of_team ON deliveries (team, event);

CREATE TABLE links (
    id         TEXT   NOT NULL PRIMARY KEY,
    team       TEXT   NOT NULL,
    version    TEXT   NOT NULL,
    path       BLOB   NOT NULL,
    -- zip or tar; NULL for one file
    archive    TEXT,
    -- what the download is called
    name       TEXT   NOT NULL,
    kind       TEXT   NOT NULL,
    bytes      BIGINT NOT NULL,
    -- with kind direct: the object the store signs for
    export     TEXT,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    revoked_at BIGINT
);
CREATE INDEX links_of_version ON links (version);
CREATE INDEX links_exports ON links (id) WHERE export IS NOT NULL;
