//! Data for tests of the push and read roads: files cut into chunks, packed, described; and an honest client that sends them.
//!
//! Chunks are cut at fixed lengths, since the service must not care how they were cut; everything else is what the real client
//! sends, byte for byte.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dray::content::codec::Encoder;
use dray::content::crc::Crc32;
use dray::content::digest::{Digest, digest};
use dray::content::layout::{FileLayout, LayoutWriter, Line, Segment};
use dray::content::pack::{ChunkEntry, PackId, PackIndex};
use dray::content::path::{Profile, RelPath};
use dray::content::tree::{Entry, Kind, Time, TreeWriter};
use reqwest::Method;
use serde_json::{Value, json};

use super::service::{Answer, TestService};

/// Length of a test's chunks.
pub const CHUNK: usize = 48 << 10;
/// The times of all files of a test.
pub const TIME: Time = Time { seconds: 1_700_000_000, nanos: 5 };

/// Bytes that look random and are the same every time.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut word = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&word().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// A pack as it goes over the wire.
#[derive(Debug, Clone)]
pub struct Pack {
    pub id: PackId,
    pub index: PackIndex,
    pub bytes: Vec<u8>,
}

/// Packs these chunks.
pub fn pack<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Pack {
    let (mut encoder, mut entries, mut frames) = (Encoder::new(), Vec::new(), Vec::new());
    for raw in chunks {
        let before = frames.len();
        let codec = encoder.encode(raw, &mut frames);
        let stored = u32::try_from(frames.len() - before).unwrap();
        let raw_length = u32::try_from(raw.len()).unwrap();
        entries.push(ChunkEntry { id: digest(raw), stored, raw: raw_length, crc: Crc32::of(raw), codec });
    }
    let index = PackIndex::new(entries).unwrap();
    let bytes = [index.encode(), frames].concat();
    Pack { id: index.id(), index, bytes }
}

/// A chunk of noise whose id is in the sample, found by trying seeds from `seed` on.
pub fn sampled_chunk(seed: u64) -> Vec<u8> {
    (seed..).map(|seed| noise(seed, 1000)).find(|bytes| digest(bytes).is_sample()).unwrap()
}

/// A document as it is stored: its digest and its zstd frame.
#[derive(Debug, Clone)]
pub struct Document {
    pub digest: Digest,
    pub stored: Vec<u8>,
}

impl Document {
    pub fn of(plain: &[u8]) -> Self {
        Self { digest: digest(plain), stored: zstd::bulk::compress(plain, 3).unwrap() }
    }
}

/// Everything a push sends.
#[derive(Debug, Clone)]
pub struct Push {
    pub packs: Vec<Pack>,
    pub tree: Document,
    pub layout: Document,
    pub bytes: u64,
}

/// Files by path, with the directories they need.
#[derive(Debug, Clone, Default)]
pub struct Files(pub BTreeMap<String, Vec<u8>>);

impl Files {
    pub fn with(mut self, path: &str, bytes: Vec<u8>) -> Self {
        self.0.insert(path.to_owned(), bytes);
        self
    }

    /// Cuts the files into packs of `per_pack` chunks and describes them.
    pub fn push(&self, per_pack: usize) -> Push {
        let mut all: Vec<&[u8]> = self.0.values().flat_map(|bytes| bytes.chunks(CHUNK)).collect();
        let mut seen = BTreeSet::new();
        all.retain(|chunk| seen.insert(digest(chunk)));
        let packs: Vec<Pack> = all.chunks(per_pack).map(|chunks| pack(chunks.iter().copied())).collect();
        let places = packs.iter().zip(0_u32..).flat_map(|(pack, number)| {
            pack.index.entries().iter().zip(0_u32..).map(move |(entry, i)| (entry.id, (number, i)))
        });
        let places: BTreeMap<Digest, (u32, u32)> = places.collect();
        let ids: Vec<PackId> = packs.iter().map(|pack| pack.id).collect();
        let lines: Vec<(Entry, Option<Line>)> = self.lines(|bytes| place(bytes, &places)).collect();
        let bytes = self.0.values().map(|bytes| bytes.len() as u64).sum();
        Push { packs, tree: tree(&lines), layout: layout(&lines, &ids), bytes }
    }

    /// Entries in tree order, each with its line.
    pub fn lines<'a>(
        &'a self,
        place: impl Fn(&[u8]) -> FileLayout + 'a,
    ) -> impl Iterator<Item = (Entry, Option<Line>)> + 'a {
        let mut paths: BTreeMap<RelPath, Option<&Vec<u8>>> = BTreeMap::new();
        for (path, bytes) in &self.0 {
            let path = RelPath::parse(path.as_bytes()).unwrap();
            let mut parent = path.parent();
            while let Some(directory) = parent {
                parent = directory.parent();
                paths.insert(directory, None);
            }
            paths.insert(path, Some(bytes));
        }
        paths.into_iter().map(move |(path, bytes)| match bytes {
            None => (Entry { path, kind: Kind::Dir { mode: 0o755 } }, Some(Line::Dir { mtime: TIME })),
            Some(bytes) => {
                let size = bytes.len() as u64;
                let kind = Kind::File { size, mode: 0o644, mtime: TIME, digest: digest(bytes), hardlink: None };
                (Entry { path, kind }, (size > 0).then(|| Line::File(place(bytes))))
            }
        })
    }
}

/// Where a file's bytes lie, by where its chunks lie.
pub fn place(bytes: &[u8], places: &BTreeMap<Digest, (u32, u32)>) -> FileLayout {
    let mut file = FileLayout {
        digest: digest(bytes),
        size: bytes.len() as u64,
        crc: Crc32::of(bytes),
        profile: 1,
        segments: Vec::new(),
        sha256: None,
    };
    for chunk in bytes.chunks(CHUNK) {
        let (pack, first) = places[&digest(chunk)];
        file.push(Segment { pack: Some(pack), first, count: 1, raw: chunk.len() as u64 });
    }
    file
}

pub fn tree(lines: &[(Entry, Option<Line>)]) -> Document {
    let mut writer = TreeWriter::new(Vec::new(), Profile::Posix).unwrap();
    lines.iter().for_each(|(entry, _)| writer.write(entry).unwrap());
    Document::of(&writer.finish().unwrap().2)
}

pub fn layout(lines: &[(Entry, Option<Line>)], packs: &[PackId]) -> Document {
    let mut writer = LayoutWriter::new(Vec::new(), packs).unwrap();
    lines.iter().filter_map(|(_, line)| line.as_ref()).for_each(|line| writer.write(line).unwrap());
    Document::of(&writer.finish().unwrap().1)
}

/// One push on its way, by one token.
#[derive(Debug, Clone)]
pub struct Upload<'a> {
    pub service: &'a TestService,
    pub token: String,
    pub id: String,
    pub epoch: u64,
    pub document: Value,
}

impl Files {
    /// The same with a symlink in its root; `path` sorts after every file.
    pub fn push_with_symlink(&self, path: &str, target: &str) -> Push {
        let made = self.push(100);
        let places = made.packs.iter().zip(0_u32..).flat_map(|(pack, number)| {
            pack.index.entries().iter().zip(0_u32..).map(move |(entry, i)| (entry.id, (number, i)))
        });
        let places: BTreeMap<Digest, (u32, u32)> = places.collect();
        let ids: Vec<PackId> = made.packs.iter().map(|pack| pack.id).collect();
        let mut lines: Vec<(Entry, Option<Line>)> = self.lines(|bytes| place(bytes, &places)).collect();
        let kind = Kind::Symlink { mtime: TIME, target: target.as_bytes().to_vec() };
        lines.push((Entry { path: RelPath::parse(path.as_bytes()).unwrap(), kind }, None));
        Push { tree: tree(&lines), layout: layout(&lines, &ids), ..made }
    }
}

impl TestService {
    /// Opens an upload for a declared output.
    pub async fn open_output(&self, token: &str, dataset: &str, output: &Value) -> Upload<'_> {
        let said = json!({ "dataset": dataset, "output": output });
        let document = self.call(Method::POST, "/v1/uploads", token, &said).await.expect(201).json();
        Upload {
            service: self,
            token: token.to_owned(),
            id: document["id"].as_str().unwrap().to_owned(),
            epoch: document["epoch"].as_u64().unwrap(),
            document,
        }
    }

    pub async fn open(&self, token: &str, dataset: &str) -> Upload<'_> {
        let said = json!({ "dataset": dataset });
        let document = self.call(Method::POST, "/v1/uploads", token, &said).await.expect(201).json();
        Upload {
            service: self,
            token: token.to_owned(),
            id: document["id"].as_str().unwrap().to_owned(),
            epoch: document["epoch"].as_u64().unwrap(),
            document,
        }
    }

    /// Opens, sends everything, commits; answers the version.
    pub async fn push(&self, token: &str, dataset: &str, push: &Push) -> Value {
        let upload = self.open(token, dataset).await;
        upload.send(push).await;
        upload.commit(push).await
    }
}

impl Upload<'_> {
    pub async fn put(&self, what: &str, id: &Digest, body: Vec<u8>) -> Answer {
        let path = format!("/v1/uploads/{}/{what}/{id}", self.id);
        let request = self.service.request(Method::PUT, &path, &self.token);
        Answer::of(request.header("dray-upload-epoch", self.epoch).body(body).send().await.unwrap()).await
    }

    pub async fn put_pack(&self, pack: &Pack) -> Answer {
        self.put("packs", &pack.id, pack.bytes.clone()).await
    }

    /// Packs, then tree and layout.
    pub async fn send(&self, push: &Push) {
        for pack in &push.packs {
            let answer = self.put_pack(pack).await;
            assert!(answer.status.is_success(), "{answer}");
        }
        self.describe(push).await;
    }

    /// Tree and layout only.
    pub async fn describe(&self, push: &Push) {
        self.put("tree", &push.tree.digest, push.tree.stored.clone()).await.expect(204);
        self.put("layout", &push.layout.digest, push.layout.stored.clone()).await.expect(204);
    }

    pub async fn known(&self, chunks: &[Digest]) -> Answer {
        let chunks: Vec<String> = chunks.iter().map(ToString::to_string).collect();
        self.post("known", &json!({ "epoch": self.epoch, "chunks": chunks })).await
    }

    pub async fn post(&self, what: &str, body: &Value) -> Answer {
        self.service.call(Method::POST, &format!("/v1/uploads/{}/{what}", self.id), &self.token, body).await
    }

    pub fn commit_body(&self, push: &Push) -> Value {
        json!({ "epoch": self.epoch, "tree": push.tree.digest.to_string(), "layout": push.layout.digest.to_string() })
    }

    /// Commits and waits; answers the operation.
    pub async fn try_commit(&self, push: &Push) -> Value {
        let operation = self.post("commit", &self.commit_body(push)).await.expect(202).text("id");
        self.operation(&operation).await
    }

    /// Waits for an operation to end.
    pub async fn operation(&self, id: &str) -> Value {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        loop {
            let path = format!("/v1/operations/{id}?wait=20");
            let operation = self.service.call(Method::GET, &path, &self.token, &Value::Null).await.expect(200).json();
            if operation["state"] != "running" {
                return operation;
            }
            assert!(tokio::time::Instant::now() < deadline, "the operation does not end: {operation}");
        }
    }

    /// Commits, which must go well; answers the version.
    pub async fn commit(&self, push: &Push) -> Value {
        let operation = self.try_commit(push).await;
        assert_eq!(operation["state"], "done", "{operation}");
        operation["version"].clone()
    }

    /// Commits, which must fail with this code and status; answers the problem.
    pub async fn commit_refused(&self, push: &Push, status: u16, code: &str) -> Value {
        let operation = self.try_commit(push).await;
        assert_eq!(operation["state"], "failed", "{operation}");
        assert_eq!(
            (&operation["error"]["code"], &operation["error"]["status"]),
            (&json!(code), &json!(status)),
            "{operation}"
        );
        operation["error"].clone()
    }

    pub async fn state(&self) -> String {
        let path = format!("/v1/uploads/{}", self.id);
        self.service.call(Method::GET, &path, &self.token, &Value::Null).await.expect(200).text("state")
    }
}
