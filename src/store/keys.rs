//! Keys: the only place that makes the names of objects.
//!
//! A key is a kind, the team's UUID and more UUIDs or numbers, never a name a user gave: no text of a user can reach a store, a
//! log or a signed URL as part of a path. A key is written once; what must change gets a new key.
//!
//! ```text
//! packs/<team>/<pack>        trees/<team>/<tree>        layouts/<team>/<layout>        exports/<team>/<export>
//! refs/<team>/<version>/<generation>.json               refs/<team>/<version>/0.committed
//! record/<team>/<segment>    probe/<run>/<n>[/<padding>]
//! ```
//!
//! Why UUIDs and not digests: two uploads of one pack, or the repetition of a failed one, must never write the same key, or
//! the loser of a race could replace what was acknowledged. Content is found by the database's rows; the team stands in the
//! key so that a listing can be cut by team and a wrong row can never lead to another team's object unseen.
//!
//! The grammar is closed: [`Key`]'s parser takes exactly what its constructors make. What a listing finds beside it is
//! somebody else's and is neither read nor deleted.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

/// What an object holds; the first part of its key.
///
/// A new kind needs its folder, its shape in `is_key` and a place in [`Kind::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Pack,
    Tree,
    Layout,
    Reference,
    Export,
    Record,
    /// Left by a `store check` that was killed.
    Probe,
}

impl Kind {
    pub const ALL: [Self; 7] =
        [Self::Pack, Self::Tree, Self::Layout, Self::Reference, Self::Export, Self::Record, Self::Probe];

    /// On the disk and in buckets for ever: a folder's name is never changed.
    pub(super) fn folder(self) -> &'static str {
        match self {
            Self::Pack => "packs",
            Self::Tree => "trees",
            Self::Layout => "layouts",
            Self::Reference => "refs",
            Self::Export => "exports",
            Self::Record => "record",
            Self::Probe => "probe",
        }
    }

    fn of_folder(folder: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.folder() == folder)
    }
}

/// The name of one object. Made from UUIDs, or parsed back from what this file made.
///
/// Cheap to clone. At most 120 bytes, longer only in a probe. Shown as it is in logs and errors, since it holds no user's
/// text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// `pack` is a fresh UUID of this attempt, not the pack's id, which is a digest.
    pub fn pack(team: Uuid, pack: Uuid) -> Self {
        Self::plain(Kind::Pack, team, pack)
    }

    pub fn tree(team: Uuid, tree: Uuid) -> Self {
        Self::plain(Kind::Tree, team, tree)
    }

    pub fn layout(team: Uuid, layout: Uuid) -> Self {
        Self::plain(Kind::Layout, team, layout)
    }

    /// A file or archive written out for a direct link; deleted when the link has ended.
    pub fn export(team: Uuid, export: Uuid) -> Self {
        Self::plain(Kind::Export, team, export)
    }

    /// A segment of the team's record.
    pub fn record(team: Uuid, segment: Uuid) -> Self {
        Self::plain(Kind::Record, team, segment)
    }

    /// The document from which the SQL side of a version can be rebuilt; the highest generation wins.
    ///
    /// A generation is written once like any object; a change of the version's layout writes the next.
    pub fn reference(team: Uuid, version: Uuid, generation: u64) -> Self {
        Self(format!("refs/{team}/{version}/{generation}.json").into())
    }

    /// Says that generation 0, written before the commit, was committed.
    pub fn committed(team: Uuid, version: Uuid) -> Self {
        Self(format!("refs/{team}/{version}/0.committed").into())
    }

    /// The `n`-th object of a probe's run. Has no team: [`Key::team`] answers none.
    pub(super) fn probe(run: Uuid, n: u32) -> Self {
        Self(format!("probe/{run}/{n}").into())
    }

    /// A probe's key of 250 bytes a component, near what disks and stores allow.
    pub(super) fn long_probe(run: Uuid, n: u32) -> Self {
        Self(format!("probe/{run}/{n}/{}/{}", "l".repeat(250), "k".repeat(250)).into())
    }

    /// The shape of all kinds but references and probes.
    fn plain(kind: Kind, team: Uuid, id: Uuid) -> Self {
        Self(format!("{}/{team}/{id}", kind.folder()).into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Read from the text, which every way to make a key has checked.
    pub fn kind(&self) -> Kind {
        let folder = self.0.split('/').next().unwrap_or_default();
        Kind::of_folder(folder).expect("every constructor and `from_str` begins with a kind's folder")
    }

    /// The team the object belongs to; none for a probe's.
    pub fn team(&self) -> Option<Uuid> {
        match self.kind() {
            Kind::Probe => None,
            _ => self.0.split('/').nth(1).and_then(|team| Uuid::try_parse(team).ok()),
        }
    }

    /// The object's own UUID: the pack's, tree's, ..., or the version's for a reference.
    ///
    /// None for a probe's, whose second part is a number.
    pub fn id(&self) -> Option<Uuid> {
        self.0.split('/').nth(2).and_then(|id| Uuid::try_parse(id).ok())
    }

    /// The generation of a reference document.
    ///
    /// None for `0.committed` and for every other kind.
    pub fn generation(&self) -> Option<u64> {
        (self.kind() == Kind::Reference)
            .then(|| self.0.rsplit('/').next()?.strip_suffix(".json")?.parse().ok())
            .flatten()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Text that is no key of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no key of an object of Dray", .0.escape_debug())]
pub struct NotAKey(String);

impl FromStr for Key {
    type Err = NotAKey;

    /// Accepts exactly what the constructors make: canonical lower-case UUIDs, numbers without leading zeros.
    fn from_str(text: &str) -> Result<Self, NotAKey> {
        if is_key(text) { Ok(Self(text.into())) } else { Err(NotAKey(text.chars().take(200).collect())) }
    }
}

/// The grammar of the module's head. Allocates nothing but the canonical form of UUIDs and numbers, and takes text of any
/// length.
fn is_key(text: &str) -> bool {
    let mut parts = text.split('/');
    let (Some(folder), Some(first), Some(second)) = (parts.next(), parts.next(), parts.next()) else { return false };
    let (third, fourth, rest) = (parts.next(), parts.next(), parts.next());
    if !is_uuid(first) || rest.is_some() {
        return false;
    }
    match Kind::of_folder(folder) {
        Some(Kind::Pack | Kind::Tree | Kind::Layout | Kind::Export | Kind::Record) => {
            is_uuid(second) && third.is_none()
        }
        Some(Kind::Reference) => {
            let leaf = third.unwrap_or_default();
            is_uuid(second)
                && fourth.is_none()
                && (leaf == "0.committed" || leaf.strip_suffix(".json").is_some_and(is_number))
        }
        Some(Kind::Probe) => {
            let padding = |part: &str, letter: u8| part.len() == 250 && part.bytes().all(|byte| byte == letter);
            is_number(second)
                && match (third, fourth) {
                    (None, None) => true,
                    (Some(l), Some(k)) => padding(l, b'l') && padding(k, b'k'),
                    _ => false,
                }
        }
        None => false,
    }
}

/// Canonical only: hyphens, lower case. Two spellings of one UUID would be two objects.
fn is_uuid(text: &str) -> bool {
    Uuid::try_parse(text).is_ok_and(|uuid| uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == text)
}

fn is_number(text: &str) -> bool {
    text.parse::<u64>().is_ok_and(|number| number.to_string() == text)
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What to list: everything of a kind, or of one team in it.
///
/// Listed as a folder, with a slash behind it, so that one team's UUID can never match as the beginning of another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    pub kind: Kind,
    /// The team, or a probe's run.
    pub team: Option<Uuid>,
}

impl Prefix {
    pub fn all(kind: Kind) -> Self {
        Self { kind, team: None }
    }

    pub fn team(kind: Kind, team: Uuid) -> Self {
        Self { kind, team: Some(team) }
    }

    /// `packs` or `packs/<team>`, without a slash at the end.
    pub(super) fn folder(&self) -> String {
        match self.team {
            Some(team) => format!("{}/{team}", self.kind.folder()),
            None => self.kind.folder().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uuid(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    #[test]
    fn every_key_parses_back_and_names_its_parts() {
        let (team, id) = (uuid(7), uuid(0xabcdef));
        let keys = [
            (Key::pack(team, id), Kind::Pack),
            (Key::tree(team, id), Kind::Tree),
            (Key::layout(team, id), Kind::Layout),
            (Key::export(team, id), Kind::Export),
            (Key::record(team, id), Kind::Record),
            (Key::reference(team, id, 12), Kind::Reference),
            (Key::committed(team, id), Kind::Reference),
        ];
        for (key, kind) in keys {
            assert_eq!(key.as_str().parse::<Key>(), Ok(key.clone()));
            assert_eq!((key.kind(), key.team(), key.id()), (kind, Some(team), Some(id)));
            assert_eq!(serde_json::from_str::<Key>(&serde_json::to_string(&key).unwrap()).unwrap(), key);
        }
        assert_eq!(Key::reference(team, id, 12).generation(), Some(12));
        assert_eq!(Key::committed(team, id).generation(), None);
        for key in [Key::probe(team, 3), Key::long_probe(team, 3)] {
            assert_eq!(key.as_str().parse::<Key>(), Ok(key.clone()));
            assert_eq!(key.team(), None);
        }
    }

    #[test]
    fn nothing_else_is_a_key() {
        let id = uuid(1);
        for text in [
            String::new(),
            "packs".into(),
            format!("packs/{id}"),
            format!("packs/{id}/../../etc/passwd"),
            format!("packs/{id}/{id}/"),
            format!("/packs/{id}/{id}"),
            format!("packs//{id}/{id}"),
            format!("packs/{id}/{}", id.to_string().replace('-', "")),
            format!("packs/{id}/{}", uuid(0xabc).to_string().to_uppercase()),
            format!("other/{id}/{id}"),
            format!("refs/{id}/{id}"),
            format!("refs/{id}/{id}/01.json"),
            format!("refs/{id}/{id}/-1.json"),
            format!("refs/{id}/{id}/1.committed"),
            format!("refs/{id}/{id}/1.json/x"),
            format!("probe/{id}/1/x"),
            format!("packs/{id}/{id}\n"),
            format!("packs/{id}/{id}%2f"),
        ] {
            assert!(text.parse::<Key>().is_err(), "{text:?}");
        }
    }
}
