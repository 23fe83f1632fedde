//! Dray carries a team's data to the GPU it rented and carries the results home.
//!
//! This page is the map of the house. One library, one binary; roles are subcommands. Within are three crates:
//! `dray-ground` (the floors that both houses stand on), `dray-service` and `dray-outside` (a house each); this one joins them.
//!
//! # Floors
//!
//! ```text
//! floor 0  content, domain                     PURE: no async, no files, no network, no clock, no log
//! floor 1  api                                 wire types that both houses speak
//! floor 2  store, db, webhook, clock, config, direct   EDGES: one outside thing each
//! floor 3  app                                 use cases: the only room that joins domain, db and store
//! floor 4  server                              HTTP in, ticks in, calls app            -- the service's house
//!          client -> agent, cli                HTTP out, disk, terminal                -- the outside house
//! ```
//!
//! The two houses meet only in `content`, `domain`, `api`, `clock`, `config` and `direct`. `agent` and `cli` never see `app`, `db`,
//! `store` or `webhook`. `src/main.rs` is the composition root, the only file that knows both houses.
//! The compiler holds the houses apart, `tests/it/layering.rs` holds the rest of this table against the code.
//!
//! # Roads
//!
//! ```text
//! push      client/walk -> content::chunker -> digest -> [known?] app/known -> codec -> pack -> PUT -> app verifies -> store
//!           -> [commit] tree and layout objects first, then one SQL transaction: version, references
//! stage-in  scheduler -> app/staging -> agent: trees -> client/pull (written, synced, read back) -> facts -> receipt -> ready
//!           -> outbox -> callback
//! stage-out agent seals declared outputs -> client/push (the same road) -> app/outputs -> link, archive
//! ```
//!
//! # Invariants
//!
//! 1. An acknowledged pack or version survives the crash of any single process.
//! 2. No read ever returns bytes whose digest differs.
//! 3. Every committed version's packs are alive.
//! 4. An object key is written once, ever.
//! 5. No team learns of, or reaches, another team's data.
//! 6. A file in a job's directory is complete and verified, or absent; `ready` is never said otherwise.
//! 7. One fact, one event id.
//! 8. Data before row before reference; a crash leaves garbage, never a dangling reference.
//! 9. Peak memory does not grow with file size or file count.
//!
//! # Words
//!
//! *team*: the tenant. *dataset*: a named line of versions. *version*: one immutable tree of files. *tree*: what a version holds; its digest is the
//! version's identity. *layout*: where the bytes of a tree lie in packs. *chunk*: a content-defined run of bytes, named by BLAKE3. *pack*: one
//! object of many chunks, never rewritten. *upload*: an open attempt to make a version, fenced by an epoch. *job*, *lease*: a declared job; its
//! tenure of one node. *staging*: bringing a job's inputs near, and onto the leased node. *readiness receipt*: the signed statement that every
//! staged byte was verified on that node's disk. *output*: what a job brings back; *sealed* on the node, *stored* in the store. *link*: a signed URL. *outside links*: symlinks that point out of
//! what is staged or pulled. *shard*: the i-th of n parts of an input's files, dealt by one rule ([`domain::shard`]).
//!
//! # Where this differs from the plan it was built by, and why
//!
//! * **Three crates** instead of one: the houses compile side by side, on two cores a cold build is shorter by the half minute that one crate's
//!   front end left a core idle, and a change in one house does not compile the other. The files lie where they lay; the manifests are
//!   `src/{ground,service,outside}/Cargo.toml`.
//! * **A pack's id** is the BLAKE3 that ends its index, not of the whole object. It covers header and index, so every chunk's id, lengths and codec;
//!   frames are proven by decoding them against the chunk ids. Hashing the frames once more costs 0.3 to 0.5 CPU s/GiB on each side and proves nothing further.
//! * **Directory times** stand in the layout, one line a directory, since they are restored but no part of a version's identity.
//! * **An agent's instance** is kept in its cache directory. The directory is locked, so a restarted agent speaks for its node at once instead of waiting a
//!   minute for the place of its predecessor.
//! * **A pull proves a chunk by the digest of its whole file**, and before that by its crc32 where that digest cannot be taken at
//!   once, or could not say which chunk is wrong; `verify` and `cat` prove each chunk by length, BLAKE3 and crc32, and the file as well.
//! * **Packs that the store has lost** become known where they are missed: a reader whose signed URL was answered with 404 says so when it asks for another
//!   grant (`missing`), the service looks for itself, and an upload's document names what its parent has lost (`lost_packs`), so that a push heals it.
//! * **`GET /v1/jobs/{id}/plan`** is the route of `dray stage --plan`.
//! * **Globs and shards** mean the same for pulls and stagings ([`domain::selection::Rule`]); `--include a` takes what lies below `a` too.
//! * **A large file's part** is named by the file as well as by the pull, so that the next pull proves and uses it.
//! * **Large writes go past the page cache** ([`direct`]), in the local store and in pulls, and what is *read back* is read past it too: to drop a file
//!   from the cache is a request that the kernel need not heed, and is all there is only where a file system does not promise direct reads. The cache's copy of
//!   bytes that are synced anyway cost more than BLAKE3 did.
//! * **The public list of keys** names no node: anybody may ask for it. That a key is the named node's rests on the service's countersignature.
//! * **A lost answer of the store** to a PUT is settled by HEAD and checksum; an absent object is sent again under the same key, conditionally.

pub use dray_ground::{api, clock, config, content, direct, domain};
pub use dray_outside::{agent, cli, client};
pub use dray_service::{app, db, server, store, webhook};

#[doc(hidden)]
pub use dray_service::{params, transaction};
