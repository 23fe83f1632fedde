//! The reads of a pull, and the loop of its workers.
//!
//! Two windows are read at a time, two ranges of each: four reads in flight. What a pack does not give damages the files in it and is
//! told with them; only what concerns the whole transfer (the network, the layout gone) ends it.

use super::finish::Event;
use super::resume;
use super::window::{Fetched, Got, Job};
use super::write::Writer;
use crate::client::Error;
use crate::client::context::TransferError;
use crate::client::fetch::Packs;
use bytes::Bytes;
use futures::stream::{self, FuturesUnordered, StreamExt};
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};

/// Windows read at a time: while the reads of one end, those of the next are under way.
const WINDOWS: usize = 2;
/// Reads of one window at a time.
const READS: usize = 2;

/// Reads windows until there are no more, each as a whole and in any order. Ends early when the other side is gone; dropped, it stops.
pub(super) async fn run(
    packs: Arc<Packs>,
    mut windows: tokio::sync::mpsc::Receiver<Job>,
    fetched: SyncSender<Fetched>,
    inbox: SyncSender<Event>,
) {
    let mut running = FuturesUnordered::new();
    let mut open = true;
    while open || !running.is_empty() {
        tokio::select! {
            job = windows.recv(), if open && running.len() < WINDOWS => match job {
                Some(job) => running.push(window(&packs, job)),
                None => open = false,
            },
            Some(done) = running.next() => {
                // Both channels have room for all windows under way, so neither call waits.
                let sent = match done {
                    Ok(done) => fetched.send(done).is_ok(),
                    Err(error) => inbox.send(Event::Failed(error)).is_ok(),
                };
                if !sent {
                    return;
                }
            }
        }
    }
}

/// All reads of a window, answers in the order of the reads. What is one pack's fault stands in its place among them.
async fn window(packs: &Packs, job: Job) -> Result<Fetched, TransferError> {
    let (job, mut held) = held(job).await?;
    held.resize(job.window.reads.len(), None);
    let reads = job.window.reads.iter().zip(held).map(|(read, held)| (read.pack, read.range.clone(), held));
    let reads: Vec<_> = reads.collect();
    let mut parts = Vec::with_capacity(reads.len());
    let answers = reads.into_iter().map(|(pack, range, held)| async move {
        match held {
            Some(chunks) => Ok(Got::Chunks(chunks)),
            None => packs.read(pack, range).await.map(Got::Range),
        }
    });
    let mut answers = stream::iter(answers).buffered(READS);
    while let Some(answer) = answers.next().await {
        parts.push(tell(answer)?);
    }
    drop(answers);
    Ok(Fetched { job, parts })
}

/// What an earlier pull left of the window's files, read by read. Blocks on the disk, so on a thread for that.
async fn held(job: Job) -> Result<(Job, Vec<Option<Vec<Bytes>>>), TransferError> {
    if job.files.values().all(|file| file.resumed().is_none()) {
        return Ok((job, Vec::new()));
    }
    let looked = tokio::task::spawn_blocking(move || {
        let held = resume::held(&job);
        (job, held)
    });
    looked.await.map_err(|_| TransferError::Broken { what: "a look at what is there" })
}

/// What a pack could not give, in words, where that is the pack's fault.
/// An outer error ends the transfer, an inner one damages the window's files of that read.
fn tell(answer: Result<Got, TransferError>) -> Result<Result<Got, String>, TransferError> {
    match answer {
        Ok(got) => Ok(Ok(got)),
        Err(error) if is_pack_fault(&error) => Ok(Err(error.to_string())),
        Err(error) => Err(error),
    }
}

/// Whether an error concerns one pack and not the transfer: then its files are damaged and the others go on. A token that is refused, a
/// service that is busy or a layout that is gone concern everything.
pub(super) fn is_pack_fault(error: &TransferError) -> bool {
    match error {
        TransferError::BadPack { .. } => true,
        TransferError::Api(Error::UrlRefused { status, .. }) => !matches!(status, 429 | 500 | 502..=504),
        TransferError::Api(Error::Refused(problem)) => {
            problem.code != "layout_gone" && !matches!(problem.status, 401 | 403 | 429 | 502..=504)
        }
        _ => false,
    }
}

/// Decodes and writes windows until there are no more. A panic is told as a failure of the transfer: a thread that died in silence
/// would leave the finisher waiting for its window for ever.
pub(super) fn work(mut writer: Writer, fetched: &Mutex<Receiver<Fetched>>, inbox: &SyncSender<Event>) {
    loop {
        let next = fetched.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(next) = next else { return };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| writer.window(next)));
        let event = match done {
            Ok(done) => Event::Done(done),
            Err(_) => Event::Failed(TransferError::Broken { what: "a worker" }),
        };
        if inbox.send(event).is_err() {
            return;
        }
    }
}
