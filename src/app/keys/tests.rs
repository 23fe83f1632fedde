//! Keys survive restarts, open with their secret only, and tell every change of what they signed.

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};

use super::*;
use crate::clock::{ManualClock, RandomIds};
use crate::db::Options;

async fn database(directory: &tempfile::TempDir) -> Db {
    let url = format!("sqlite:{}", directory.path().join("keys.sqlite").display());
    Db::open(&url, Options::default()).await.unwrap()
}

fn secret(byte: u8) -> Secret {
    Zeroizing::new([byte; 32])
}

async fn open(db: &Db, byte: u8) -> Result<Keys, Error> {
    Keys::open(db, secret(byte), &ManualClock::default(), &RandomIds).await
}

#[tokio::test]
async fn keys_are_the_same_after_a_restart_and_open_with_their_secret_only() {
    let directory = tempfile::tempdir().unwrap();
    let db = database(&directory).await;
    assert!(!Keys::exist(&db).await.unwrap());
    let first = open(&db, 7).await.unwrap();
    assert!(Keys::exist(&db).await.unwrap());
    let again = open(&db, 7).await.unwrap();
    let signature = first.sign_url(&["GET", "a"]);
    assert!(again.verify_url(&["GET", "a"], &signature));
    assert_eq!(first.sign_receipt(b"x"), again.sign_receipt(b"x"));
    let error = open(&db, 8).await.unwrap_err();
    assert_eq!(error.code, WRONG_SECRET);
}

#[tokio::test]
async fn a_url_signature_holds_for_exactly_its_parts() {
    let directory = tempfile::tempdir().unwrap();
    let keys = open(&database(&directory).await, 7).await.unwrap();
    let signature = keys.sign_url(&["pack", "ab", "c"]);
    assert!(keys.verify_url(&["pack", "ab", "c"], &signature));
    for other in [&["pack", "a", "bc"][..], &["pack", "abc"], &["pack", "ab", "c", ""], &["pack", "ab", "d"]] {
        assert!(!keys.verify_url(other, &signature), "{other:?}");
    }
    for wrong in ["", "!", &signature[1..], &format!("{signature}A")] {
        assert!(!keys.verify_url(&["pack", "ab", "c"], wrong), "{wrong}");
    }
}

#[tokio::test]
async fn sealed_values_open_in_their_context_and_undamaged_only() {
    let directory = tempfile::tempdir().unwrap();
    let keys = open(&database(&directory).await, 7).await.unwrap();
    let sealed = keys.seal(&RandomIds, "callback 1", b"whsec");
    assert_eq!(keys.open_sealed("callback 1", &sealed).unwrap().as_slice(), b"whsec");
    assert!(keys.open_sealed("callback 2", &sealed).is_err());
    assert_ne!(sealed, keys.seal(&RandomIds, "callback 1", b"whsec"), "a nonce is never used twice");
    for at in 0..sealed.len() {
        let mut damaged = sealed.clone();
        damaged[at] ^= 1;
        assert!(keys.open_sealed("callback 1", &damaged).is_err(), "byte {at}");
        assert!(keys.open_sealed("callback 1", &sealed[..at]).is_err(), "first {at} bytes");
    }
}

#[tokio::test]
async fn a_retired_key_stays_listed_and_verifies_what_it_signed() {
    let directory = tempfile::tempdir().unwrap();
    let db = database(&directory).await;
    let clock = Arc::new(ManualClock::default());
    let keys = open(&db, 7).await.unwrap();
    let store = crate::config::StoreSettings {
        url: directory.path().join("store").display().to_string(),
        ..Default::default()
    };
    let store = crate::store::Store::open(&store, clock.clone()).await.unwrap();
    let data = crate::app::data::Data::for_store(&store);
    let app = App {
        db,
        store,
        clock: clock.clone(),
        ids: Arc::new(RandomIds),
        settings: Default::default(),
        keys,
        data,
        webhooks: crate::webhook::Webhooks::open(&Default::default()).unwrap(),
        origin: String::new(),
    };
    let old = app.keys.sign_receipt(b"said");
    clock.advance(std::time::Duration::from_secs(60));
    app.keys.rotate_receipt_key(&app).await.unwrap();
    let new = app.keys.sign_receipt(b"said");
    assert_ne!(old.key_id, new.key_id);
    let listed = app.public_keys().await.unwrap().keys;
    assert_eq!(listed.len(), 2);
    for (signature, retired) in [(&old, true), (&new, false)] {
        let key = listed.iter().find(|key| key.key_id == signature.key_id).unwrap();
        assert_eq!((key.owner.as_str(), key.valid_until.is_some()), ("service", retired));
        let public = BASE64.decode(key.public_key.as_bytes()).unwrap();
        assert_eq!(key_id(public.as_slice().try_into().unwrap()), key.key_id);
        UnparsedPublicKey::new(&ED25519, public).verify(b"said", &signature.bytes).unwrap();
    }
}
