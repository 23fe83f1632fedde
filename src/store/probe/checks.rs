//! The checks that every kind of store goes through.
//!
//! Each is a method that notes one or more [`Check`]s and goes on; only when nothing can be written at all do the rest fall away.
//!
//! `Fatal` is kept for what would lose, change or hide bytes. Everything that Dray can do without is `Degraded`, its hint
//! saying what is done instead. A check that cannot be carried out is noted with the error, never left out in silence.

use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use uuid::Uuid;

use super::{Check, Depth, Verdict};
use crate::store::keys::Key;
use crate::store::{Backend, Error, Kind, Length, Prefix, PutMode, Result, Store};

/// Clients that race for one key.
///
/// Enough that a store which looks first and writes then lets two of them through.
const RACERS: u32 = 16;
/// Large enough for parts everywhere: one byte above 16 MiB is sent in parts of 8 MiB, so this makes three.
const LARGE: usize = 17 << 20;
/// A clock this many seconds off is said. Far below the 15 minutes at which stores refuse, so that drift is seen in time.
const SKEW: u64 = 60;

/// One run. Nothing outside of `probe/<run>/` is read, written or listed, but for the list of open uploads.
pub(super) struct Probe<'a> {
    pub(super) store: &'a Store,
    run: Uuid,
    /// All keys of this run, to be removed at its end.
    made: Vec<Key>,
    pub(super) checks: Vec<Check>,
}

impl<'a> Probe<'a> {
    pub(super) fn new(store: &'a Store, run: Uuid) -> Self {
        Self { store, run, made: Vec::new(), checks: Vec::new() }
    }

    /// Always ends with deletion, whatever failed before. The clock comes after the requests that show it.
    pub(super) async fn run(&mut self, depth: Depth) {
        if self.read_after_write().await && depth == Depth::Full {
            self.conditional_put().await;
            self.multipart().await;
            self.paging().await;
            self.long_keys().await;
            if let Backend::S3(s3) = &self.store.backend {
                self.checksum(s3).await;
                self.signed_urls(s3).await;
            }
        }
        self.clock();
        self.space();
        self.deletion().await;
    }

    /// Noted before it is written, so that the deletion at the end covers writes whose answer was lost.
    pub(super) fn key(&mut self) -> Key {
        self.made(Key::probe)
    }

    fn made(&mut self, make: fn(Uuid, u32) -> Key) -> Key {
        let key = make(self.run, u32::try_from(self.made.len()).unwrap_or(u32::MAX));
        self.made.push(key.clone());
        key
    }

    /// Bytes of this run that no other request has.
    ///
    /// No cache on the way can hold them, and a store that mixes objects up is caught by the bytes.
    pub(super) fn content(&self, len: usize) -> Bytes {
        let mut out = Vec::with_capacity(len + 64);
        let mut n: u64 = 0;
        while out.len() < len {
            out.extend_from_slice(self.run.as_bytes());
            out.extend_from_slice(&n.to_le_bytes());
            n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(self.made.len() as u64 | 1);
        }
        out.truncate(len);
        out.into()
    }

    /// `hint` says what to do; it is dropped where all is well.
    pub(super) fn note(
        &mut self,
        name: &'static str,
        verdict: Verdict,
        detail: impl Into<String>,
        hint: Option<&'static str>,
    ) {
        let hint = hint.filter(|_| verdict != Verdict::Ok);
        self.checks.push(Check { name, verdict, detail: detail.into(), hint });
    }

    pub(super) fn fine(&mut self, name: &'static str, detail: impl Into<String>) {
        self.note(name, Verdict::Ok, detail, None);
    }

    /// Whether anything can be written, and comes back as it was.
    async fn read_after_write(&mut self) -> bool {
        let (key, one) = (self.key(), self.content(100_000));
        if let Err(error) = self.store.put_small(&key, one.clone(), PutMode::Overwrite).await {
            self.note("write", Verdict::Fatal, error.in_full(), Some(write_hint(&error)));
            return false;
        }
        self.fine("write", "an object of 100 kB was accepted");
        match self.store.get_small(&key, 1 << 20).await {
            Ok(read) if read == one => self.fine("read_after_write", "it came back byte for byte"),
            Ok(read) => {
                let (detail, hint) = difference(&one, &read);
                self.note("read_after_write", Verdict::Fatal, detail, Some(hint));
                return false;
            }
            Err(error) => {
                let detail = format!("what was just written cannot be read: {error}");
                self.note("read_after_write", Verdict::Fatal, detail, Some("use a store that reads its own writes"));
                return false;
            }
        }
        let two = self.content(90_000);
        let replaced = self.store.put_small(&key, two.clone(), PutMode::Overwrite).await;
        match (replaced, self.store.get_small(&key, 1 << 20).await) {
            (Ok(_), Ok(read)) if read == two => self.fine("overwrite", "the new bytes are read at once"),
            (Ok(_), Ok(read)) if read == one => {
                let hint = "Dray never overwrites packs, but a recovery may read an old document for a while";
                self.note(
                    "overwrite",
                    Verdict::Degraded,
                    "the old bytes are still read after an overwrite",
                    Some(hint),
                );
            }
            (Ok(_), Ok(read)) => {
                let (detail, hint) = difference(&two, &read);
                self.note("overwrite", Verdict::Fatal, detail, Some(hint));
            }
            (Err(error), _) | (_, Err(error)) => {
                let hint = "allow overwriting: an object lock on the bucket must not cover Dray's keys";
                self.note("overwrite", Verdict::Degraded, error.in_full(), Some(hint));
            }
        }
        true
    }

    /// A condition that is refused outright is fatal, since every write with one would fail: `conditional_put = false` is
    /// then needed. One that is ignored, or that lets several racers win, only degrades.
    async fn conditional_put(&mut self) {
        let (key, content) = (self.key(), self.content(1_000));
        let hint =
            Some("Dray's keys are random UUIDs, so nobody races for them; a lost answer is then settled by reading");
        match self.store.put_small(&key, content.clone(), PutMode::Create).await {
            Ok(_) => {}
            Err(error) => {
                let hint = Some("set `conditional_put = false` for this store");
                self.note(
                    "conditional_put",
                    Verdict::Fatal,
                    format!("a first write with a condition fails: {error}"),
                    hint,
                );
                return;
            }
        }
        match self.store.put_small(&key, content, PutMode::Create).await {
            Err(Error::AlreadyExists { .. }) => self.fine("conditional_put", "a taken key is refused"),
            Ok(_) => self.note(
                "conditional_put",
                Verdict::Degraded,
                "the condition is ignored: a taken key is overwritten",
                hint,
            ),
            Err(error) => self.note("conditional_put", Verdict::Degraded, error.in_full(), hint),
        }
        let raced = self.key();
        let racers = (0..RACERS).map(|n| {
            let content = Bytes::from(format!("racer {n}"));
            let (store, raced) = (self.store, &raced);
            async move { store.put_small(raced, content, PutMode::Create).await }
        });
        let winners = futures::future::join_all(racers).await.into_iter().filter(Result::is_ok).count();
        match winners {
            1 => self.fine("conditional_race", format!("of {RACERS} at once, one won")),
            _ => self.note(
                "conditional_race",
                Verdict::Degraded,
                format!("of {RACERS} at once, {winners} believe they won"),
                hint,
            ),
        }
    }

    /// Parts must come back joined in order; then ranges over their seams, and what an abort leaves.
    async fn multipart(&mut self) {
        let (key, content) = (self.key(), self.content(LARGE));
        let written = async {
            let mut writer = self.store.writer(&key, Length::Exact(LARGE as u64)).await?;
            writer.write(content.clone()).await?;
            writer.finish().await
        };
        if let Err(error) = written.await {
            let hint =
                Some("packs larger than 16 MiB are sent in parts: allow multipart uploads, or use another store");
            self.note("multipart", Verdict::Fatal, error.in_full(), hint);
            return;
        }
        match self.store.get_small(&key, 2 * LARGE as u64).await {
            Ok(read) if read == content => self.fine("multipart", "17 MiB in parts came back byte for byte"),
            Ok(read) => {
                let (detail, hint) = difference(&content, &read);
                self.note("multipart", Verdict::Fatal, detail, Some(hint));
                return;
            }
            Err(error) => {
                self.note("multipart", Verdict::Fatal, error.in_full(), Some("use a store that reads its own writes"));
                return;
            }
        }
        self.ranges(&key, &content).await;
        self.given_up().await;
    }

    /// Ranges across the seams of parts, which some stores get wrong.
    async fn ranges(&mut self, key: &Key, content: &Bytes) {
        for range in [0..1, 8_388_600..8_388_616, LARGE - 7..LARGE] {
            let asked = range.start as u64..range.end as u64;
            let read = async {
                let (_, stream) = self.store.get(key, Some(asked.clone())).await?;
                stream.try_collect::<Vec<Bytes>>().await
            };
            let problem = match read.await {
                Ok(pieces) if pieces.concat() == content[range] => continue,
                Ok(_) => "has other bytes than were written".to_owned(),
                Err(error) => error.in_full(),
            };
            let detail = format!("range {}-{}: {problem}", asked.start, asked.end - 1);
            self.note(
                "ranges",
                Verdict::Fatal,
                detail,
                Some("Dray reads packs by ranges; use a store that serves them"),
            );
            return;
        }
        self.fine("ranges", "read right, also across parts");
    }

    /// An upload that is seen after its abort would let readers find what was never acknowledged.
    async fn given_up(&mut self) {
        let (key, content) = (self.key(), self.content(LARGE));
        let aborted = async {
            let mut writer = self.store.writer(&key, Length::Unknown).await?;
            writer.write(content).await?;
            writer.abort().await?;
            let left = self.store.orphan_uploads(Duration::ZERO).await?;
            let visible = self.store.head(&key).await.is_ok();
            Ok::<_, Error>((left.iter().any(|upload| upload.key == key), visible))
        };
        let hint = Some("let the bucket's lifecycle rules remove unfinished multipart uploads after a few days");
        match aborted.await {
            Ok((false, false)) => self.fine("multipart_abort", "what is given up leaves nothing"),
            Ok((_, true)) => {
                self.note(
                    "multipart_abort",
                    Verdict::Fatal,
                    "an upload that was given up is visible as an object",
                    hint,
                );
            }
            Ok((true, _)) => {
                self.note("multipart_abort", Verdict::Degraded, "an aborted upload is still listed as open", hint)
            }
            Err(error) => self.note("multipart_abort", Verdict::Degraded, error.in_full(), hint),
        }
    }

    /// New objects are listed at once, across pages.
    async fn paging(&mut self) {
        let mut wanted: Vec<Key> = (0..5).map(|_| self.key()).collect();
        let listed = async {
            for key in &wanted {
                self.store.put_small(key, Bytes::from_static(b"listed"), PutMode::Overwrite).await?;
            }
            let prefix = Prefix::team(Kind::Probe, self.run);
            let listing = match &self.store.backend {
                Backend::S3(s3) => s3.list_by(prefix, Some(2)),
                Backend::Local(local) => local.list(prefix),
            };
            listing.map_ok(|(key, _)| key).try_collect::<Vec<_>>().await
        };
        let listed = listed.await;
        let hint = Some("orphans are found and versions recovered by listing; do not rely on either with this store");
        match listed {
            Ok(found) => {
                wanted.retain(|key| found.iter().filter(|other| *other == key).count() != 1);
                match wanted.len() {
                    0 => self.fine("paging", "new objects are listed at once, each one once, over several pages"),
                    n => self.note(
                        "paging",
                        Verdict::Degraded,
                        format!("{n} of 5 new objects are missing or doubled in a listing"),
                        hint,
                    ),
                }
            }
            Err(error) => self.note("paging", Verdict::Degraded, error.in_full(), hint),
        }
    }

    /// A store that cuts long names would let two keys share one object.
    async fn long_keys(&mut self) {
        let (key, content) = (self.made(Key::long_probe), self.content(1_000));
        let stored = async {
            self.store.put_small(&key, content.clone(), PutMode::Overwrite).await?;
            self.store.get_small(&key, 1_000).await
        };
        let hint = Some("Dray's own keys are 120 bytes at most, so this does no harm unless `url` has a long prefix");
        match stored.await {
            Ok(read) if read == content => {
                self.fine("long_keys", format!("a key of {} bytes works", key.as_str().len()))
            }
            Ok(_) => self.note("long_keys", Verdict::Degraded, "another object lies under a long key", hint),
            Err(error) => self.note("long_keys", Verdict::Degraded, error.in_full(), hint),
        }
    }

    /// The store's clock against ours, by the last answer.
    fn clock(&mut self) {
        let Backend::S3(s3) = &self.store.backend else { return };
        let Some(seconds) = s3.skew_seconds() else { return };
        let hint = Some("set this machine's clock by NTP; stores refuse requests signed more than 15 minutes off");
        let (off, direction) = (seconds.unsigned_abs(), if seconds > 0 { "ahead" } else { "behind" });
        match off {
            off if off < SKEW => self.fine("clock", format!("your clock and the store's agree within {SKEW} s")),
            off => {
                let minutes = (off + 30) / 60;
                self.note("clock", Verdict::Degraded, format!("your clock is {minutes} min {direction}"), hint);
            }
        }
    }

    /// Local stores only. Below 1 GiB free is said, since a full disk refuses pushes at once.
    fn space(&mut self) {
        let Backend::Local(local) = &self.store.backend else { return };
        match local.space() {
            Ok(space) if space.in_memory => {
                let hint = Some("give a directory on a disk, unless losing all of it is fine");
                self.note("disk", Verdict::Degraded, "the directory lies in memory and is gone after a restart", hint);
            }
            Ok(space) if space.free < 1 << 30 => {
                let hint = Some("free some, or give a directory on a larger disk");
                self.note("disk", Verdict::Degraded, format!("{} MiB are free", space.free >> 20), hint);
            }
            Ok(space) => self.fine("disk", format!("{} GiB are free", space.free >> 30)),
            Err(error) => self.note("disk", Verdict::Degraded, error.in_full(), None),
        }
    }

    /// Removes all that was written, which is a check too.
    ///
    /// Each key is deleted although an earlier one failed, but for a store that is away.
    async fn deletion(&mut self) {
        let hint = Some(
            "let these credentials delete objects, and the bucket keep no old versions: Dray verifies each deletion",
        );
        let mut failed = None;
        for key in std::mem::take(&mut self.made) {
            let Err(error) = self.store.delete(&key).await else { continue };
            let is_away = error.is_retryable();
            failed = Some(error);
            if is_away {
                // its retries took long enough; the next key would wait as long
                break;
            }
        }
        match failed {
            None => self.fine("delete", "all of it is gone again"),
            Some(error) => self.note("delete", Verdict::Degraded, error.in_full(), hint),
        }
    }
}

fn write_hint(error: &Error) -> &'static str {
    match error {
        Error::Denied { .. } => "give these credentials the right to put, get, list and delete objects of the bucket",
        Error::Unsupported { .. } => {
            "the store refuses plain signed PUTs: try `checksum = \"none\"`, and `addressing = \"virtual\"` if it wants that"
        }
        Error::Unavailable { .. } => "see that `endpoint` is right and the store runs",
        Error::ClockSkew { .. } => "set this machine's clock by NTP",
        Error::NoSpace => "free some space",
        _ => "see what the store's own log says",
    }
}

/// What is wrong with bytes that came back, and what to do.
///
/// Framing of `aws-chunked` is told apart: who does not decode it stores it inside the object.
fn difference(sent: &[u8], read: &[u8]) -> (String, &'static str) {
    let holds = |needle: &[u8]| read.windows(needle.len()).any(|window| window == needle);
    if holds(b"chunk-signature=") || holds(b"x-amz-checksum-") || holds(b"x-amz-trailer") {
        let detail = "the framing of the upload was stored inside the object".to_owned();
        return (
            detail,
            "something between here and the store does not decode `aws-chunked`; set it right, or use another endpoint",
        );
    }
    let detail = match sent.len() == read.len() {
        true => "other bytes came back than were written".to_owned(),
        false => format!("{} bytes were written, {} came back", sent.len(), read.len()),
    };
    (detail, "do not use this store, or the proxy before it: it changes bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_named() {
        let sent = vec![7; 100];
        let mut framed = b"64;chunk-signature=0123\r\n".to_vec();
        framed.extend_from_slice(&sent);
        assert!(difference(&sent, &framed).0.contains("framing"));
        assert!(difference(&sent, &sent[1..]).0.contains("100 bytes were written, 99"));
        assert!(difference(&sent, &[8; 100]).0.contains("other bytes"));
    }
}
