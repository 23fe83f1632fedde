//! A bucket behind a bad line: every fault ends in equal bytes or in a clear error, and no key is written twice.

use std::time::Duration;

use dray::config::StoreSettings;
use dray::store::{Error, Key, Length, PutMode, Settled, Store};

use futures::TryStreamExt;

use crate::store_contract::{bytes, read, write};
use crate::support::fault_proxy::{Answer, Fault, FaultProxy, Rule, Seen};
use crate::support::stores::{fresh, open, s3_settings};
use crate::support::{self, S3};

const MIB: usize = 1 << 20;

struct Bad {
    proxy: FaultProxy,
    store: Store,
    settings: StoreSettings,
    /// The same bucket and prefix over a good line.
    straight: Store,
}

async fn bad_line(change: impl FnOnce(&mut StoreSettings)) -> Option<(Bad, S3)> {
    let s3 = support::s3()?;
    let proxy = FaultProxy::start(&s3.endpoint).await;
    let mut settings = s3_settings(&s3, &proxy.url());
    change(&mut settings);
    let straight = StoreSettings { endpoint: Some(s3.endpoint.clone()), ..settings.clone() };
    Some((Bad { proxy, store: open(&settings).await, straight: open(&straight).await, settings }, s3))
}

fn error_document(code: &str) -> String {
    format!("<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>made up</Message></Error>")
}

fn busy() -> Fault {
    Fault::Answer(Answer::new(503, error_document("SlowDown")).header("retry-after", "0"))
}

fn key() -> Key {
    Key::pack(fresh(), fresh())
}

fn puts(seen: &Seen) -> bool {
    seen.method == "PUT"
}

#[tokio::test]
async fn a_storm_of_503_is_ridden_out_and_a_longer_one_reported() {
    let Some((bad, _)) = bad_line(|_| {}).await else { return };
    let content = bytes(1, 20 * MIB);
    bad.proxy.on(Rule::new("*", "").times(3).does(busy()));
    bad.proxy.on(Rule::new("PUT", "partNumber=2").times(2).does(busy()));
    let stored = key();
    write(&bad.store, &stored, &content, Length::Exact(content.len() as u64)).await.unwrap();
    bad.proxy.on(Rule::new("GET", "").times(2).does(busy()));
    assert!(read(&bad.store, &stored, None).await.unwrap() == content);
    bad.proxy.on(Rule::new("PUT", "").does(busy()));
    bad.proxy.forget();
    let lost = key();
    let error = bad.store.put_small(&lost, content.slice(..1000), PutMode::Create).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { settled: Settled::Yes, .. }) && error.is_retryable(), "{error:?}");
    assert_eq!(bad.proxy.count(puts), 5, "one attempt and four more");
    assert!(matches!(bad.straight.head(&lost).await, Err(Error::NotFound { .. })));
}

#[tokio::test]
async fn an_answer_lost_after_a_put_is_settled_without_a_second_write() {
    let Some((bad, _)) = bad_line(|_| {}).await else { return };
    for content in [bytes(1, 1000), bytes(2, 10 * MIB)] {
        bad.proxy.forget();
        bad.proxy.on(Rule::new("PUT", "packs/").times(1).does(Fault::DropReply));
        let stored = key();
        write(&bad.store, &stored, &content, Length::Exact(content.len() as u64)).await.unwrap();
        assert!(read(&bad.straight, &stored, None).await.unwrap() == content);
        assert_eq!(bad.proxy.count(puts), 1, "settled by HEAD");
        // a race for a key that others won is not taken for our own lost write
        bad.proxy.on(Rule::new("PUT", "packs/").times(1).does(Fault::Drop));
        bad.straight.delete(&stored).await.unwrap();
        bad.straight.put_small(&stored, bytes(9, content.len()), PutMode::Create).await.unwrap();
        let refused = bad.store.put_small(&stored, content, PutMode::Create).await;
        assert!(matches!(refused, Err(Error::AlreadyExists { .. })), "{refused:?}");
    }
    // an overwrite whose answer is lost before the effect is sent again, though the key holds something
    let document = Key::reference(fresh(), fresh(), 0);
    bad.store.put_small(&document, bytes(1, 50), PutMode::Overwrite).await.unwrap();
    bad.proxy.on(Rule::new("PUT", "refs/").times(1).does(Fault::Drop));
    bad.store.put_small(&document, bytes(2, 50), PutMode::Overwrite).await.unwrap();
    assert_eq!(read(&bad.straight, &document, None).await.unwrap(), bytes(2, 50));
}

#[tokio::test]
async fn without_checksums_a_lost_answer_is_settled_by_reading_back() {
    let Some((bad, _)) = bad_line(|settings| settings.checksum = dray::config::store::Checksum::None).await else {
        return;
    };
    bad.proxy.on(Rule::new("PUT", "packs/").times(1).does(Fault::DropReply));
    let (stored, content) = (key(), bytes(1, 100_000));
    write(&bad.store, &stored, &content, Length::Unknown).await.unwrap();
    assert_eq!(bad.proxy.count(puts), 1);
    assert_eq!(bad.proxy.count(|seen| seen.method == "GET"), 1);
    let digest = &bad.proxy.log()[0].headers["x-amz-content-sha256"];
    assert_eq!(digest.len(), 64, "without a checksum the body is signed: {digest}");
}

#[tokio::test]
async fn a_body_cut_anywhere_is_resumed_where_it_got_to() {
    let Some((bad, _)) = bad_line(|_| {}).await else { return };
    let (stored, content) = (key(), bytes(3, 6 * MIB));
    write(&bad.straight, &stored, &content, Length::Exact(content.len() as u64)).await.unwrap();
    for cut in [0, 1, 4_095, 1_234_567, 5 * MIB as u64, 6 * MIB as u64 - 1_001] {
        bad.proxy.forget();
        bad.proxy.on(Rule::new("GET", "packs/").times(1).does(Fault::CutReply(cut)));
        bad.proxy.on(Rule::new("GET", "packs/").times(1).does(Fault::CutReply(cut / 7)));
        let range = 1_000..content.len() as u64;
        assert!(read(&bad.store, &stored, Some(range)).await.unwrap() == content[1_000..], "{cut}");
        let log = bad.proxy.log();
        let wanted: u64 = content.len() as u64 - 1;
        assert_eq!(log[0].headers["range"], format!("bytes=1000-{wanted}"));
        assert!(log[1..].iter().all(|seen| seen.headers.contains_key("if-match")));
        if cut > 1_000_000 {
            assert_ne!(log[1].headers["range"], log[0].headers["range"], "not from the start again");
        }
    }
    // for ever cut: an error, not a short answer
    bad.proxy.on(Rule::new("GET", "packs/").does(Fault::CutReply(10)));
    assert!(matches!(read(&bad.store, &stored, None).await, Err(Error::Unavailable { .. })));
}

#[tokio::test]
async fn an_object_that_changes_while_it_is_read_is_damage() {
    let Some((bad, _)) = bad_line(|_| {}).await else { return };
    let document = Key::reference(fresh(), fresh(), 1);
    bad.straight.put_small(&document, bytes(1, 3 * MIB), PutMode::Create).await.unwrap();
    bad.proxy.on(Rule::new("GET", "refs/").times(1).does(Fault::HangReply(MIB as u64)));
    let reading = read(&bad.store, &document, None);
    let changing = async {
        bad.proxy.wait(|seen| seen.method == "GET", 1).await;
        bad.straight.put_small(&document, bytes(2, 3 * MIB), PutMode::Overwrite).await.unwrap();
    };
    let (got, ()) = futures::join!(reading, changing);
    assert!(matches!(got, Err(Error::Corrupt { .. })), "{got:?}");
}

#[tokio::test]
async fn uploads_cut_at_any_byte_end_well() {
    let Some((bad, _)) = bad_line(|_| {}).await else { return };
    let content = bytes(4, 18 * MIB);
    for (n, cut) in [0, 1, 70_000, 3_333_333, 8 * MIB as u64 - 1].into_iter().enumerate() {
        bad.proxy.on(Rule::new("PUT", "partNumber=1").times(1).does(Fault::CutRequest(cut)));
        bad.proxy.on(Rule::new("PUT", "partNumber=3").times(1).does(Fault::DropReply));
        let stored = key();
        write(&bad.store, &stored, &content, Length::Exact(content.len() as u64)).await.unwrap();
        assert!(read(&bad.straight, &stored, None).await.unwrap() == content, "{n}");
    }
    assert_eq!(bad.straight.orphan_uploads(Duration::ZERO).await.unwrap(), vec![]);
}

#[tokio::test]
async fn a_line_that_hangs_is_given_up_while_a_slow_one_is_not() {
    let Some((bad, _)) = bad_line(|settings| settings.stall_timeout_ms = 400).await else { return };
    let (stored, content) = (key(), bytes(5, 200_000));
    bad.proxy.on(Rule::new("PUT", "packs/").times(1).does(Fault::Hang));
    write(&bad.store, &stored, &content, Length::Exact(200_000)).await.unwrap();
    assert_eq!(bad.proxy.count(puts), 2);
    bad.proxy.on(Rule::new("GET", "packs/").times(1).does(Fault::HangReply(100_000)));
    assert!(read(&bad.store, &stored, None).await.unwrap() == content);
    // a store that thinks, and a reader that is busy with something else for longer than the limit, are no stalls
    bad.proxy.on(Rule::new("GET", "packs/").times(1).does(Fault::Delay(Duration::from_millis(200))));
    let (_, mut stream) = bad.store.get(&stored, None).await.unwrap();
    let mut got = stream.try_next().await.unwrap().unwrap().to_vec();
    tokio::time::sleep(Duration::from_millis(600)).await;
    while let Some(piece) = stream.try_next().await.unwrap() {
        got.extend_from_slice(&piece);
    }
    assert!(got == content);
    assert_eq!(bad.proxy.count(|seen| seen.method == "GET"), 3);
}

#[tokio::test]
async fn an_error_inside_a_200_is_no_success() {
    let Some((bad, _)) = bad_line(|_| {}).await else { return };
    let content = bytes(6, 17 * MIB);
    for code in ["InternalError", "SlowDown", "SomethingNew"] {
        // before the effect: sent again; after it: settled
        for fault in [
            Fault::Answer(Answer::new(200, error_document(code))),
            Fault::AnswerAfter(Answer::new(200, error_document(code))),
        ] {
            bad.proxy.on(Rule::new("POST", "uploadId=").times(1).does(fault));
            let stored = key();
            write(&bad.store, &stored, &content, Length::Exact(content.len() as u64)).await.unwrap();
            assert!(read(&bad.straight, &stored, None).await.unwrap() == content, "{code}");
        }
    }
    // the same for ever is an error, and leaves neither an object nor an upload
    bad.proxy.on(Rule::new("POST", "uploadId=").does(Fault::Answer(Answer::new(200, error_document("InternalError")))));
    let lost = key();
    let error = write(&bad.store, &lost, &content, Length::Exact(content.len() as u64)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { settled: Settled::Unknown, .. }), "{error:?}");
    bad.store.close().await;
    assert!(matches!(bad.straight.head(&lost).await, Err(Error::NotFound { .. })));
    assert_eq!(bad.straight.orphan_uploads(Duration::ZERO).await.unwrap(), vec![]);
}

#[tokio::test]
async fn a_completion_whose_answer_is_lost_is_settled() {
    let Some((bad, _)) = bad_line(|_| {}).await else { return };
    let content = bytes(7, 17 * MIB);
    bad.proxy.on(Rule::new("POST", "uploadId=").times(1).does(Fault::DropReply));
    let stored = key();
    let told = write(&bad.store, &stored, &content, Length::Exact(content.len() as u64)).await.unwrap();
    assert_eq!(bad.proxy.count(|seen| seen.method == "POST" && seen.target.contains("uploadId=")), 1);
    assert!(told.checksum.is_some_and(|checksum| checksum.starts_with("crc64nvme:")));
    assert!(read(&bad.straight, &stored, None).await.unwrap() == content);
}

#[tokio::test]
async fn an_abort_that_fails_at_first_is_tried_again() {
    let Some((bad, _)) = bad_line(|_| {}).await else { return };
    bad.proxy.on(Rule::new("DELETE", "uploadId=").times(3).does(busy()));
    let mut writer = bad.store.writer(&key(), Length::Unknown).await.unwrap();
    writer.write(bytes(8, 33 * MIB)).await.unwrap();
    assert_eq!(bad.straight.orphan_uploads(Duration::ZERO).await.unwrap().len(), 1);
    assert_eq!(bad.straight.orphan_uploads(Duration::from_secs(3600)).await.unwrap(), vec![], "too young");
    drop(writer);
    bad.store.close().await;
    assert_eq!(bad.straight.orphan_uploads(Duration::ZERO).await.unwrap(), vec![]);
    // what a crash leaves is found and freed
    let mut crashed = bad.store.writer(&key(), Length::Unknown).await.unwrap();
    crashed.write(bytes(8, 33 * MIB)).await.unwrap();
    std::mem::forget(crashed);
    for orphan in bad.straight.orphan_uploads(Duration::ZERO).await.unwrap() {
        bad.straight.abort_upload(&orphan).await.unwrap();
        bad.straight.abort_upload(&orphan).await.expect("gone is fine");
    }
    assert_eq!(bad.straight.orphan_uploads(Duration::ZERO).await.unwrap(), vec![]);
}

#[tokio::test]
async fn lapsed_credentials_are_renewed_once() {
    let Some((bad, _)) = bad_line(|_| {}).await else { return };
    for status in [400, 403] {
        bad.proxy.on(Rule::new("PUT", "packs/")
            .times(1)
            .does(Fault::Answer(Answer::new(status, error_document("ExpiredToken")))));
        write(&bad.store, &key(), &bytes(9, 1000), Length::Unknown).await.unwrap();
    }
    bad.proxy.forget();
    bad.proxy.on(Rule::new("PUT", "packs/").does(Fault::Answer(Answer::new(403, error_document("ExpiredToken")))));
    let refused = write(&bad.store, &key(), &bytes(9, 1000), Length::Unknown).await;
    assert!(matches!(refused, Err(Error::Denied { .. })), "{refused:?}");
    assert_eq!(bad.proxy.count(puts), 2);
}

#[tokio::test]
async fn redirects_are_never_followed() {
    let Some((bad, s3)) = bad_line(|_| {}).await else { return };
    let elsewhere = FaultProxy::start(&s3.endpoint).await;
    for status in [301, 302, 307, 308] {
        let answer = Answer::new(status, "").header("location", &format!("{}/stage/x", elsewhere.url()));
        bad.proxy.on(Rule::new("*", "packs/").times(2).does(Fault::Answer(answer)));
        let refused = bad.store.put_small(&key(), bytes(1, 10), PutMode::Create).await;
        let text = refused.as_ref().unwrap_err().to_string();
        assert!(matches!(refused, Err(Error::Denied { .. })) && text.contains("127.0.0.1"), "{text}");
        assert!(matches!(bad.store.get(&key(), None).await.map(drop), Err(Error::Denied { .. })));
    }
    assert_eq!(elsewhere.log().len(), 0, "nothing was sent there, least of all a signature");
}

#[tokio::test]
async fn refusals_say_what_is_wrong() {
    let Some((bad, _)) = bad_line(|_| {}).await else { return };
    let ahead = jiff::Timestamp::from_second(jiff_now().as_second() - 40 * 60).unwrap();
    let date = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&ahead).unwrap();
    let skewed = Answer::new(403, error_document("RequestTimeTooSkewed")).header("date", &date);
    bad.proxy.on(Rule::new("PUT", "packs/").times(1).does(Fault::Answer(skewed)));
    let error = bad.store.put_small(&key(), bytes(1, 10), PutMode::Create).await.unwrap_err();
    assert!(matches!(error, Error::ClockSkew { minutes: 40 }), "{error:?}");
    assert!(error.to_string().contains("40 min ahead"), "{error}");
    bad.proxy.on(Rule::new("PUT", "packs/")
        .times(1)
        .does(Fault::Answer(Answer::new(501, error_document("NotImplemented")))));
    let error = bad.store.put_small(&key(), bytes(1, 10), PutMode::Create).await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    bad.proxy.on(Rule::new("PUT", "packs/").times(1).does(Fault::Answer(Answer::new(507, ""))));
    let error = bad.store.put_small(&key(), bytes(1, 10), PutMode::Create).await.unwrap_err();
    assert!(matches!(error, Error::NoSpace), "{error:?}");
    let wrong_key = StoreSettings { secret_access_key: Some("wrong".to_owned().into()), ..bad.settings.clone() };
    let error = open(&wrong_key).await.put_small(&key(), bytes(1, 10), PutMode::Create).await.unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    bad.proxy
        .on(Rule::new("PUT", "packs/").times(1).does(Fault::Answer(Answer::new(404, error_document("NoSuchBucket")))));
    let error = bad.store.put_small(&key(), bytes(1, 10), PutMode::Create).await.unwrap_err();
    assert!(matches!(error, Error::Settings { field: "url", .. }), "{error:?}");
    let nobody = StoreSettings { endpoint: Some("http://127.0.0.1:9".into()), retries: 1, ..wrong_key };
    let error = open(&nobody).await.put_small(&key(), bytes(1, 10), PutMode::Create).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { settled: Settled::Yes, .. }), "{error:?}");
}

fn jiff_now() -> jiff::Timestamp {
    dray::clock::Clock::now(&dray::clock::SystemClock)
}

#[tokio::test]
async fn no_request_uses_trailers_and_every_body_has_a_checksum() {
    let Some((bad, _)) = bad_line(|_| {}).await else { return };
    for len in [100, 10 * MIB, 40 * MIB] {
        write(&bad.store, &key(), &bytes(1, len), Length::Exact(len as u64)).await.unwrap();
    }
    for seen in bad.proxy.log() {
        assert!(
            !seen.headers.contains_key("x-amz-trailer") && !seen.headers.contains_key("transfer-encoding"),
            "{seen:?}"
        );
        assert!(
            !seen.headers.get("x-amz-content-sha256").is_some_and(|kind| kind.starts_with("STREAMING")),
            "{seen:?}"
        );
        if seen.method == "PUT" {
            let signed = &seen.headers["authorization"];
            assert!(signed.contains("x-amz-checksum-crc64nvme"), "the checksum is signed: {signed}");
        }
    }
}

/// Every kind of fault at random on every request, from a printed seed: each write is whole or an error, each read equal or one.
#[tokio::test]
async fn a_bad_day_loses_nothing() {
    let Some((bad, _)) = bad_line(|settings| settings.stall_timeout_ms = 1_500).await else { return };
    let seed = fresh().as_u64_pair().1 | 1;
    eprintln!("seed {seed}");
    let mut random = seed;
    let mut below = |limit: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % limit
    };
    let mut outcomes = (0, 0);
    for round in 0..24 {
        for _ in 0..below(4) {
            let fault = match below(8) {
                0 => busy(),
                1 => Fault::Drop,
                2 => Fault::DropReply,
                3 => Fault::CutRequest(below(9_000_000)),
                4 => Fault::CutReply(below(2_000_000)),
                5 => Fault::HangReply(below(2_000_000)),
                6 => Fault::AnswerAfter(Answer::new(500, error_document("InternalError"))),
                _ => Fault::Delay(Duration::from_millis(below(300))),
            };
            let method = ["PUT", "GET", "HEAD", "POST", "*"][usize::try_from(below(5)).unwrap()];
            bad.proxy.on(Rule::new(method, "").skip(below(4)).times(1 + below(2)).does(fault));
        }
        let len = [1_000, 300_000, 5_000_000, 17_500_000][usize::try_from(below(4)).unwrap()];
        let (stored, content) = (key(), bytes(round, len));
        match write(&bad.store, &stored, &content, Length::Exact(len as u64)).await {
            Ok(told) => {
                outcomes.0 += 1;
                assert_eq!(told.bytes, len as u64);
                assert!(read(&bad.straight, &stored, None).await.unwrap() == content, "acknowledged is there");
            }
            Err(error) => {
                outcomes.1 += 1;
                assert!(error.is_retryable(), "{error:?}");
                match read(&bad.straight, &stored, None).await {
                    Ok(whole) => assert!(whole == content, "never a part of it"),
                    Err(error) => assert!(matches!(error, Error::NotFound { .. }), "{error:?}"),
                }
                continue;
            }
        }
        match read(&bad.store, &stored, None).await {
            Ok(whole) => assert!(whole == content),
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
    }
    assert!(outcomes.0 > outcomes.1, "most writes get through: {outcomes:?}");
    bad.proxy.clear();
    bad.store.close().await;
    // an upload whose beginning went unanswered has an id nobody was told: only a listing finds it
    for orphan in bad.straight.orphan_uploads(Duration::ZERO).await.unwrap() {
        bad.straight.abort_upload(&orphan).await.unwrap();
    }
    assert_eq!(bad.straight.orphan_uploads(Duration::ZERO).await.unwrap(), vec![]);
}
