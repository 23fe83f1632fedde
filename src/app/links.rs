//! Links: signed URLs by which somebody without an account downloads a file or an archive.
//!
//! A link of ours is looked up at every use, so that revoking it works at once; its signature covers id and end, so that ids cannot be tried. A direct
//! link is the store's own signature over an export object of its own, which revoking deletes. Ends are told truthfully and are never further away than
//! seven days.
//!
//! ```text
//! service   URL = origin/l/<id>/<name>?exp&sig      looked up, measured and streamed by us, with Range
//! direct    URL = the store's                       export object written once, signed for, deleted after the end
//! ```
//!
//! What a link shows is a version's, so it never changes; the archive's bytes are computed anew for every download. The name
//! in the URL is for people and is not signed.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::archives::VersionArchive;
use super::error::{Code, Error, Kind};
use super::read::{FoundFile, Plain};
use super::stored::parse_key;
use super::upkeep::pass_over;
use super::{App, Caller, Idempotency};
use crate::api::links::{ArchiveKind, CreateLink, Link, LinkKind};
use crate::content::archive::Format;
use crate::content::path::RelPath;
use crate::content::tree::Kind as EntryKind;
use crate::db::{Tx, jobs, links, versions};
use crate::domain::disposition::{content_disposition, url_segment};
use crate::store::{Key, SignedUrl};
use crate::transaction;

/// Ended exports looked up at a time.
const PAGE: u32 = 100;

/// Longest life of a link: what stores sign for (SigV4 presigning ends at seven days).
pub const MOST_SECONDS: u64 = 7 * 24 * 3_600;

/// Ask for seven days at most, and make another link then.
pub const EXPIRES_TOO_FAR: Code = Code::new(Kind::Invalid, "expires_too_far", "no link lives so long");
/// Make the link without `direct`.
pub const DIRECT_UNSUPPORTED: Code = Code::new(Kind::Conflict, "direct_unsupported", "this store cannot sign URLs");
/// The URL was changed or cut; also an id that is none, so that the two cannot be told apart.
pub const LINK_DENIED: Code = Code::new(Kind::Denied, "link_denied", "the link's signature is wrong");
/// It says until when it worked.
pub const LINK_EXPIRED: Code = Code::new(Kind::Expired, "link_expired", "the link has expired");
/// It says since when.
pub const LINK_REVOKED: Code = Code::new(Kind::Expired, "link_revoked", "the link was revoked");
/// Its version was deleted; a new link would need another version.
pub const LINK_GONE: Code = Code::new(Kind::Expired, "link_gone", "what the link showed was deleted");

/// What a link leads to, before any of its bytes are read. Length and tag are known, so that ranges and resumed downloads
/// can be answered.
#[derive(Debug)]
pub struct Target {
    pub bytes: u64,
    /// Names these very bytes, for `ETag`.
    pub tag: String,
    pub media_type: &'static str,
    /// What the download is called; may hold anything a file name may.
    pub name: String,
    content: Content,
}

/// A file is boxed, as it carries its whole layout.
#[derive(Debug)]
enum Content {
    File(Box<FoundFile>),
    Archive(VersionArchive),
}

impl Target {
    /// The bytes `range`, proven; exactly these, or an error at the end. The caller has judged the range.
    pub fn read(&self, app: &Arc<App>, range: std::ops::Range<u64>) -> Plain {
        match &self.content {
            Content::Archive(archive) => archive.read(app, range),
            Content::File(file) => match &file.place {
                Some(place) => app.read_file(&file.source, place.clone(), range),
                None => futures::stream::empty().boxed(),
            },
        }
    }

    /// `Content-Disposition` for `name`, safe whatever that holds.
    pub fn disposition(&self) -> String {
        content_disposition(&self.name)
    }
}

impl App {
    /// Makes a link. `origin` is what the URL begins with. A file is linked as it is, a directory or whole version as an
    /// archive, zip unless said otherwise; measuring it walks the version's tree. The end is the caller's wish, seven days
    /// if there is none. A repeat with the same key gets the first answer, whatever `wish` would mean now.
    pub async fn create_link(
        self: &Arc<Self>,
        caller: &Caller,
        wish: &CreateLink,
        call: &Idempotency,
        origin: &str,
    ) -> Result<Link, Error> {
        if let Some(earlier) = self.answered(caller.team, call).await? {
            return Ok(earlier);
        }
        let until = self.link_end(wish.expires_in)?;
        let (version, path) = self.linked(caller, wish).await?;
        let (target, archive) = self.target(&version, path.as_ref(), wish.archive).await?;
        let row = links::Link {
            id: self.ids.uuid(),
            team: caller.team,
            version: version.id,
            path: path.map(RelPath::into_bytes).unwrap_or_default(),
            archive: archive.map(|kind| word(kind).to_owned()),
            name: target.name.clone(),
            kind: if wish.direct { "direct" } else { "service" }.to_owned(),
            bytes: target.bytes,
            export: None,
            created_at: self.clock.now(),
            expires_at: until,
            revoked_at: None,
        };
        match wish.direct {
            false => self.service_link(caller, &row, call, origin).await,
            true => self.direct_link(caller, row, &target, call).await,
        }
    }

    /// One transaction; nothing is written to the store.
    async fn service_link(
        &self,
        caller: &Caller,
        row: &links::Link,
        call: &Idempotency,
        origin: &str,
    ) -> Result<Link, Error> {
        transaction!(self.db, |tx| {
            if let Some(earlier) = self.replay(tx, caller.team, call).await? {
                return Ok(earlier);
            }
            links::insert(tx, row).await?;
            let made = self.link_document(row, origin);
            self.remember(tx, caller.team, call, &made).await?;
            Ok::<_, Error>(made)
        })
    }

    /// Writes the export object and lets the store sign for it. The row comes first, so that a crash leaves nothing unknown:
    /// what was begun is deleted once the link's time is over. The store's URL cannot be looked up at use, so its end is
    /// what the store says, never later than the row's.
    ///
    /// Calls that repeat this one while the object is being written each write one of their own; the first to be done is
    /// the answer of all, and the others' objects are deleted.
    async fn direct_link(
        self: &Arc<Self>,
        caller: &Caller,
        mut row: links::Link,
        target: &Target,
        call: &Idempotency,
    ) -> Result<Link, Error> {
        let key = Key::export(caller.team, self.ids.uuid());
        self.sign_export(&key, &row, target).await?; // refused before anything is written
        row.export = Some(key.as_str().to_owned());
        let earlier = transaction!(self.db, |tx| {
            if let Some(earlier) = self.replay::<Link>(tx, caller.team, call).await? {
                return Ok::<_, Error>(Some(earlier));
            }
            if !jobs::lock_version(tx, row.version).await? {
                return Err(Error::not_found("version", row.version, "it was deleted just now"));
            }
            links::insert(tx, &row).await?;
            Ok(None)
        })?;
        if let Some(earlier) = earlier {
            return Ok(earlier);
        }
        let answer = self.export(caller, (&row, &key), target, call).await;
        if answer.as_ref().ok().is_none_or(|link| link.id != row.id.to_string())
            && let Err(error) = self.give_up_export(caller, (&row, &key), call).await
        {
            tracing::warn!(link = %row.id, %error, "an export nobody is given cannot be deleted; it goes when its link ends");
        }
        answer
    }

    /// Writes the object, then decides in one transaction whether its link is what the call is answered with.
    /// [`LINK_EXPIRED`] when the link has ended by then. The caller deletes what is no answer.
    async fn export(
        self: &Arc<Self>,
        caller: &Caller,
        (row, key): (&links::Link, &Key),
        target: &Target,
        call: &Idempotency,
    ) -> Result<Link, Error> {
        let mut writer = self.store.writer(key, target.bytes).await?;
        let mut bytes = target.read(self, 0..target.bytes);
        while let Some(piece) = bytes.next().await {
            match piece {
                Ok(piece) => writer.write(piece).await?,
                Err(error) => {
                    writer.abort().await?;
                    return Err(error);
                }
            }
        }
        // the row names the key again before the object can be there: an ended link's is cleared
        transaction!(self.db, |tx| self.still_live(tx, row, key).await)?;
        writer.finish().await?;
        let signed = self.sign_export(key, row, target).await?;
        let made = Link {
            id: row.id.to_string(),
            url: signed.url.to_string(),
            kind: LinkKind::Direct,
            bytes: row.bytes,
            expires_at: signed.expires_at.min(row.expires_at).to_string(),
        };
        transaction!(self.db, |tx| {
            if let Some(earlier) = self.replay(tx, caller.team, call).await? {
                return Ok(earlier);
            }
            self.still_live(tx, row, key).await?;
            self.remember(tx, caller.team, call, &made).await?;
            Ok::<_, Error>(made.clone())
        })
    }

    async fn still_live(&self, tx: &mut Tx, row: &links::Link, key: &Key) -> Result<(), Error> {
        if links::name_export(tx, row.id, key.as_str(), self.clock.now()).await? {
            return Ok(());
        }
        let hint = "ask for a longer life, or make the link without `direct`";
        Err(Error::new(LINK_EXPIRED, "it ended while its object was being written", hint))
    }

    /// Ends a direct link that no caller was given, and deletes its object. Not where the link is the call's answer after
    /// all, which a lost answer of the database leaves open.
    async fn give_up_export(
        &self,
        caller: &Caller,
        (row, key): (&links::Link, &Key),
        call: &Idempotency,
    ) -> Result<(), Error> {
        let ended = transaction!(self.db, |tx| {
            let answer = self.replay::<Link>(tx, caller.team, call).await?;
            if answer.is_some_and(|link| link.id == row.id.to_string()) {
                return Ok(false);
            }
            links::name_export(tx, row.id, key.as_str(), self.clock.now()).await?;
            links::revoke(tx, caller.team, row.id, self.clock.now()).await?;
            Ok::<_, Error>(true)
        })?;
        if ended { self.delete_export(row.id, key.as_str()).await } else { Ok(()) }
    }

    /// Signs for the rest of the link's life. [`DIRECT_UNSUPPORTED`] where the store cannot sign.
    async fn sign_export(&self, key: &Key, row: &links::Link, target: &Target) -> Result<SignedUrl, Error> {
        let left = row.expires_at.duration_since(self.clock.now());
        let ttl = Duration::try_from(left).unwrap_or(Duration::from_secs(1));
        let signed = self.store.sign_get(key, ttl, Some(&target.disposition())).await?;
        signed.ok_or_else(|| {
            let detail = "the store is a local directory";
            Error::new(DIRECT_UNSUPPORTED, detail, "make the link without `direct`: the service streams it, with Range")
        })
    }

    /// Revokes a link: its URL stops working at once, for a direct link as soon as its object is deleted. Where deleting
    /// fails the link counts as revoked all the same, and the reconciler deletes the object later. Saying it twice is fine.
    pub async fn revoke_link(&self, caller: &Caller, id: Uuid) -> Result<(), Error> {
        let revoked = transaction!(self.db, |tx| {
            links::revoke(tx, caller.team, id, self.clock.now()).await.map_err(Error::from)
        })?;
        match revoked {
            None => Err(Error::not_found("link", id, "`dray link` prints the id of a link when it makes one")),
            Some(None) => Ok(()),
            Some(Some(export)) => self.delete_export(id, &export).await,
        }
    }

    /// Deletes export objects nobody may read any more; answers how many there were. One that cannot be deleted is passed
    /// over until the next run.
    pub async fn delete_ended_exports(&self) -> Result<usize, Error> {
        let (mut after, mut count) = (Uuid::nil(), 0);
        loop {
            let ended = links::ended_exports(&mut self.db.read().await?, self.clock.now(), after, PAGE).await?;
            let Some((last, _)) = ended.last() else { return Ok(count) };
            (after, count) = (*last, count + ended.len());
            for (id, export) in &ended {
                pass_over("an ended export", *id, self.delete_export(*id, export).await)?;
            }
        }
    }

    /// Object first, then the row's word: after a crash in between, what is gone is deleted once more.
    async fn delete_export(&self, id: Uuid, export: &str) -> Result<(), Error> {
        self.store.delete(&parse_key(export)?).await?;
        transaction!(self.db, |tx| links::export_gone(tx, id).await.map_err(Error::from))
    }

    /// What the holder of a signed URL may download; by nobody's token. The signature is checked before anything is looked
    /// up, so an id that was made up tells nothing. Expired, revoked and deleted are told apart, since whoever holds the URL
    /// may know. Measures an archive anew, which walks the tree.
    pub async fn open_link(self: &Arc<Self>, id: &str, exp: i64, signature: &str) -> Result<Target, Error> {
        let denied = || {
            Error::new(
                LINK_DENIED,
                "the URL was changed, or cut when it was copied",
                "ask whoever sent the link to send it again",
            )
        };
        if !self.keys.verify_url(&["link", id, &exp.to_string()], signature) {
            return Err(denied());
        }
        let again = "ask whoever sent the link for a new one";
        if exp <= self.clock.now().as_second() {
            let end = Timestamp::from_second(exp).map_or_else(|_| exp.to_string(), |end| end.to_string());
            return Err(Error::new(LINK_EXPIRED, format!("it worked until {end}"), again));
        }
        let row = match Uuid::try_parse(id) {
            Ok(id) => links::get(&mut self.db.read().await?, id).await?,
            Err(_) => None,
        };
        let row = row.ok_or_else(denied)?;
        if let Some(revoked) = row.revoked_at {
            return Err(Error::new(LINK_REVOKED, format!("it was revoked at {revoked}"), again));
        }
        let gone = || Error::new(LINK_GONE, "its version was deleted", again);
        let version = versions::get(&mut self.db.read().await?, row.version).await?.ok_or_else(gone)?;
        let path = match row.path.is_empty() {
            true => None,
            false => Some(
                RelPath::parse(&row.path)
                    .map_err(|error| Error::internal("a link's path is none").with_source(error))?,
            ),
        };
        let kind = row.archive.as_deref().map(|word| if word == "tar" { ArchiveKind::Tar } else { ArchiveKind::Zip });
        let (mut target, _) = self.target(&version, path.as_ref(), kind).await?;
        target.name = row.name;
        Ok(target)
    }

    /// The version and path a wish names.
    async fn linked(&self, caller: &Caller, wish: &CreateLink) -> Result<(versions::Version, Option<RelPath>), Error> {
        let reference = super::versions::parse_reference(&wish.reference)?;
        let path = match wish.path.trim_end_matches('/') {
            "" => None,
            path => Some(
                RelPath::parse(path.as_bytes())
                    .map_err(|error| Error::invalid("path", error, "give a path relative to the dataset's root"))?,
            ),
        };
        let version = self.find_version(&mut self.db.read().await?, caller.team, &reference).await?;
        Ok((version, path))
    }

    fn link_end(&self, seconds: Option<u64>) -> Result<Timestamp, Error> {
        let seconds = seconds.unwrap_or(MOST_SECONDS);
        if seconds > MOST_SECONDS {
            let detail = format!("{seconds} seconds are more than {MOST_SECONDS} (7 days)");
            return Err(Error::new(EXPIRES_TOO_FAR, detail, "ask for 7 days at most, and make a new link then"));
        }
        if seconds == 0 {
            return Err(Error::invalid("expires_in", "is 0", "give at least one second"));
        }
        let end = self.clock.now().saturating_add(SignedDuration::from_secs(seconds.cast_signed()));
        let end = end.map_err(|error| Error::internal("the clock is at its end").with_source(error))?;
        // the URL carries whole seconds
        Timestamp::from_second(end.as_second())
            .map_err(|error| Error::internal("a time out of range").with_source(error))
    }

    /// Looks at what is to be downloaded: a file, or an archive of a directory or of everything. A symlink is no such thing.
    /// `archive` with a file is refused.
    async fn target(
        self: &Arc<Self>,
        version: &versions::Version,
        path: Option<&RelPath>,
        archive: Option<ArchiveKind>,
    ) -> Result<(Target, Option<ArchiveKind>), Error> {
        let found = match path {
            None => None,
            Some(path) => Some((path, self.kind_of(version, path).await?)),
        };
        if let Some((path, EntryKind::File { size, digest, .. })) = &found {
            if archive.is_some() {
                return Err(Error::invalid(
                    "archive",
                    format!("`{path}` is a file"),
                    "leave `archive` away, or name a directory",
                ));
            }
            let file = self.find_file(version, path).await?;
            let name = String::from_utf8_lossy(path.name()).into_owned();
            let (bytes, tag) = (*size, digest.to_string());
            let content = Content::File(Box::new(file));
            return Ok((Target { bytes, tag, media_type: "application/octet-stream", name, content }, None));
        }
        let kind = archive.unwrap_or(ArchiveKind::Zip);
        let (format, media_type) = match kind {
            ArchiveKind::Zip => (Format::Zip, "application/zip"),
            ArchiveKind::Tar => (Format::Tar, "application/x-tar"),
        };
        let made = self.archive(version, path.cloned(), format).await?;
        let name = archive_name(version, path, kind);
        let target =
            Target { bytes: made.length(), tag: made.tag(), media_type, name, content: Content::Archive(made) };
        Ok((target, Some(kind)))
    }

    /// Links of ours to a version that still work. Direct ones are not listed: their URLs are not kept.
    pub(super) async fn links_of(&self, tx: &mut Tx, version: Uuid, origin: &str) -> Result<Vec<Link>, Error> {
        let rows = links::live_of_version(tx, version, self.clock.now()).await?;
        Ok(rows.iter().filter(|row| row.kind == "service").map(|row| self.link_document(row, origin)).collect())
    }

    /// The URL is computed from the row each time; nothing of it is kept.
    fn link_document(&self, row: &links::Link, origin: &str) -> Link {
        let (id, exp) = (row.id.to_string(), row.expires_at.as_second().to_string());
        let signature = self.keys.sign_url(&["link", &id, &exp]);
        Link {
            url: format!("{origin}/l/{id}/{}?exp={exp}&sig={signature}", url_segment(&row.name)),
            id,
            kind: LinkKind::Service,
            bytes: row.bytes,
            expires_at: row.expires_at.to_string(),
        }
    }
}

fn word(kind: ArchiveKind) -> &'static str {
    match kind {
        ArchiveKind::Zip => "zip",
        ArchiveKind::Tar => "tar",
    }
}

/// `aisle-cams-v3.zip`, `aisle-cams-v3-day-1.tar`.
fn archive_name(version: &versions::Version, path: Option<&RelPath>, kind: ArchiveKind) -> String {
    let dataset = version.name.rsplit('/').next().unwrap_or_default();
    let below = path.map(|path| format!("-{}", String::from_utf8_lossy(path.name()))).unwrap_or_default();
    format!("{dataset}-{}{below}.{}", version.number, word(kind))
}
