//! The service's own keys: they sign receipts and URLs and seal what may be read by us only.
//!
//! Kept in SQL, each sealed (AES-256-GCM) under the secret key file, so that a copy of the database signs nothing. Made when
//! missing; two replicas that start together agree on one. A retired key signs no more but goes on verifying, and its public
//! half is listed for ever. No secret leaves this file, not even in `Debug`.
//!
//! ```text
//! secret key file --derive_key--> master --AES-256-GCM--> keys in SQL --> receipt (Ed25519), url (HMAC-SHA256), seal (AES-256-GCM)
//! sealed text:  key id [8] | nonce [12] | ciphertext and tag        associated data: what it is (`context`)
//! ```
//!
//! The keys are sealed under one that is derived from the file (BLAKE3 key derivation), so another use of the same file
//! shares no key with this. The associated data says what a sealed value is: moved to where another kind is expected, it
//! does not open.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use aws_lc_rs::{constant_time, hmac};
use data_encoding::{BASE64, BASE64URL_NOPAD, HEXLOWER};
use jiff::SignedDuration;
use zeroize::Zeroizing;

use super::App;
use super::error::{Code, Error, Kind};
use crate::api::events::{PublicKey, PublicKeys};
use crate::clock::{Clock, Ids};
use crate::db::keys::{self, ServiceKey};
use crate::db::{Db, Tx};
use crate::transaction;

/// The 256 bits of the secret key file.
pub type Secret = Zeroizing<[u8; 32]>;

/// Nothing can be served without the right file: an operator's matter.
pub const WRONG_SECRET: Code =
    Code::new(Kind::Corrupt, "wrong_secret_key", "the secret key file does not open this database's keys");

/// What a key is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Ed25519: countersigns receipts.
    Receipt,
    /// HMAC-SHA256: links and grants of ours.
    Url,
    /// AES-256-GCM: secrets kept in SQL.
    Seal,
}

/// The words stand in SQL and in the associated data: never changed.
const PURPOSES: [(Purpose, &str); 3] = [(Purpose::Receipt, "receipt"), (Purpose::Url, "url"), (Purpose::Seal, "seal")];

/// A signature over a receipt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    pub key_id: String,
    /// 64 bytes, Ed25519.
    pub bytes: Vec<u8>,
}

/// All keys, opened. Shared by every request; [`Keys::reload`] takes in what another replica has made. A request works with
/// the keys of one moment, and none waits while they are exchanged.
pub struct Keys {
    secret: Secret,
    ring: RwLock<Arc<Ring>>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(***)")
    }
}

/// Keys of one moment; current ones last, retired ones before them for verifying and opening only.
#[derive(Default)]
struct Ring {
    receipt: Vec<(String, Ed25519KeyPair)>,
    url: Vec<hmac::Key>,
    seal: Vec<([u8; SEAL_ID], LessSafeKey)>,
}

/// How long two receipt keys are valid together: some of the periods in which replicas read the keys again, one of which may
/// fail.
const OVERLAP: SignedDuration = SignedDuration::from_mins(5);
/// Bytes that name the key of a sealed text, so that opening need not try them all.
const SEAL_ID: usize = 8;
const NONCE: usize = 12;

impl Keys {
    /// Opens the keys, making those that are missing. Replicas that start together with the same secret agree on one of
    /// each; with another secret this is [`WRONG_SECRET`].
    pub async fn open(db: &Db, secret: Secret, clock: &dyn Clock, ids: &dyn Ids) -> Result<Self, Error> {
        let made = PURPOSES.map(|(purpose, name)| fresh(purpose, name, &secret, clock, ids));
        transaction!(db, |tx| {
            for key in &made {
                keys::insert_service(tx, key).await?;
            }
            Ok::<_, Error>(())
        })?;
        let keys = Self { secret, ring: RwLock::default() };
        keys.reload(db).await?;
        Ok(keys)
    }

    /// Whether the database holds keys already; if so, only the secret key file they were sealed with will do.
    pub async fn exist(db: &Db) -> Result<bool, Error> {
        Ok(!keys::all_service(&mut db.read().await?).await?.is_empty())
    }

    /// Reads the keys again. Where that fails, those that were there go on being used.
    pub async fn reload(&self, db: &Db) -> Result<(), Error> {
        let rows = keys::all_service(&mut db.read().await?).await?;
        let ring = Arc::new(Ring::open(&self.secret, &rows)?);
        *self.ring.write().unwrap_or_else(PoisonError::into_inner) = ring;
        Ok(())
    }

    /// Retires the receipt key and makes a new one, in one transaction. What the old one signed stays verifiable. It is
    /// valid for [`OVERLAP`] more: until they have read the keys again, other replicas sign with it.
    pub async fn rotate_receipt_key(&self, app: &App) -> Result<(), Error> {
        let key = fresh(Purpose::Receipt, "receipt", &self.secret, &*app.clock, &*app.ids);
        let end = key.valid_from.saturating_add(OVERLAP);
        let end = end.map_err(|error| Error::internal("the clock is at its end").with_source(error))?;
        transaction!(app.db, |tx| {
            keys::retire_service(tx, "receipt", end).await?;
            keys::insert_service(tx, &key).await?;
            Ok::<_, Error>(())
        })?;
        self.reload(&app.db).await
    }

    fn ring(&self) -> Arc<Ring> {
        self.ring.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Signs what a receipt's envelope says (its pre-authentication encoding), with the current key. What is said is the
    /// caller's to have checked.
    pub fn sign_receipt(&self, message: &[u8]) -> Signature {
        let ring = self.ring();
        let (key_id, pair) = ring.receipt.last().expect("opened with a key of every purpose");
        Signature { key_id: key_id.clone(), bytes: pair.sign(message).as_ref().to_vec() }
    }

    /// Signs the parts of a URL that must not change; text for its `sig`. Parts are told apart by their lengths, so no other
    /// list of parts has the same signature. The first part says what kind of URL it is.
    pub fn sign_url(&self, parts: &[&str]) -> String {
        let ring = self.ring();
        let key = ring.url.last().expect("opened with a key of every purpose");
        BASE64URL_NOPAD.encode(hmac::sign(key, &joined(parts)).as_ref())
    }

    /// Whether `signature` was made by [`Keys::sign_url`] over exactly these parts, by the current key or a retired one, in
    /// constant time. Ends are the caller's to check.
    pub fn verify_url(&self, parts: &[&str], signature: &str) -> bool {
        let Ok(tag) = BASE64URL_NOPAD.decode(signature.as_bytes()) else { return false };
        let message = joined(parts);
        self.ring().url.iter().any(|key| hmac::verify(key, &message, &tag).is_ok())
    }

    /// Seals a secret that only this service shall read. `context` says what it is and must be the same to open it. Sealing
    /// the same text twice gives two different ones.
    pub fn seal(&self, ids: &dyn Ids, context: &str, plain: &[u8]) -> Vec<u8> {
        let ring = self.ring();
        let (id, key) = ring.seal.last().expect("opened with a key of every purpose");
        let mut sealed = id.to_vec();
        sealed.extend(encrypt(key, ids, context, plain));
        sealed
    }

    /// Opens what [`Keys::seal`] sealed, by whichever of our keys. [`WRONG_SECRET`] when the key is unknown, the context
    /// another, or a bit changed: these are not told apart.
    pub fn open_sealed(&self, context: &str, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, Error> {
        let damaged = || Error::new(WRONG_SECRET, "a sealed value does not open", RESTORE_SECRET);
        let (id, rest) = sealed.split_first_chunk::<SEAL_ID>().ok_or_else(damaged)?;
        let ring = self.ring();
        let key = ring.seal.iter().find(|(known, _)| constant_time::verify_slices_are_equal(known, id).is_ok());
        decrypt(&key.ok_or_else(damaged)?.1, context, rest).ok_or_else(damaged)
    }
}

const RESTORE_SECRET: &str =
    "start with the secret key file that the database was made with, or restore it from its backup";

/// A new key, sealed for SQL. Keys that are not public are named at random, so that an id says nothing of its key.
fn fresh(purpose: Purpose, name: &str, secret: &Secret, clock: &dyn Clock, ids: &dyn Ids) -> ServiceKey {
    let bytes = Zeroizing::new(ids.secret());
    let public_key = (purpose == Purpose::Receipt).then(|| {
        let pair = Ed25519KeyPair::from_seed_unchecked(&*bytes).expect("32 bytes are a seed");
        <[u8; 32]>::try_from(pair.public_key().as_ref()).expect("an Ed25519 public key has 32 bytes")
    });
    let key_id = match &public_key {
        Some(public) => key_id(public),
        None => HEXLOWER.encode(&ids.secret()[..SEAL_ID]),
    };
    ServiceKey {
        sealed: encrypt(&master(secret), ids, &context(name, &key_id), &*bytes),
        key_id,
        purpose: name.to_owned(),
        public_key,
        valid_from: clock.now(),
        valid_until: None,
    }
}

/// First 16 hex digits of the BLAKE3 of a public key; agents name theirs the same way.
pub fn key_id(public: &[u8; 32]) -> String {
    HEXLOWER.encode(&blake3::hash(public).as_bytes()[..8])
}

fn context(purpose: &str, key_id: &str) -> String {
    format!("key {purpose} {key_id}")
}

fn master(secret: &Secret) -> LessSafeKey {
    let derived = Zeroizing::new(blake3::derive_key("dray 2026-11 service keys at rest", &**secret));
    aes(&derived)
}

fn aes(key: &[u8; 32]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("32 bytes are a key"))
}

/// Nonce, then ciphertext with its tag. Nonces are random, 96 bits, which NIST SP 800-38D allows for 2^32 texts of one key:
/// more than a service ever seals.
fn encrypt(key: &LessSafeKey, ids: &dyn Ids, context: &str, plain: &[u8]) -> Vec<u8> {
    let nonce: [u8; NONCE] = *ids.secret().first_chunk().expect("12 of 32");
    let mut text = plain.to_vec();
    key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(context), &mut text)
        .expect("far below the cipher's limit of 64 GiB");
    [&nonce[..], &text].concat()
}

fn decrypt(key: &LessSafeKey, context: &str, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let (nonce, text) = sealed.split_first_chunk::<NONCE>()?;
    let mut text = Zeroizing::new(text.to_vec());
    let nonce = Nonce::assume_unique_for_key(*nonce);
    let length = key.open_in_place(nonce, Aad::from(context), &mut text).ok()?.len();
    text.truncate(length);
    Some(text)
}

/// Each part after its length in 8 bytes.
fn joined(parts: &[&str]) -> Vec<u8> {
    let mut message = Vec::new();
    for part in parts {
        message.extend_from_slice(&(part.len() as u64).to_be_bytes());
        message.extend_from_slice(part.as_bytes());
    }
    message
}

impl Ring {
    /// All or none: one key that does not open means another secret, and a ring without it would refuse what it signed.
    fn open(secret: &Secret, rows: &[ServiceKey]) -> Result<Self, Error> {
        let master = master(secret);
        let mut ring = Self::default();
        for row in rows {
            let wrong = || {
                let detail = format!("key `{}` ({}) does not open", row.key_id, row.purpose);
                Error::new(WRONG_SECRET, detail, RESTORE_SECRET)
            };
            let plain = decrypt(&master, &context(&row.purpose, &row.key_id), &row.sealed).ok_or_else(wrong)?;
            let bytes: Secret = Zeroizing::new(plain.as_slice().try_into().map_err(|_| wrong())?);
            match PURPOSES.iter().find(|(_, name)| *name == row.purpose).map(|(purpose, _)| purpose) {
                Some(Purpose::Receipt) => {
                    let pair = Ed25519KeyPair::from_seed_unchecked(&*bytes).map_err(|_| wrong())?;
                    ring.receipt.push((row.key_id.clone(), pair));
                }
                Some(Purpose::Url) => ring.url.push(hmac::Key::new(hmac::HMAC_SHA256, &*bytes)),
                Some(Purpose::Seal) => {
                    let id = HEXLOWER.decode(row.key_id.as_bytes()).ok().and_then(|id| id.try_into().ok());
                    ring.seal.push((id.ok_or_else(wrong)?, aes(&bytes)));
                }
                None => {} // a newer release made it; it is not ours to use
            }
        }
        Ok(ring)
    }
}

impl App {
    /// Public keys that verify receipts: the service's and the nodes', retired ones too, of all teams: a receipt's holder
    /// has no account. All of them in one answer, read a page at a time. Whose nodes they are, and what those are called, is
    /// not told: anybody may ask.
    pub async fn public_keys(&self) -> Result<PublicKeys, Error> {
        const PAGE: u32 = 1_000;
        let mut session: Tx = self.db.read().await?;
        let mut listed = Vec::new();
        let mut after = String::new();
        loop {
            let page = keys::public_page(&mut session, &after, PAGE).await?;
            let last = page.len() < PAGE as usize;
            after = page.last().map_or(after, |key| key.key_id.clone());
            listed.extend(page.into_iter().map(wire));
            if last {
                return Ok(PublicKeys { keys: listed });
            }
        }
    }
}

fn wire(key: keys::PublicKey) -> PublicKey {
    PublicKey {
        key_id: key.key_id,
        owner: if key.node.is_some() { "node" } else { "service" }.to_owned(),
        node: None,
        algorithm: "ed25519".to_owned(),
        public_key: BASE64.encode(&key.public_key),
        valid_from: key.valid_from.to_string(),
        valid_until: key.valid_until.map(|end| end.to_string()),
    }
}

#[cfg(test)]
mod tests;
