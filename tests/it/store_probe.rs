//! What the probe says of stores that keep their word, and of those that do not.

use std::sync::Arc;
use std::time::Duration;

use dray::clock::{Clock, ManualClock, SystemClock};
use dray::config::StoreSettings;
use dray::store::probe::{Depth, Report, Verdict};
use dray::store::{Kind, Prefix, Store};
use futures::TryStreamExt;

use crate::support;
use crate::support::fault_proxy::{Answer, Fault, FaultProxy, Rule};
use crate::support::stores::{fresh, local_settings, open, s3_settings};

async fn leaves_nothing(store: &Store) {
    let left: Vec<_> = store.list(Prefix::all(Kind::Probe)).try_collect().await.unwrap();
    assert_eq!(left, vec![]);
    assert_eq!(store.orphan_uploads(Duration::ZERO).await.unwrap(), vec![]);
}

fn verdict(report: &Report, name: &str) -> Verdict {
    report.checks.iter().find(|check| check.name == name).map(|check| check.verdict).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_local_directory_passes() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&local_settings(&dir)).await;
    let report = store.probe(fresh(), Depth::Full).await;
    assert!(report.checks.iter().all(|check| check.verdict == Verdict::Ok || check.name == "disk"), "{report:#?}");
    assert_eq!(report.refuses(), None);
    leaves_nothing(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_real_s3_server_passes_every_check() {
    let Some(s3) = support::s3() else { return };
    let store = open(&s3_settings(&s3, &s3.endpoint)).await;
    let report = store.probe(fresh(), Depth::Full).await;
    assert!(report.checks.len() >= 15, "{report:#?}");
    assert!(report.checks.iter().all(|check| check.verdict == Verdict::Ok), "{report:#?}");
    eprintln!("{}", serde_json::to_string_pretty(&report).unwrap());
    leaves_nothing(&store).await;
    let quick = store.probe(fresh(), Depth::Quick).await;
    assert_eq!(quick.verdict, Verdict::Ok, "{quick:#?}");
    leaves_nothing(&store).await;
}

#[tokio::test]
async fn a_store_that_refuses_or_changes_bytes_is_fatal_in_words() {
    let Some(s3) = support::s3() else { return };
    let proxy = FaultProxy::start(&s3.endpoint).await;
    let settings = StoreSettings { retries: 1, ..s3_settings(&s3, &proxy.url()) };
    let store = open(&settings).await;
    let framed = b"186a0;chunk-signature=ab01\r\nbytes\r\n0;chunk-signature=cd\r\n\r\n".to_vec();
    for (fault, method, check, words) in [
        (
            Fault::Answer(Answer::new(501, "<Error><Code>NotImplemented</Code></Error>")),
            "PUT",
            "write",
            "NotImplemented",
        ),
        (Fault::Answer(Answer::new(403, "<Error><Code>AccessDenied</Code></Error>")), "PUT", "write", "AccessDenied"),
        (Fault::Answer(Answer::new(503, "")), "*", "write", "503"),
        (Fault::Answer(Answer::new(200, framed).header("etag", "\"x\"")), "GET", "read_after_write", "framing"),
        (Fault::Answer(Answer::new(200, "other").header("etag", "\"x\"")), "GET", "read_after_write", "5 came back"),
        (Fault::Answer(Answer::new(404, "")), "GET", "read_after_write", "cannot be read"),
    ] {
        proxy.on(Rule::new(method, "probe/").does(fault));
        let report = store.probe(fresh(), Depth::Full).await;
        let reason = report.refuses().unwrap();
        assert!(reason.contains(&format!("`{check}`")) && reason.contains(words), "{reason}");
        assert_eq!(report.verdict, Verdict::Fatal);
        proxy.clear();
    }
    proxy.on(Rule::new("POST", "uploads").does(Fault::Answer(Answer::new(501, ""))));
    proxy.on(Rule::new("DELETE", "probe/").times(1).does(Fault::Answer(Answer::new(403, ""))));
    let report = store.probe(fresh(), Depth::Full).await;
    assert_eq!((verdict(&report, "multipart"), verdict(&report, "delete")), (Verdict::Fatal, Verdict::Degraded));
    assert_eq!(verdict(&report, "paging"), Verdict::Ok, "one failed check does not hide the others");
}

#[tokio::test]
async fn a_wrong_clock_is_told_by_how_much() {
    let Some(s3) = support::s3() else { return };
    let ahead = SystemClock.now().saturating_add(jiff::SignedDuration::from_mins(40)).unwrap();
    let clock = Arc::new(ManualClock::new(ahead));
    let store = Store::open(&s3_settings(&s3, &s3.endpoint), clock).await.unwrap();
    let report = store.probe(fresh(), Depth::Quick).await;
    let check = report.checks.iter().find(|check| check.name == "clock").unwrap();
    assert_eq!((check.verdict, check.detail.as_str()), (Verdict::Degraded, "your clock is 40 min ahead"));
}
