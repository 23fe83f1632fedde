//! Reading an object of a bucket. A body that breaks off is resumed from where it got to, only if the object is still the same.
//!
//! Sameness is told by the ETag: the resumption asks with `If-Match` and compares the answer's. A store that sends no ETag
//! gives nothing to compare, and the caller's digest has to find a mixture. Memory: the piece at hand and what the
//! connection buffers.

use std::ops::Range;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{GetOptions, GetRange, GetResult, ObjectStore};

use super::judge::{Failure, Next, Tries};
use super::{S3, meta};
use crate::store::{Error, Key, Meta, Result, Settled, Stream};

/// So many bytes further, earlier failures are forgiven.
///
/// So a body of any size survives any number of breaks, as long as it gets on between them.
const PROGRESS: u64 = 1 << 20;

/// What a resumed body needs; clones share connections.
struct Reading {
    s3: Source,
    key: Key,
    e_tag: Option<String>,
    /// What the caller has not got yet, in bytes of the object.
    left: Range<u64>,
    body: stream::BoxStream<'static, object_store::Result<Bytes>>,
    tries: Tries,
    /// Bytes since the last break; above [`PROGRESS`] the tries begin anew.
    since_failure: u64,
}

/// The parts of a store that outlive the call.
#[derive(Clone)]
struct Source {
    bucket: object_store::aws::AmazonS3,
    path: object_store::path::Path,
    credentials: std::sync::Arc<super::Credentials>,
}

/// An empty range asks for the size first: S3 has no way to say it. A range beyond the end is refused here even where the
/// store answers with less, since a caller who gets fewer bytes than asked would take them for all.
pub(super) async fn open(s3: &S3, key: &Key, range: Option<Range<u64>>) -> Result<(Meta, Stream<Bytes>)> {
    if let Some(Range { start, end }) = range.clone().filter(|range| range.start >= range.end) {
        return Err(Error::Range { key: key.clone(), start, end, size: s3.head(key).await?.size });
    }
    let source =
        Source { bucket: s3.bucket.clone(), path: s3.path(key), credentials: std::sync::Arc::clone(&s3.credentials) };
    let mut tries = s3.tries();
    let result = loop {
        let options = GetOptions { range: range.clone().map(GetRange::Bounded), ..GetOptions::default() };
        match source.bucket.get_opts(&source.path, options).await.map_err(|error| Failure::of_get(key, error)) {
            Ok(result) => break result,
            Err(Failure { error: Error::Range { size, .. }, .. }) => {
                let Range { start, end } = range.unwrap_or_default();
                let size = if size > 0 { size } else { s3.head(key).await?.size };
                return Err(Error::Range { key: key.clone(), start, end, size });
            }
            Err(failure) => tries.again(failure, &source.credentials).await?,
        }
    };
    let meta = meta(&result.meta);
    if let Some(Range { start, end }) = range.filter(|range| *range != result.range) {
        // a range that reaches beyond the end is answered by less than was asked
        return Err(Error::Range { key: key.clone(), start, end, size: meta.size });
    }
    let left = result.range.clone();
    let reading = Reading {
        s3: source,
        key: key.clone(),
        e_tag: meta.e_tag.clone(),
        left,
        body: result.into_stream(),
        tries,
        since_failure: 0,
    };
    let stream =
        stream::try_unfold(
            reading,
            |mut reading| async move { Ok(reading.next().await?.map(|piece| (piece, reading))) },
        );
    Ok((meta, stream.boxed()))
}

impl Reading {
    /// The next piece as the network gave it; none once the range is complete. More bytes than asked are damage.
    async fn next(&mut self) -> Result<Option<Bytes>> {
        while !self.left.is_empty() {
            let failure = match self.body.try_next().await {
                Ok(Some(piece)) if piece.len() as u64 > self.left.end - self.left.start => {
                    return Err(Error::Corrupt {
                        key: self.key.clone(),
                        detail: "the store sent more than was asked".into(),
                    });
                }
                Ok(Some(piece)) => {
                    self.left.start += piece.len() as u64;
                    self.since_failure += piece.len() as u64;
                    if self.since_failure > PROGRESS {
                        self.tries.reset();
                        self.since_failure = 0;
                    }
                    return Ok(Some(piece));
                }
                Ok(None) => cut("its answer ended early", None),
                Err(error) => cut("its answer broke off", Some(error)),
            };
            self.since_failure = 0;
            self.tries.again(failure, &self.s3.credentials).await?;
            self.reopen().await?;
        }
        Ok(None)
    }

    /// A changed object is [`Error::Corrupt`]: keys are written once, so it can only be damage.
    async fn reopen(&mut self) -> Result<()> {
        loop {
            let options = GetOptions {
                range: Some(GetRange::Bounded(self.left.clone())),
                if_match: self.e_tag.clone(),
                ..GetOptions::default()
            };
            match self
                .s3
                .bucket
                .get_opts(&self.s3.path, options)
                .await
                .map_err(|error| Failure::of_get(&self.key, error))
            {
                Ok(result) if self.is_same(&result) => {
                    self.body = result.into_stream();
                    return Ok(());
                }
                Ok(_) | Err(Failure { error: Error::AlreadyExists { .. }, .. }) => {
                    return Err(Error::Corrupt {
                        key: self.key.clone(),
                        detail: "it changed while it was read".into(),
                    });
                }
                Err(failure) => self.tries.again(failure, &self.s3.credentials).await?,
            }
        }
    }

    fn is_same(&self, result: &GetResult) -> bool {
        result.range == self.left && result.meta.e_tag == self.e_tag
    }
}

/// A body that ended is always worth another try; a GET changes nothing.
fn cut(detail: &str, source: Option<object_store::Error>) -> Failure {
    let source = source.map(|error| Box::new(error) as crate::store::error::Cause);
    Failure {
        error: Error::Unavailable { detail: detail.to_owned(), settled: Settled::Yes, source },
        next: Next::Again { after: None },
        settled: Settled::Yes,
    }
}
