//! A request's body as use cases see it: bytes as they come, never collected whole.
//!
//! The server brings it with its own limits of length and patience; this file only takes it in pieces that are worth a trip to
//! the blocking pool, or drains it so that the sender hears the answer.

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;

use super::error::{Code, Error, Kind};

/// Bytes gathered before they are looked at.
pub const BATCH_BYTES: usize = 1 << 20;
/// Pieces gathered at most: a sender of many small ones pays with more batches, not with our memory.
const BATCH_PIECES: usize = 512;

/// The longest rest of a body that is taken for nothing: a pack of the usual largest size, 64 MiB, and a little.
const DRAINED: u64 = 65 << 20;

/// A line that broke, mostly: send the same again, whole.
pub const LENGTH_MISMATCH: Code = Code::new(Kind::Malformed, "length_mismatch", "the body is not as long as announced");

/// A body on its way in.
/// Read by one use case, once, from its start. Which errors the stream may hold is the server's choice: a body that is too
/// slow ends with one that says so.
pub struct Body {
    stream: BoxStream<'static, Result<Bytes, Error>>,
    /// What `Content-Length` announced.
    pub length: u64,
    taken: u64,
    /// The stream has ended: it must not be asked again.
    ended: bool,
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Body({} of {} bytes)", self.taken, self.length)
    }
}

impl Body {
    pub fn new(stream: BoxStream<'static, Result<Bytes, Error>>, length: u64) -> Self {
        Self { stream, length, taken: 0, ended: false }
    }

    /// The next bytes, about [`BATCH_BYTES`] of them; empty at the end, which comes after exactly `length` bytes. More or
    /// fewer than announced is [`LENGTH_MISMATCH`]: whoever stores what came must not take the first for the end. May be up
    /// to one piece longer than a batch.
    pub async fn batch(&mut self) -> Result<Vec<Bytes>, Error> {
        let mut batch = Vec::new();
        let mut gathered = 0;
        while gathered < BATCH_BYTES && batch.len() < BATCH_PIECES {
            let Some(piece) = self.piece().await? else { break };
            gathered += piece.len();
            self.taken += piece.len() as u64;
            if !piece.is_empty() {
                batch.push(piece);
            }
            if self.taken > self.length {
                return Err(self.mismatch());
            }
        }
        if batch.is_empty() && self.taken != self.length {
            return Err(self.mismatch());
        }
        Ok(batch)
    }

    /// Takes the rest and forgets it, so that a sender who writes before it reads gets to read the answer. A rest that is
    /// long is left: whoever sends that much is cut off. Errors of the stream end it silently; the answer is decided
    /// already.
    pub async fn drain(&mut self) {
        if self.length.saturating_sub(self.taken) > DRAINED {
            return;
        }
        while self.taken < self.length {
            match self.piece().await {
                Ok(Some(piece)) => self.taken += piece.len() as u64,
                Err(_) | Ok(None) => return,
            }
        }
    }

    async fn piece(&mut self) -> Result<Option<Bytes>, Error> {
        if self.ended {
            return Ok(None);
        }
        let piece = self.stream.next().await.transpose();
        self.ended = !matches!(piece, Ok(Some(_)));
        piece
    }

    fn mismatch(&self) -> Error {
        let detail = format!("`Content-Length` announced {} bytes, and {} came", self.length, self.taken);
        Error::new(LENGTH_MISMATCH, detail, "send the same request again")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(pieces: Vec<Result<Bytes, Error>>, length: u64) -> Body {
        Body::new(futures::stream::iter(pieces).boxed(), length)
    }

    fn piece(length: usize) -> Result<Bytes, Error> {
        Ok(Bytes::from(vec![0; length]))
    }

    #[tokio::test]
    async fn bytes_come_in_batches_and_end_exactly_where_they_should() {
        let mut whole = body((0..5).map(|_| piece(400_000)).collect(), 2_000_000);
        let mut batches = Vec::new();
        loop {
            let batch = whole.batch().await.unwrap();
            if batch.is_empty() {
                break;
            }
            batches.push(batch.iter().map(Bytes::len).sum::<usize>());
        }
        assert_eq!(batches, [1_200_000, 800_000]);
        assert!(whole.batch().await.unwrap().is_empty(), "the end may be asked for again");
    }

    #[tokio::test]
    async fn fewer_or_more_bytes_than_announced_are_an_error() {
        let mut short = body(vec![piece(10)], 11);
        assert_eq!(short.batch().await.unwrap().len(), 1);
        assert_eq!(short.batch().await.unwrap_err().code, LENGTH_MISMATCH);
        let mut long = body(vec![piece(10), piece(2)], 11);
        assert_eq!(long.batch().await.unwrap_err().code, LENGTH_MISMATCH);
        let broken = body(vec![piece(10), Err(Error::internal("cut"))], 20).batch().await;
        assert!(broken.is_err());
    }

    #[tokio::test]
    async fn many_small_pieces_do_not_pile_up() {
        let mut small = body((0..2000).map(|_| piece(1)).collect(), 2000);
        assert_eq!(small.batch().await.unwrap().len(), BATCH_PIECES);
    }

    #[tokio::test]
    async fn a_long_rest_is_not_taken_for_nothing() {
        let mut short = body(vec![piece(10), piece(10)], 20);
        short.drain().await;
        assert_eq!(short.taken, 20);
        let mut long = body(vec![piece(10)], DRAINED + 1);
        long.drain().await;
        assert_eq!(long.taken, 0);
    }
}
