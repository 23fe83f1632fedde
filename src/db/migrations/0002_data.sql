-- Datasets, versions and where their bytes lie; uploads on their way to become versions.
--
-- Small by design: one row a pack, one sample row for every 64th chunk, one row per (layout, pack). Never a row a chunk.
-- Times are microseconds since 1970, flags 0 or 1, digests 32 bytes, ids UUIDs in text.

CREATE TABLE datasets (
    id          TEXT   NOT NULL PRIMARY KEY,
    team        TEXT   NOT NULL,
    name        TEXT   NOT NULL,
    -- the number the next version gets; only rises, whatever is deleted
    next_number BIGINT NOT NULL,
    created_at  BIGINT NOT NULL,
    UNIQUE (team, name)
);

CREATE TABLE versions (
    id          TEXT   NOT NULL PRIMARY KEY,
    team        TEXT   NOT NULL,
    dataset     TEXT   NOT NULL REFERENCES datasets (id),
    number      BIGINT NOT NULL,
    digest      BLOB   NOT NULL,
    files       BIGINT NOT NULL,
    dirs        BIGINT NOT NULL,
    symlinks    BIGINT NOT NULL,
    bytes       BIGINT NOT NULL,
    chunks      BIGINT NOT NULL,
    incomplete  BIGINT NOT NULL,
    late        BIGINT NOT NULL,
    tree_key    TEXT   NOT NULL UNIQUE,
    tree_bytes  BIGINT NOT NULL,
    -- the current layout's id
    layout      TEXT   NOT NULL,
    -- the generation its next layout gets; only rises, so that no reference document is written twice
    next_generation BIGINT NOT NULL,
    created_at  BIGINT NOT NULL,
    deleted_at  BIGINT,
    UNIQUE (dataset, number)
);
CREATE INDEX versions_live ON versions (team, dataset) WHERE deleted_at IS NULL;

CREATE TABLE layouts (
    id          TEXT   NOT NULL PRIMARY KEY,
    version     TEXT   NOT NULL REFERENCES versions (id),
    generation  BIGINT NOT NULL,
    digest      BLOB   NOT NULL,
    key         TEXT   NOT NULL UNIQUE,
    bytes       BIGINT NOT NULL,
    packs       BIGINT NOT NULL,
    -- the last grant given to a reader of this layout ends here
    read_until  BIGINT NOT NULL,
    -- set when a newer generation took its place or its version was deleted; its reference rows go with it
    dropped_at  BIGINT,
    UNIQUE (version, generation)
);

-- Numbers rise in the order of reservation: they are the order of locking and of neighbours.
CREATE TABLE pack_numbers (
    one  BIGINT NOT NULL PRIMARY KEY,
    next BIGINT NOT NULL
);
INSERT INTO pack_numbers (one, next) VALUES (1, 1);

CREATE TABLE packs (
    number      BIGINT NOT NULL PRIMARY KEY,
    team        TEXT   NOT NULL,
    -- the object's key, written once, ever
    key         TEXT   NOT NULL UNIQUE,
    -- writing -> sealed -> condemned -> deleting -> deleted; sealed -> quarantined -> condemned
    state       TEXT   NOT NULL,
    -- all of these from `sealed` on
    digest      BLOB,
    upload      TEXT,
    bytes       BIGINT,
    index_bytes BIGINT,
    chunks      BIGINT,
    raw_bytes   BIGINT,
    -- when it entered its state
    changed_at  BIGINT NOT NULL
);
-- of equal packs one team has one that is alive
CREATE UNIQUE INDEX packs_sealed ON packs (team, digest) WHERE state = 'sealed';
CREATE INDEX packs_of_upload ON packs (upload, number) WHERE state = 'sealed';
CREATE INDEX packs_lost ON packs (team, digest) WHERE state = 'quarantined';
CREATE INDEX packs_writing ON packs (changed_at) WHERE state = 'writing';

-- `chunk` is the first 16 bytes of BLAKE3(team, chunk id): a team's entries cannot be another's, hit or miss.
CREATE TABLE pack_sample (
    chunk BLOB   NOT NULL PRIMARY KEY,
    pack  BIGINT NOT NULL REFERENCES packs (number)
);
CREATE INDEX pack_sample_by_pack ON pack_sample (pack);

CREATE TABLE layout_packs (
    layout TEXT   NOT NULL REFERENCES layouts (id),
    pack   BIGINT NOT NULL REFERENCES packs (number),
    PRIMARY KEY (layout, pack)
);
CREATE INDEX layout_packs_by_pack ON layout_packs (pack);

CREATE TABLE uploads (
    id           TEXT   NOT NULL PRIMARY KEY,
    team         TEXT   NOT NULL,
    dataset      TEXT   NOT NULL REFERENCES datasets (id),
    state        TEXT   NOT NULL,
    epoch        BIGINT NOT NULL,
    -- logical bytes the client means to send
    bytes        BIGINT NOT NULL,
    -- raw bytes of the packs it has sealed
    sent         BIGINT NOT NULL,
    -- the declared output it is for, all three or none
    output_job   TEXT,
    output_epoch BIGINT,
    output_name  TEXT,
    -- the node whose token opened it; nobody else of the team's nodes may use it
    node         TEXT,
    operation    TEXT,
    created_at   BIGINT NOT NULL,
    expires_at   BIGINT NOT NULL
);
CREATE INDEX uploads_open ON uploads (expires_at) WHERE state = 'open';
CREATE INDEX uploads_of_dataset ON uploads (dataset) WHERE state IN ('open', 'committing');
CREATE INDEX uploads_of_team ON uploads (team) WHERE state IN ('open', 'committing');

-- Trees and layouts that an upload has sent. The row is there before the object, so that a crash leaves a known orphan;
-- a commit takes the two it uses over into `versions` and `layouts`.
CREATE TABLE upload_objects (
    key        TEXT   NOT NULL PRIMARY KEY,
    upload     TEXT   NOT NULL REFERENCES uploads (id),
    kind       TEXT   NOT NULL,
    digest     BLOB   NOT NULL,
    -- its length once it is stored
    bytes      BIGINT,
    created_at BIGINT NOT NULL
);
CREATE INDEX upload_objects_of_upload ON upload_objects (upload);

-- A pin lives as long as its owner: an open or committing upload.
CREATE TABLE pins (
    owner TEXT   NOT NULL REFERENCES uploads (id),
    pack  BIGINT NOT NULL REFERENCES packs (number),
    PRIMARY KEY (owner, pack)
);
CREATE INDEX pins_by_pack ON pins (pack);

CREATE TABLE operations (
    id            TEXT   NOT NULL PRIMARY KEY,
    team          TEXT   NOT NULL,
    upload        TEXT   NOT NULL REFERENCES uploads (id),
    tree          BLOB   NOT NULL,
    layout        BLOB   NOT NULL,
    incomplete    BIGINT NOT NULL,
    state         TEXT   NOT NULL,
    -- the version made, or found to be the same; set with it, before the operation is done
    version       TEXT,
    -- a problem document, once failed
    error         TEXT,
    -- whoever works on it owns it until then, by this token
    claim         TEXT,
    claimed_until BIGINT NOT NULL,
    attempts      BIGINT NOT NULL,
    created_at    BIGINT NOT NULL,
    finished_at   BIGINT
);
CREATE INDEX operations_running ON operations (claimed_until) WHERE state = 'running';

-- `posix` keeps any name; `portable` refuses trees whose names some system could not hold.
ALTER TABLE teams ADD COLUMN profile TEXT NOT NULL DEFAULT 'posix';
