//! JSON documents that calls carry: decoded behind one trait, so that a call is compiled once and not for every document.

use serde::{Serialize, de::DeserializeOwned};
use std::sync::{Mutex, PoisonError};

/// Takes an answer's JSON.
/// Called at most once an attempt, with the whole body; an empty body comes as `null`. An error makes the attempt fail, and a later
/// attempt may call again: what was taken before is replaced.
pub(super) trait Decode: Send + Sync {
    fn take(&self, body: &[u8]) -> serde_json::Result<()>;
}

/// The document that an answer was decoded to.
#[derive(Debug)]
pub(super) struct Decoded<T>(Mutex<Option<T>>);

impl<T> Decoded<T> {
    pub fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// The document of a call that succeeded.
    pub fn into_inner(self) -> T {
        let document = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        document.expect("a call succeeds only once its answer is decoded")
    }
}

impl<T: DeserializeOwned + Send> Decode for Decoded<T> {
    fn take(&self, body: &[u8]) -> serde_json::Result<()> {
        let document = serde_json::from_slice(body)?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(document);
        Ok(())
    }
}

/// Encoded once for all attempts, so that a retry sends the same bytes under the same `Idempotency-Key`.
pub(super) fn encode<B: Serialize + ?Sized>(body: &B) -> Vec<u8> {
    serde_json::to_vec(body).expect("wire types hold only strings, numbers and string-keyed maps")
}
