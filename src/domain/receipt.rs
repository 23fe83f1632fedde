//! Readiness receipts: what is said, the envelope it is signed in, and how anyone checks it.
//!
//! Pure. The envelope is DSSE (payload type, payload, signatures over the pre-authentication encoding), so that no parser has to agree on JSON
//! before a signature was checked. A receipt counts only when the node's key *and* a key of the service signed it, each within its validity. What is
//! read here may come from a file in a stranger's hand: every size is bounded before anything is decoded.

use crate::content::digest::Digest;
use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use data_encoding::{BASE64, HEXLOWER};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// Media type of the payload.
pub const PAYLOAD_TYPE: &str = "application/vnd.dray.readiness.v1+json";
/// Longest receipt file that is looked at.
pub const MAX_ENVELOPE_BYTES: usize = 64 * 1024;
/// Most signatures of one envelope.
pub const MAX_SIGNATURES: usize = 8;
/// How far a node's clock may be ahead of its key's enrolment.
/// A key is enrolled by the service's clock and used by the node's, perhaps at once.
const SKEW: SignedDuration = SignedDuration::from_mins(10);

/// The statement: every staged byte was verified on this node's disk after it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Readiness {
    /// The team's name, as the agent was told it.
    pub team: String,
    pub job: String,
    pub staging: String,
    /// 1 for the first `ready` of the staging, 2 after it was unready and ready again.
    pub ready_seq: u64,
    /// Of the lease under which it was staged; a receipt of an earlier lease says nothing about this one.
    pub lease_epoch: u64,
    pub node: String,
    /// Digest of the tree of the job's directory without `out`: exactly what was staged (see [`super::selection::staged_tree`]).
    pub tree: Digest,
    pub files: u64,
    /// Raw bytes of the regular files; hard links count once.
    pub bytes: u64,
    /// RFC 3339, the node's clock.
    pub verified_at: String,
    pub method: Method,
}

/// How the files were proven.
/// The two counts add up to the statement's `files`; anything else is refused ([`Error::Count`]), so that no file is ready
/// without having been proven one way or the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Method {
    /// Files written, synced, read back past the page cache and hashed.
    pub reread_files: u64,
    /// Files of the node's cache whose size, times and inode have not changed since they were last hashed.
    pub unchanged_files: u64,
    /// When the oldest of them was hashed; present exactly when there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unchanged_since: Option<String>,
}

/// A DSSE envelope.
/// Fields that are not known are passed over, as DSSE asks; what is signed is payload type and payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    #[serde(rename = "payloadType")]
    pub payload_type: String,
    /// Base64.
    pub payload: String,
    pub signatures: Vec<Signature>,
}

/// `keyid` only says which key to try: it is not signed and proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    pub keyid: String,
    /// Base64 of the Ed25519 signature.
    pub sig: String,
}

/// Who a key belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    Service,
    /// By its name, where whoever listed the keys told it.
    Node(Option<String>),
}

/// A public key and the time in which it may sign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    pub id: String,
    pub owner: Owner,
    pub public: [u8; 32],
    pub valid_from: Timestamp,
    /// `None` while it is in use. A retired key still proves what was signed before this.
    pub valid_until: Option<Timestamp>,
}

/// Why an envelope is no receipt.
/// None of these is passing: the same file with the same keys is refused again. [`Error::Unsigned`] alone may be mended by
/// fetching newer keys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the receipt is longer than {MAX_ENVELOPE_BYTES} bytes or has more than {MAX_SIGNATURES} signatures")]
    TooLarge,
    #[error("the file is no DSSE envelope: {0}")]
    NotAnEnvelope(String),
    #[error("the payload type is {0:?}, not `{PAYLOAD_TYPE}`")]
    PayloadType(String),
    #[error("the payload is no readiness statement: {0}")]
    Payload(String),
    #[error("the signature of key `{0}` does not match")]
    BadSignature(String),
    #[error("no signature by a known key of {0}; fetch the keys from `/v1/keys` of the service that made the receipt")]
    Unsigned(&'static str),
    #[error("key `{0}` was not valid at `{1}`")]
    KeyNotValid(String, Timestamp),
    #[error("the statement counts {files} files, its method {proven}")]
    Count { files: u64, proven: u64 },
}

/// The bytes that are signed: DSSE v1 pre-authentication encoding, `DSSEv1 SP length SP type SP length SP payload`. With
/// both lengths in it, no other (type, payload) gives the same bytes.
pub fn pre_authentication_encoding(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut out = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    out.extend_from_slice(payload);
    out
}

/// Names a public key: the first 16 hex digits of its BLAKE3.
pub fn key_id(public: &[u8; 32]) -> String {
    let digest = crate::content::digest::digest(public);
    HEXLOWER.encode(digest.as_bytes().first_chunk::<8>().expect("a digest has 32 bytes"))
}

impl Envelope {
    /// An envelope with no signature yet. The payload's bytes are fixed here and never written anew: whoever adds a
    /// signature signs these.
    pub fn new(statement: &Readiness) -> Self {
        let payload = serde_json::to_vec(statement).expect("strings, numbers and a digest serialise");
        Self { payload_type: PAYLOAD_TYPE.to_owned(), payload: BASE64.encode(&payload), signatures: Vec::new() }
    }

    /// Reads an envelope from JSON text; what is longer than [`MAX_ENVELOPE_BYTES`] is not looked at. Nothing is proven yet.
    pub fn from_json(text: &[u8]) -> Result<Self, Error> {
        if text.len() > MAX_ENVELOPE_BYTES {
            return Err(Error::TooLarge);
        }
        serde_json::from_slice(text).map_err(|error| Error::NotAnEnvelope(error.to_string()))
    }

    fn payload_bytes(&self) -> Result<Vec<u8>, Error> {
        if self.payload.len() > MAX_ENVELOPE_BYTES || self.signatures.len() > MAX_SIGNATURES {
            return Err(Error::TooLarge);
        }
        let decoded = BASE64.decode(self.payload.as_bytes());
        decoded.map_err(|_| Error::NotAnEnvelope("`payload` is not base64".to_owned()))
    }

    /// What each signature is over.
    pub fn signed_bytes(&self) -> Result<Vec<u8>, Error> {
        Ok(pre_authentication_encoding(&self.payload_type, &self.payload_bytes()?))
    }

    /// Adds a signature made over [`Self::signed_bytes`].
    pub fn add(&mut self, keyid: String, signature: &[u8]) {
        self.signatures.push(Signature { keyid, sig: BASE64.encode(signature) });
    }

    /// The statement inside, **unverified**.
    pub fn statement(&self) -> Result<Readiness, Error> {
        if self.payload_type != PAYLOAD_TYPE {
            return Err(Error::PayloadType(self.payload_type.clone()));
        }
        let statement: Readiness =
            serde_json::from_slice(&self.payload_bytes()?).map_err(|error| Error::Payload(error.to_string()))?;
        let method = &statement.method;
        let proven = method.reread_files.saturating_add(method.unchanged_files);
        if proven != statement.files || method.unchanged_since.is_some() != (method.unchanged_files > 0) {
            return Err(Error::Count { files: statement.files, proven });
        }
        Ok(statement)
    }

    /// Checks the signatures that name this key. `Ok(false)` when there is none; an error when any of them is wrong, even
    /// beside a right one: an envelope with a false signature in it was tampered with. Says nothing about the key's
    /// validity.
    pub fn is_signed_by(&self, key: &Key) -> Result<bool, Error> {
        let mut found = false;
        for signature in self.signatures.iter().filter(|signature| signature.keyid == key.id) {
            let bad = || Error::BadSignature(key.id.clone());
            let bytes = BASE64.decode(signature.sig.as_bytes()).map_err(|_| bad())?;
            UnparsedPublicKey::new(&ED25519, &key.public).verify(&self.signed_bytes()?, &bytes).map_err(|_| bad())?;
            found = true;
        }
        Ok(found)
    }
}

/// Checks a complete receipt: signed by the node it names and by the service, each with a key valid when it says it was
/// verified. Where the keys do not say whose they are, a node's signature is one by any node, and that it is this one is the
/// service's word: it signs nothing that it has not held against the key of the node that is named. `keys` may hold any number of others, of other nodes and retired ones. That the statement is about the job and
/// tree that were meant is the caller's to compare.
pub fn verify(envelope: &Envelope, keys: &[Key]) -> Result<Readiness, Error> {
    let statement = envelope.statement()?;
    signed_by_node(envelope, &statement, keys)?;
    signed_by(envelope, keys, "the service", &statement, |owner| *owner == Owner::Service)?;
    Ok(statement)
}

/// Checks the node's half, which is all there is before the service signs. `statement` is the envelope's own.
pub fn signed_by_node(envelope: &Envelope, statement: &Readiness, keys: &[Key]) -> Result<(), Error> {
    signed_by(
        envelope,
        keys,
        "the node",
        statement,
        |owner| matches!(owner, Owner::Node(name) if name.as_ref().is_none_or(|name| *name == statement.node)),
    )
}

/// The first of the owner's keys that signed decides: a right signature by a key outside its validity is refused, not passed
/// over in favour of another.
fn signed_by(
    envelope: &Envelope,
    keys: &[Key],
    who: &'static str,
    statement: &Readiness,
    is_theirs: impl Fn(&Owner) -> bool,
) -> Result<(), Error> {
    let verified_at: Timestamp =
        statement.verified_at.parse().map_err(|_| Error::Payload("`verified_at` is no RFC 3339 time".to_owned()))?;
    for key in keys.iter().filter(|key| is_theirs(&key.owner)) {
        if !envelope.is_signed_by(key)? {
            continue;
        }
        let early = verified_at.duration_since(key.valid_from) < -SKEW;
        if early || key.valid_until.is_some_and(|until| verified_at > until) {
            return Err(Error::KeyNotValid(key.id.clone(), verified_at));
        }
        return Ok(());
    }
    Err(Error::Unsigned(who))
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};

    fn statement() -> Readiness {
        Readiness {
            team: "t".into(),
            job: "j".into(),
            staging: "s".into(),
            ready_seq: 1,
            lease_epoch: 2,
            node: "n1".into(),
            tree: crate::content::digest::digest(b"tree"),
            files: 3,
            bytes: 4,
            verified_at: "2026-11-30T12:00:00Z".into(),
            method: Method {
                reread_files: 2,
                unchanged_files: 1,
                unchanged_since: Some("2026-11-29T12:00:00Z".into()),
            },
        }
    }

    fn key(seed: u8, owner: Owner) -> (Ed25519KeyPair, Key) {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap();
        let public: [u8; 32] = pair.public_key().as_ref().try_into().unwrap();
        let valid_from = "2026-11-01T00:00:00Z".parse().unwrap();
        (pair, Key { id: key_id(&public), owner, public, valid_from, valid_until: None })
    }

    fn signed(statement: &Readiness) -> (Envelope, Vec<Key>) {
        let (node, node_key) = key(1, Owner::Node(Some("n1".into())));
        let (service, service_key) = key(2, Owner::Service);
        let mut envelope = Envelope::new(statement);
        let bytes = envelope.signed_bytes().unwrap();
        envelope.add(node_key.id.clone(), node.sign(&bytes).as_ref());
        envelope.add(service_key.id.clone(), service.sign(&bytes).as_ref());
        (envelope, vec![node_key, service_key])
    }

    #[test]
    fn encoding_is_the_published_one() {
        // the example of the DSSE specification
        let encoded = pre_authentication_encoding("http://example.com/HelloWorld", b"hello world");
        assert_eq!(encoded, b"DSSEv1 29 http://example.com/HelloWorld 11 hello world");
    }

    #[test]
    fn a_receipt_round_trips_and_verifies() {
        let (envelope, keys) = signed(&statement());
        let text = serde_json::to_vec(&envelope).unwrap();
        assert_eq!(verify(&Envelope::from_json(&text).unwrap(), &keys), Ok(statement()));
    }

    #[test]
    fn both_must_sign_within_their_time() {
        let (envelope, keys) = signed(&statement());
        assert_eq!(verify(&envelope, &keys[..1]), Err(Error::Unsigned("the service")));
        assert_eq!(verify(&envelope, &keys[1..]), Err(Error::Unsigned("the node")));
        let mut other = keys.clone();
        other[0].owner = Owner::Node(Some("n2".into()));
        assert_eq!(verify(&envelope, &other), Err(Error::Unsigned("the node")));
        other[0].owner = Owner::Node(None);
        assert_eq!(verify(&envelope, &other), Ok(statement()), "a key whose node is not told");
        assert_eq!(verify(&envelope, &other[..1]), Err(Error::Unsigned("the service")));
        let mut retired = keys.clone();
        retired[1].valid_until = Some("2026-11-30T11:59:59Z".parse().unwrap());
        assert!(matches!(verify(&envelope, &retired), Err(Error::KeyNotValid(..))));
        retired[1].valid_until = Some("2026-11-30T12:00:00Z".parse().unwrap());
        assert!(verify(&envelope, &retired).is_ok());
        let mut young = keys;
        young[0].valid_from = "2026-11-30T12:10:01Z".parse().unwrap();
        assert!(matches!(verify(&envelope, &young), Err(Error::KeyNotValid(..))));
    }

    #[test]
    fn any_changed_byte_is_refused() {
        let (envelope, keys) = signed(&statement());
        let payload = BASE64.decode(envelope.payload.as_bytes()).unwrap();
        for index in 0..payload.len() {
            let mut bytes = payload.clone();
            bytes[index] ^= 1;
            let changed = Envelope { payload: BASE64.encode(&bytes), ..envelope.clone() };
            assert!(verify(&changed, &keys).is_err(), "byte {index}");
        }
        for index in 0..64 {
            let mut changed = envelope.clone();
            let mut bytes = BASE64.decode(changed.signatures[0].sig.as_bytes()).unwrap();
            bytes[index] ^= 1;
            changed.signatures[0].sig = BASE64.encode(&bytes);
            assert_eq!(verify(&changed, &keys), Err(Error::BadSignature(keys[0].id.clone())));
        }
        let mut retyped = envelope;
        retyped.payload_type = "application/json".into();
        assert!(matches!(verify(&retyped, &keys), Err(Error::PayloadType(_))));
    }

    #[test]
    fn counts_and_sizes_are_checked() {
        let mut off = statement();
        off.files = 4;
        assert_eq!(Envelope::new(&off).statement(), Err(Error::Count { files: 4, proven: 3 }));
        let mut off = statement();
        off.method.unchanged_since = None;
        assert!(matches!(Envelope::new(&off).statement(), Err(Error::Count { .. })));
        assert_eq!(Envelope::from_json(&vec![b' '; MAX_ENVELOPE_BYTES + 1]), Err(Error::TooLarge));
        let (mut envelope, keys) = signed(&statement());
        envelope.signatures = vec![envelope.signatures[0].clone(); MAX_SIGNATURES + 1];
        assert_eq!(verify(&envelope, &keys), Err(Error::TooLarge));
    }
}
