//! Uploads that a crash left open in a bucket, as a made-up answer lists them: found however many there are, and aborted once they are
//! old.

use std::time::Duration;

use dray::config::StoreSettings;
use dray::store::Key;

use crate::support::fault_proxy::{Answer, Fault, FaultProxy, Rule, Seen};
use crate::support::stores::{fresh, open, s3_settings};
use crate::support::{self, Builder, Engine, S3};

/// A store whose listings are made up by rules, its settings and its prefix.
async fn made_up(s3: &S3) -> (FaultProxy, StoreSettings, String) {
    let proxy = FaultProxy::start(&s3.endpoint).await;
    let settings = s3_settings(s3, &proxy.url());
    let prefix = settings.url.rsplit('/').next().unwrap().to_owned();
    (proxy, settings, prefix)
}

/// One open upload as S3 lists it, with all that it says.
fn upload(prefix: &str, key: &Key, id: &str, started: &str) -> String {
    let who = format!("<ID>{}</ID><DisplayName>somebody</DisplayName>", "a".repeat(64));
    format!(
        "<Upload><Key>{prefix}/{key}</Key><UploadId>{id}</UploadId><Initiator>{who}</Initiator><Owner>{who}</Owner>\
         <StorageClass>STANDARD</StorageClass><Initiated>{started}</Initiated><ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm></Upload>"
    )
}

fn listing(uploads: &str, next: Option<&str>) -> Fault {
    let more = match next {
        Some(key) => format!(
            "<IsTruncated>true</IsTruncated><NextKeyMarker>{key}</NextKeyMarker><NextUploadIdMarker>x</NextUploadIdMarker>"
        ),
        None => "<IsTruncated>false</IsTruncated>".to_owned(),
    };
    let document = format!("<ListMultipartUploadsResult>{more}{uploads}</ListMultipartUploadsResult>");
    Fault::Answer(Answer::new(200, document))
}

#[tokio::test]
async fn a_full_page_of_open_uploads_is_read() {
    // nothing is asked that no rule answers
    let nobody =
        S3 { endpoint: "127.0.0.1:9".into(), access_key: "a".into(), secret_key: "b".into(), bucket: "stage".into() };
    let (proxy, settings, prefix) = made_up(&nobody).await;
    let page = |count: usize| -> String {
        let one = |n| upload(&prefix, &Key::pack(fresh(), fresh()), &format!("{n:0128}"), "2025-12-01T00:00:00.000Z");
        (0..count).map(one).collect()
    };
    let first = page(1_000);
    assert!(first.len() > 256 << 10, "{}", first.len());
    proxy.on(Rule::new("GET", "uploads").times(1).does(listing(&first, Some("next"))));
    proxy.on(Rule::new("GET", "key-marker=next").times(1).does(listing(&page(3), None)));
    let found = open(&settings).await.orphan_uploads(Duration::ZERO).await.unwrap();
    assert_eq!(found.len(), 1_003);
}

/// The service's own task: only what is older than any write can be, and again until it is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_uploads_are_aborted_and_young_ones_left() {
    let Some(s3) = support::s3() else { return };
    let (proxy, store, prefix) = made_up(&s3).await;
    let service = Builder::new(Engine::Sqlite).quiet().settings(|settings| settings.store = store).start().await;
    let (old, young) = (Key::pack(fresh(), fresh()), Key::export(fresh(), fresh()));
    let uploads = upload(&prefix, &old, "old", "2025-12-24T00:00:00.000Z")
        + &upload(&prefix, &young, "young", "2025-12-27T00:00:00.000Z");
    proxy.on(Rule::new("GET", "uploads").does(listing(&uploads, None)));
    proxy.on(Rule::new("DELETE", "uploadId=old").does(Fault::Answer(Answer::new(204, ""))));
    service.run("abort-orphans").await;
    let is_abort = |seen: &Seen| seen.method == "DELETE" && seen.target.contains("uploadId=");
    assert_eq!(proxy.count(is_abort), 1);
    service.clock.advance(Duration::from_secs(3 * 24 * 3_600));
    proxy.on(Rule::new("DELETE", "uploadId=young")
        .does(Fault::Answer(Answer::new(404, "<Error><Code>NoSuchUpload</Code></Error>"))));
    service.run("abort-orphans").await;
    let aborted = proxy.log().into_iter().filter(is_abort).map(|seen| seen.target);
    let aborted: Vec<String> = aborted.collect();
    assert!(aborted.len() == 3 && aborted[2].contains("young") && aborted[2].contains(young.as_str()), "{aborted:?}");
}
