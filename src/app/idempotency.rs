//! Makes a call that creates something safe to repeat: the second call gets the first one's answer.
//!
//! The answer is remembered in the very transaction that creates, so there is no moment at which a crash could leave one
//! without the other. A concurrent duplicate waits for the first (unique key on Postgres, one writer on SQLite).
//!
//! ```text
//! transaction!(self.db, |tx| {
//!     if let Some(earlier) = self.replay(tx, caller.team, idempotency).await? { return Ok(earlier); }
//!     ... create `made` ...
//!     self.remember(tx, caller.team, idempotency, &made).await?;
//!     Ok::<_, Error>(made)
//! })
//! ```
//!
//! Answers are kept sealed, for the time that the settings say; after that the same key is a new call.

use uuid::Uuid;

use super::error::{Code, Error, Kind};
use super::{App, Idempotency};
use crate::db::{Tx, idempotency};

/// A caller's bug, mostly a key that is not made anew for each request: nothing was done.
pub const MISMATCH: Code =
    Code::new(Kind::Invalid, "idempotency_mismatch", "this Idempotency-Key was used for another request");

impl App {
    /// The answer an earlier call with this key got. To be called before anything else in the transaction: until it ends,
    /// other calls with the key wait here. The caller must go on to [`App::remember`] in the same transaction. [`MISMATCH`]
    /// when the key came with another route or body.
    pub async fn replay<T: serde::de::DeserializeOwned>(
        &self,
        tx: &mut Tx,
        team: Uuid,
        call: &Idempotency,
    ) -> Result<Option<T>, Error> {
        let Some(key) = &call.key else { return Ok(None) };
        let Some(earlier) = idempotency::find(tx, team, key).await? else { return Ok(None) };
        if earlier.route != call.route || earlier.digest != call.digest {
            let detail = format!("the key was first used for another body of `{}`", earlier.route);
            return Err(Error::new(MISMATCH, detail, "use a new Idempotency-Key for a new request"));
        }
        let answer = self.keys.open_sealed(&context(team, key), &earlier.answer)?;
        serde_json::from_slice(&answer)
            .map(Some)
            .map_err(|error| Error::internal("a remembered answer cannot be read").with_source(error))
    }

    /// The same before a use case judges what was said: a repeat is answered as the first call was, though what it names may
    /// be gone or mean something else by now. Not instead of [`App::replay`] in the transaction: a concurrent call may be
    /// answered in between.
    pub(super) async fn answered<T: serde::de::DeserializeOwned>(
        &self,
        team: Uuid,
        call: &Idempotency,
    ) -> Result<Option<T>, Error> {
        if call.key.is_none() {
            return Ok(None);
        }
        self.replay(&mut self.db.read().await?, team, call).await
    }

    /// Remembers what this call is answered, secrets that are shown once included. Does nothing without a key. Refusals are
    /// not remembered: a repeat is judged anew.
    pub async fn remember<T: serde::Serialize>(
        &self,
        tx: &mut Tx,
        team: Uuid,
        call: &Idempotency,
        answer: &T,
    ) -> Result<(), Error> {
        let Some(key) = &call.key else { return Ok(()) };
        let json = serde_json::to_vec(answer)
            .map_err(|error| Error::internal("an answer cannot be written as JSON").with_source(error))?;
        let row = idempotency::Answered {
            route: call.route.clone(),
            digest: call.digest,
            answer: self.keys.seal(&*self.ids, &context(team, key), &json),
        };
        Ok(idempotency::insert(tx, team, key, &row, self.clock.now()).await?)
    }
}

fn context(team: Uuid, key: &str) -> String {
    format!("answer {team} {key}")
}
