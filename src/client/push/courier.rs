//! The async end of the pipeline: asks the service, fetches indexes, sends packs.
//!
//! Commands come from the ordering thread, answers go back into its inbox, whose room is larger than what can be under way, so
//! that giving an answer never waits. Two packs are in flight at most: the ordering thread sends no third. When the caller
//! cancels, packs under way have [`GRACE`] to arrive, since what is acknowledged need not be sent again.
//!
//! It decides nothing: what is asked, and when, is the ordering thread's. A failure of one command ends the push, since retries are
//! behind it already.

use super::messages::{Command, Event};
use super::pack::Sealed;
use crate::api::datasets::PackInfo;
use crate::api::uploads::{EPOCH_HEADER, Known, KnownPacks, Upload};
use crate::client::api::{Api, route};
use crate::client::context::TransferError;
use crate::client::transfer::{Body, Pace, Put};
use crate::client::{Context, Error, index};
use crate::content::digest::Digest;
use crate::content::pack::{PackId, PackIndex};
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use reqwest::header::{HeaderMap, HeaderValue};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Receiver;
use tokio_util::sync::CancellationToken;

/// How long packs under way may go on after the caller has cancelled.
const GRACE: Duration = Duration::from_secs(2);

/// The upload that everything goes to; none on a dry run: then no chunk is known and no pack is sent, while indexes of the
/// parent's packs are fetched all the same.
#[derive(Debug, Clone)]
pub(super) struct Destination {
    pub upload: Option<Arc<Upload>>,
    /// Body bytes of packs and documents, retries included; the meter's.
    pub sent: Arc<AtomicU64>,
    pub pace: Option<Arc<dyn Pace>>,
}

/// Runs until the ordering thread is gone. Every command is answered by one event, in any order, unless that thread left before.
pub(super) async fn run(
    context: &Context,
    to: &Destination,
    mut commands: Receiver<Command>,
    inbox: SyncSender<Event>,
) {
    let late = CancellationToken::new();
    let api = context.api.cancelled_by(late.clone());
    let mut running: FuturesUnordered<BoxFuture<'_, Event>> = FuturesUnordered::new();
    let mut stopped = false;
    let grace = async {
        context.cancel.cancelled().await;
        tokio::time::sleep(GRACE).await;
        late.cancel();
    };
    tokio::pin!(grace);
    let mut grace_over = false;
    loop {
        tokio::select! {
            command = commands.recv() => match command {
                Some(command) => running.push(Box::pin(act(api.clone(), to, command))),
                None => return,
            },
            Some(event) = running.next() => {
                if inbox.send(event).is_err() {
                    return;
                }
            }
            () = context.cancel.cancelled(), if !stopped => {
                stopped = true;
                if inbox.send(Event::Stop).is_err() {
                    return;
                }
            }
            () = &mut grace, if !grace_over => grace_over = true,
        }
    }
}

/// A failed command becomes [`Event::Failed`], so the loop above never fails itself.
async fn act(api: Api, to: &Destination, command: Command) -> Event {
    let done = match command {
        Command::Ask { group, chunks } => ask(&api, to, chunks).await.map(|packs| Event::Known { group, packs }),
        Command::Load { group, packs } => load(&api, packs).await.map(|indexes| Event::Loaded { group, indexes }),
        Command::Put(pack) => {
            let (began, bytes) = (Instant::now(), pack.bytes);
            put(&api, to, pack).await.map(|()| Event::Sent { bytes, took: began.elapsed() })
        }
    };
    done.unwrap_or_else(Event::Failed)
}

/// 4,096 ids in one question, which is what the service takes.
async fn ask(api: &Api, to: &Destination, chunks: Vec<Digest>) -> Result<Vec<PackInfo>, TransferError> {
    let Some(upload) = &to.upload else { return Ok(Vec::new()) };
    let mut packs = Vec::new();
    for chunks in chunks.chunks(4_096) {
        let body = Known { epoch: upload.epoch, chunks: chunks.iter().map(Digest::to_string).collect() };
        let path = route(&["v1", "uploads", &upload.id, "known"], &[]);
        packs.extend(api.post::<_, KnownPacks>(&path, &body).await?.packs);
    }
    Ok(packs)
}

/// Four at a time. An index that is not there any more, or is damaged, is left out: its chunks are sent again.
async fn load(api: &Api, packs: Vec<PackId>) -> Result<Vec<PackIndex>, TransferError> {
    let mut fetches = futures::stream::iter(packs.into_iter().map(|pack| index::fetch(api, pack))).buffer_unordered(4);
    let mut indexes = Vec::new();
    while let Some(fetched) = fetches.next().await {
        match fetched {
            Ok(index) => indexes.push(index),
            Err(TransferError::Api(Error::Refused(problem))) if matches!(problem.status, 404 | 409 | 410) => {}
            Err(TransferError::BadPack { pack, why }) => {
                tracing::warn!(%pack, why, "a pack's index is damaged and is not used")
            }
            Err(error) => return Err(error),
        }
    }
    Ok(indexes)
}

/// Idempotent by the pack's id: a repeat of an acknowledged pack is answered alike.
async fn put(api: &Api, to: &Destination, pack: Sealed) -> Result<(), TransferError> {
    let Some(upload) = &to.upload else { return Ok(()) };
    let id = pack.id.to_string();
    let path = route(&["v1", "uploads", &upload.id, "packs", &id], &[]);
    let put = Put {
        path: &path,
        headers: epoch(upload),
        body: Body::segments(pack.body),
        sent: Arc::clone(&to.sent),
        pace: to.pace.clone(),
    };
    let stored: PackInfo = api.put_stream(put).await?;
    if stored.id != id {
        let why = format!("the service stored it as `{}`", stored.id);
        return Err(TransferError::BadPack { pack: pack.id, why });
    }
    Ok(())
}

/// The header that every PUT of an upload carries: once the upload was reopened or ended by another, a late PUT is refused by it.
pub(super) fn epoch(upload: &Upload) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(EPOCH_HEADER, HeaderValue::from(upload.epoch));
    headers
}
