//! Cuts request bodies that trickle.
//!
//! Only the time spent waiting for the client counts, so a slow store behind us never cuts an honest sender. A body must
//! bring [`FLOOR`] bytes for every second of a window of waiting, or it is cut with [`Stalled`].
//!
//! Against senders that hold a connection and a permit with a byte now and then. An idle limit alone would let them: each
//! byte begins it anew. Here it is bytes by time, so a slow but steady line passes and a trickle does not.

use std::time::{Duration, Instant};

use axum::body::{Body, BodyDataStream, Bytes};
use futures::{StreamExt, stream};

/// Bytes a second that a body must bring while we wait for it.
///
/// 8 kbit/s: below any line that could finish a push, above what keeps a connection open.
const FLOOR: u64 = 1_024;

/// A body that came too slowly.
///
/// Found by `body_error` in the chain of sources, and answered 408.
#[derive(Debug, thiserror::Error)]
#[error("only {came} bytes came in {} s of waiting", waited.as_secs())]
pub struct Stalled {
    came: u64,
    waited: Duration,
}

/// A window ends when `window` of waiting has been used up, and the next begins with nothing.
struct Pace {
    body: BodyDataStream,
    window: Duration,
    /// Time spent waiting for the sender in this window; work of ours between two parts is not in it.
    waited: Duration,
    /// Bytes since the window began.
    came: u64,
}

impl Pace {
    /// A body that ends in time is never cut, however few bytes it brought.
    async fn next(&mut self) -> Option<Result<Bytes, axum::Error>> {
        loop {
            let began = Instant::now();
            let left = self.window.saturating_sub(self.waited);
            let part = tokio::time::timeout(left, self.body.next()).await;
            self.waited += began.elapsed();
            if let Ok(Some(Ok(bytes))) = &part {
                self.came += bytes.len() as u64;
            }
            if self.waited >= self.window && !matches!(part, Ok(None)) {
                let floor = FLOOR.saturating_mul(self.window.as_secs().max(1));
                if self.came < floor {
                    return Some(Err(axum::Error::new(Stalled { came: self.came, waited: self.waited })));
                }
                (self.waited, self.came) = (Duration::ZERO, 0);
            }
            if let Ok(part) = part {
                return part;
            }
        }
    }
}

/// The same body, cut when it trickles. Nothing is buffered; an error of the body's own is passed on.
pub(super) fn paced(body: Body, window: Duration) -> Body {
    let pace = Pace { body: body.into_data_stream(), window, waited: Duration::ZERO, came: 0 };
    Body::from_stream(stream::unfold(pace, |mut pace| async move { Some((pace.next().await?, pace)) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_millis(40);

    /// Parts with pauses before them.
    fn body(parts: Vec<(Duration, usize)>) -> Body {
        let parts = stream::iter(parts).then(|(pause, bytes)| async move {
            tokio::time::sleep(pause).await;
            Ok::<_, std::io::Error>(Bytes::from(vec![0; bytes]))
        });
        Body::from_stream(parts)
    }

    async fn outcome(body: Body) -> Result<usize, axum::Error> {
        axum::body::to_bytes(paced(body, WINDOW), usize::MAX).await.map(|bytes| bytes.len())
    }

    #[tokio::test]
    async fn a_trickle_is_cut_though_every_part_comes_in_time() {
        let error = outcome(body(vec![(WINDOW / 8, 1); 64])).await.unwrap_err();
        let chain = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        assert!(chain.last().unwrap().is::<Stalled>(), "{error:?}");
    }

    #[tokio::test]
    async fn silence_is_cut() {
        assert!(outcome(body(vec![(Duration::from_secs(3_600), 1)])).await.is_err());
    }

    #[tokio::test]
    async fn enough_bytes_in_every_window_pass_and_a_short_body_is_no_trickle() {
        let parts = vec![(WINDOW / 4, 4_096); 12];
        assert_eq!(outcome(body(parts)).await.unwrap(), 12 * 4_096);
        assert_eq!(outcome(body(vec![(Duration::ZERO, 3)])).await.unwrap(), 3);
        assert_eq!(outcome(Body::empty()).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_slow_reader_of_ours_cuts_nobody() {
        let parts = stream::iter((0..4).map(|_| Ok::<_, std::io::Error>(Bytes::from_static(b"x"))));
        let mut read = paced(Body::from_stream(parts), WINDOW).into_data_stream();
        let mut count = 0;
        while let Some(part) = read.next().await {
            part.unwrap();
            count += 1;
            tokio::time::sleep(WINDOW * 2).await;
        }
        assert_eq!(count, 4);
    }
}
