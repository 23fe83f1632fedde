//! Pushes: what is sent, what is not sent again, and what happens when things break on the way.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dray::client::push::{PushOptions, PushReport, push};
use dray::client::rate::Limit;
use dray::client::{Context, Error, TransferError};
use dray::clock::{Clock, SystemClock};

use crate::support::TestService;
use crate::support::client::{assert_same, context, context_at, noise, pull_to, push_dir, set_clock};
use crate::support::fault_proxy::{Answer, Fault, FaultProxy, Rule};

fn write(dir: &Path, name: &str, bytes: &[u8]) {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// A17, C6: unchanged trees cost few requests and no bytes; a changed time costs no bytes of content.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unchanged_tree_is_not_sent_again() {
    let service = TestService::sqlite().await;
    set_clock(&service);
    let proxy = FaultProxy::start(&service.url).await;
    let (context, scratch) = (context_at(&service, &proxy.url()), service.scratch());
    let tree = scratch.join("tree");
    for n in 0..400 {
        write(&tree, &format!("d{}/{n}.txt", n % 20), format!("file {n}\n").repeat(50).as_bytes());
    }
    write(&tree, "large", &noise(1, 6 << 20));
    let cached =
        || PushOptions { cache_dir: Some(scratch.join("cache")), ..PushOptions::new("push/same", vec![tree.clone()]) };
    let first = push(&context, cached()).await.unwrap();
    assert_eq!((first.reference.as_deref(), first.unchanged), (Some("push/same@v1"), false));
    // Old enough for the stat cache: it was written by this clock.
    service.clock.set(SystemClock.now() + jiff::SignedDuration::from_secs(60));
    let again = push(&context, cached()).await.unwrap();
    assert_eq!((again.reference.as_deref(), again.unchanged, again.sent_bytes), (Some("push/same@v1"), true, 0));
    proxy.forget();
    // Now the cache is settled: nothing is even read. Proof: bytes changed behind its back, size and times put back, stay unseen.
    let third = push(&context, cached()).await.unwrap();
    assert!(third.unchanged && third.digest == first.digest && third.files == 401);
    assert!(proxy.log().len() < 10, "{} requests", proxy.log().len());
    let rehash = push(&context, PushOptions { rehash: true, ..cached() }).await.unwrap();
    assert!(rehash.unchanged && rehash.sent_bytes == 0 && rehash.reused_bytes == first.bytes);
    // Touched: a new version without any content sent.
    write(&tree, "d1/1.txt", format!("file {}\n", 1).repeat(50).as_bytes());
    proxy.forget();
    let touched = push(&context, cached()).await.unwrap();
    assert_eq!((touched.reference.as_deref(), touched.stored_bytes), (Some("push/same@v2"), 0));
    assert_eq!(proxy.count(|seen| seen.method == "PUT" && seen.target.contains("/packs/")), 0);
}

/// G5: content-defined cuts find their way back; equal bytes are sent once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edits_send_only_what_is_new() {
    let service = TestService::sqlite().await;
    let (context, scratch) = (context(&service), service.scratch());
    let tree = scratch.join("tree");
    let base = noise(9, 40 << 20);
    write(&tree, "f", &base);
    let first = push_dir(&context, "push/edits", &tree).await;
    assert!(first.stored_bytes > 40 << 20);
    let mut edited = base.clone();
    edited.insert(0, 7);
    edited.drain(20 << 20..(20 << 20) + 10);
    edited.extend_from_slice(&noise(10, 1024));
    for (name, bytes) in [("f", &edited), ("renamed", &edited)] {
        let _ = fs::remove_file(tree.join("f"));
        write(&tree, name, bytes);
        let report = push_dir(&context, "push/edits", &tree).await;
        assert!(report.sent_bytes < 1 << 20, "{name}: {} bytes sent", report.sent_bytes);
    }
    // Into another dataset of the team, without a parent: found through the sampled ids.
    let other = push_dir(&context, "push/other", &tree).await;
    assert!(other.stored_bytes < 3 << 20, "{} bytes stored", other.stored_bytes);
    // Copies within one push.
    let copies = scratch.join("copies");
    (0..5).for_each(|n| write(&copies, &format!("c{n}"), &noise(77, 3 << 20)));
    let report = push_dir(&context, "push/copies", &copies).await;
    assert!(report.stored_bytes < 4 << 20, "{} bytes stored", report.stored_bytes);
    assert_eq!(report.reused_bytes, 4 * (3 << 20));
    let dest = scratch.join("dest");
    pull_to(&context, "push/copies", &dest).await;
    assert_same(&copies, &dest);
}

async fn interrupted(service: &TestService, tree: &Path, at: u64) -> (TransferError, u64, Duration) {
    let proxy = FaultProxy::start(&service.url).await;
    let context = context_at(service, &proxy.url());
    let options =
        PushOptions { limit: Limit::Fixed(60_000_000), ..PushOptions::new("push/resume", vec![tree.to_owned()]) };
    let (cancel, running) = (context.cancel.clone(), push(&context, options));
    tokio::pin!(running);
    let sent = |proxy: &FaultProxy| -> u64 {
        proxy.log().iter().filter(|seen| seen.target.contains("/packs/")).map(|seen| seen.body_bytes).sum()
    };
    let mut cancelled = None;
    let mut look = tokio::time::interval(Duration::from_millis(20));
    loop {
        tokio::select! {
            ended = &mut running => {
                let took = cancelled.map_or(Duration::ZERO, |at: Instant| at.elapsed());
                return (ended.unwrap_err(), sent(&proxy), took);
            }
            _ = look.tick() => if cancelled.is_none() && sent(&proxy) > at {
                cancel.cancel();
                cancelled = Some(Instant::now());
            }
        }
    }
}

/// A1, A15: an interrupted push ends soon, and the next one, on another machine, sends at most a little again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_push_goes_on_where_it_stopped() {
    let service = TestService::sqlite().await;
    let scratch = service.scratch();
    let tree = scratch.join("tree");
    let size = 100 << 20;
    write(&tree, "big", &noise(4, size));
    let (error, first, took) = interrupted(&service, &tree, 50 << 20).await;
    assert!(matches!(error, TransferError::Api(Error::Interrupted)), "{error}");
    assert_eq!(error.exit(), dray::client::Exit::Interrupted);
    assert!(took < Duration::from_secs(3), "{took:?}");
    service.get("/v1/resolve?ref=push/resume").await.expect(404);
    let second = push_dir(&context(&service), "push/resume", &tree).await;
    let all = first + second.sent_bytes;
    assert!(all as f64 <= size as f64 * 1.05, "{first} + {} of {size} bytes sent", second.sent_bytes);
    let dest = scratch.join("dest");
    pull_to(&context(&service), "push/resume", &dest).await;
    assert_same(&tree, &dest);
}

/// A12, A13, A14: cuts, hangs, lost answers and storms of 503 end well, and nothing is stored twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_between_client_and_service() {
    let service = TestService::sqlite().await;
    let proxy = FaultProxy::start(&service.url).await;
    let (context, scratch) = (context_at(&service, &proxy.url()), service.scratch());
    let tree = scratch.join("tree");
    write(&tree, "big", &noise(5, 30 << 20));
    (0..50).for_each(|n| write(&tree, &format!("small/{n}"), &noise(100 + n, 5_000)));
    proxy.on(Rule::new("PUT", "/packs/").times(2).does(Fault::CutRequest(1_000_000)));
    proxy.on(Rule::new("PUT", "/packs/").times(1).does(Fault::DropReply));
    proxy.on(Rule::new("PUT", "/packs/").times(1).does(Fault::Hang));
    proxy.on(Rule::new("PUT", "/packs/").times(3).does(Fault::Answer(Answer::new(503, "busy"))));
    proxy.on(Rule::new("POST", "/known").times(1).does(Fault::DropReply));
    proxy.on(Rule::new("POST", "/v1/uploads").times(1).does(Fault::DropReply));
    proxy.on(Rule::new("POST", "/commit").times(1).does(Fault::DropReply));
    proxy.on(Rule::new("PUT", "/tree/").times(1).does(Fault::DropReply));
    let report = push_dir(&context, "push/faults", &tree).await;
    assert_eq!(report.reference.as_deref(), Some("push/faults@v1"));
    assert!(report.sent_bytes > report.stored_bytes, "retries are counted");
    proxy.clear();
    let list = service.get("/v1/versions?dataset=push/faults").await.expect(200);
    assert_eq!(list.json()["items"].as_array().unwrap().len(), 1);
    proxy.on(Rule::new("GET", "/v1/packs/").times(3).does(Fault::CutReply(700_000)));
    proxy.on(Rule::new("GET", "/v1/packs/").times(1).does(Fault::HangReply(100_000)));
    proxy.on(Rule::new("GET", "/v1/packs/").times(1).does(Fault::Answer(Answer::new(503, "busy"))));
    let dest = scratch.join("dest");
    pull_to(&context, "push/faults", &dest).await;
    assert_same(&tree, &dest);
}

/// B70: a file that changes under the reader is a failed item, everything else goes along.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_keeps_changing_is_named() {
    let service = TestService::sqlite().await;
    let (context, scratch) = (context(&service), service.scratch());
    let tree = scratch.join("tree");
    write(&tree, "a-good", b"good");
    write(&tree, "growing", &noise(1, 60 << 20));
    write(&tree, "z-good", b"good too");
    let stop = Arc::new(AtomicBool::new(false));
    let writer = std::thread::spawn({
        let (stop, path) = (Arc::clone(&stop), tree.join("growing"));
        move || {
            let mut file = fs::File::options().append(true).open(path).unwrap();
            while !stop.load(Ordering::Relaxed) {
                file.write_all(b"more").unwrap();
                std::thread::yield_now();
            }
        }
    });
    let report = push_dir(&context, "push/changing", &tree).await;
    let refused =
        push(&context, PushOptions { all_or_nothing: true, ..PushOptions::new("push/all", vec![tree.clone()]) }).await;
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    assert_eq!(report.failed.len(), 1);
    assert_eq!((report.failed[0].path.as_str(), report.failed[0].reason.as_str()), ("growing", "changed"));
    assert!(report.incomplete && report.files == 2 && report.reference.is_some());
    let Err(TransferError::SomeFailed { failed: 1, report }) = refused else { panic!("{refused:?}") };
    assert_eq!(report.failed[0].path, "growing");
    service.get("/v1/resolve?ref=push/all").await.expect(404);
    // The latest complete version: none yet. When the file holds still, there is one.
    let healed = push_dir(&context, "push/changing", &tree).await;
    assert!(!healed.incomplete && healed.reference.as_deref() == Some("push/changing@v2"));
}

/// B6: what no tree can hold is a failed item too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_is_too_deep_is_named() {
    let service = TestService::sqlite().await;
    let (context, scratch) = (context(&service), service.scratch());
    let tree = scratch.join("tree");
    let deep = (0..300).fold(tree.clone(), |path, _| path.join("d"));
    fs::create_dir_all(&deep).unwrap();
    write(&tree, "z", b"fine");
    let report = push_dir(&context, "push/deep", &tree).await;
    assert_eq!((report.failed.len(), report.failed[0].reason.as_str(), report.incomplete), (1, "too_deep", true));
    assert_eq!((report.files, report.dirs), (1, 256));
}

fn counts(report: &PushReport) -> (u64, u64, u64, u64) {
    (report.files, report.dirs, report.symlinks, report.bytes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dry_run_tells_and_sends_nothing() {
    let service = TestService::sqlite().await;
    let (context, scratch) = (context(&service), service.scratch());
    let tree = scratch.join("tree");
    write(&tree, "a/b", &noise(1, 3 << 20));
    let dry = |context: Context| {
        let options = PushOptions { dry_run: true, ..PushOptions::new("push/dry", vec![tree.clone()]) };
        async move { push(&context, options).await.unwrap() }
    };
    let before = dry(context.clone()).await;
    assert_eq!((before.sent_bytes, before.reference.is_none(), before.dry_run), (0, true, true));
    assert!(before.stored_bytes > 3 << 20);
    service.get("/v1/resolve?ref=push/dry").await.expect(404);
    let real = push_dir(&context, "push/dry", &tree).await;
    assert_eq!((counts(&before), &before.digest), (counts(&real), &real.digest));
    let after = dry(context).await;
    assert!(after.unchanged && after.stored_bytes == 0);
}

/// G1, A14: nothing is visible before the commit, and an aborted upload fences who still sends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fenced_push_ends_with_that_reason() {
    let service = TestService::sqlite().await;
    let proxy = FaultProxy::start(&service.url).await;
    let (context, scratch) = (context_at(&service, &proxy.url()), service.scratch());
    let tree = scratch.join("tree");
    write(&tree, "big", &noise(6, 12 << 20));
    proxy.on(Rule::new("PUT", "/layout/").times(1).does(Fault::Delay(Duration::from_millis(300))));
    let running = push(&context, PushOptions::new("push/fenced", vec![tree.clone()]));
    tokio::pin!(running);
    let abort = async {
        proxy.wait(|seen| seen.target.contains("/layout/"), 1).await;
        let target = proxy.log().into_iter().find(|seen| seen.target.contains("/layout/")).unwrap().target;
        let upload = target.split('/').nth(3).unwrap().to_owned();
        service.delete(&format!("/v1/uploads/{upload}")).await.expect(204);
    };
    let (ended, ()) = tokio::join!(&mut running, abort);
    let error = ended.unwrap_err();
    assert!(matches!(error.code(), "fenced" | "upload_closed" | "upload_gone" | "aborted"), "{} {error}", error.code());
    service.get("/v1/resolve?ref=push/fenced").await.expect(404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusable_paths_are_refused_before_anything_is_asked() {
    let service = TestService::sqlite().await;
    let proxy = FaultProxy::start(&service.url).await;
    let (context, scratch) = (context_at(&service, &proxy.url()), service.scratch());
    let missing = push(&context, PushOptions::new("push/none", vec![scratch.join("missing")])).await.unwrap_err();
    assert_eq!((missing.code(), missing.exit()), ("source_unreadable", dray::client::Exit::Failed));
    assert!(proxy.log().is_empty());
}
