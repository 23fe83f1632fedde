-- Times are microseconds since 1970, UTC. Ids are UUIDs as text. Flags are 0 or 1.

-- Facts about this service: its epoch (names it in the bucket), and the like.
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

CREATE TABLE teams (
    id          TEXT PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE,
    quota_bytes BIGINT,
    -- logical bytes of live versions, kept by the transactions that make and delete them
    used_bytes  BIGINT NOT NULL DEFAULT 0,
    created_at  BIGINT NOT NULL
);

CREATE TABLE nodes (
    id         TEXT PRIMARY KEY,
    team       TEXT NOT NULL REFERENCES teams (id),
    name       TEXT NOT NULL,
    zone       TEXT,
    created_at BIGINT NOT NULL,
    seen_at    BIGINT,
    -- the running agent: a second holder of the name is fenced
    instance   TEXT,
    inventory  TEXT,
    removed_at BIGINT
);
CREATE UNIQUE INDEX nodes_name ON nodes (team, name) WHERE removed_at IS NULL;

CREATE TABLE tokens (
    id         TEXT PRIMARY KEY,
    -- BLAKE3 of the secret: 256 random bits need no slow hash
    hash       BLOB NOT NULL UNIQUE,
    team       TEXT NOT NULL REFERENCES teams (id),
    role       TEXT NOT NULL,
    node       TEXT REFERENCES nodes (id),
    label      TEXT,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT
);
CREATE INDEX tokens_team ON tokens (team, id);
CREATE INDEX tokens_node ON tokens (node) WHERE node IS NOT NULL;

-- Answers of calls that create something, for a caller that asks again because the answer was lost.
CREATE TABLE idempotency (
    team       TEXT NOT NULL,
    idem_key   TEXT NOT NULL,
    route      TEXT NOT NULL,
    digest     BLOB NOT NULL,
    -- sealed: an answer may show a secret once
    answer     BLOB NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (team, idem_key)
);
CREATE INDEX idempotency_age ON idempotency (created_at);

-- The service's own keys, sealed under `secret_key_file`; and the nodes' public keys. Retired ones stay for ever.
CREATE TABLE keys (
    key_id      TEXT PRIMARY KEY,
    purpose     TEXT NOT NULL,
    team        TEXT REFERENCES teams (id),
    node        TEXT REFERENCES nodes (id),
    sealed      BLOB,
    public_key  BLOB,
    valid_from  BIGINT NOT NULL,
    valid_until BIGINT
);
-- one key of a purpose signs at a time
CREATE UNIQUE INDEX keys_service ON keys (purpose) WHERE node IS NULL AND valid_until IS NULL;
CREATE UNIQUE INDEX keys_node ON keys (node) WHERE node IS NOT NULL AND valid_until IS NULL;

-- Processes that serve at present. A hint for people, and for work that should run in one of them only.
CREATE TABLE replicas (
    id         TEXT PRIMARY KEY,
    started_at BIGINT NOT NULL,
    seen_at    BIGINT NOT NULL,
    origin     TEXT NOT NULL,
    version    TEXT NOT NULL
);
