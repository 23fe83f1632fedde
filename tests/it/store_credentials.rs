//! Credentials that lapse while a service runs, from the usual AWS chain. Each test is a process of its own, since the chain
//! reads the environment.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dray::clock::{Clock, ManualClock, SystemClock};
use dray::config::StoreSettings;
use dray::store::{Error, Key, PutMode, Store};

use crate::store_contract::bytes;
use crate::support::fault_proxy::{Answer, Fault, FaultProxy, Rule};
use crate::support::stores::{fresh, s3_settings};
use crate::support::{self, child, role};

/// Runs a test of this file again as a child whose AWS files lie in a directory of its own.
fn in_child(test: &str, dir: &Path) {
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let (config, credentials) = (path("config"), path("credentials"));
    let variables = [
        ("AWS_CONFIG_FILE", config.as_str()),
        ("AWS_SHARED_CREDENTIALS_FILE", credentials.as_str()),
        ("AWS_EC2_METADATA_DISABLED", if test.contains("instance_role") { "false" } else { "true" }),
        ("DRAY_TEST_DIR", dir.to_str().unwrap()),
    ];
    let mut command = child(test, "child", &variables);
    for inherited in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"] {
        command.env_remove(inherited);
    }
    let done = command.output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && text.contains("1 passed"), "{text}");
}

struct Scene {
    dir: PathBuf,
    proxy: FaultProxy,
    store: Store,
    clock: Arc<ManualClock>,
}

async fn scene() -> Option<Scene> {
    let s3 = support::s3()?;
    let proxy = FaultProxy::start(&s3.endpoint).await;
    let settings = StoreSettings {
        access_key_id: None,
        secret_access_key: None,
        profile: Some("team".into()),
        ..s3_settings(&s3, &proxy.url())
    };
    let clock = Arc::new(ManualClock::new(SystemClock.now()));
    let store = Store::open(&settings, clock.clone()).await.unwrap();
    let dir = PathBuf::from(support::env("DRAY_TEST_DIR").unwrap());
    Some(Scene { dir, proxy, store, clock })
}

impl Scene {
    async fn put(&self) -> Result<(), Error> {
        self.store.put_small(&Key::pack(fresh(), fresh()), bytes(1, 100), PutMode::Create).await.map(drop)
    }

    fn expire_once(&self) {
        let document = "<Error><Code>ExpiredToken</Code></Error>";
        self.proxy.on(Rule::new("PUT", "packs/").times(1).does(Fault::Answer(Answer::new(400, document))));
    }

    /// Makes the `credential_process` print these keys, good for so long by the scene's clock; it notes each run.
    fn process_gives(&self, secret: &str, good_for: Duration) {
        let ends = self.clock.now().saturating_add(jiff::SignedDuration::try_from(good_for).unwrap()).unwrap();
        let script = format!(
            "#!/bin/sh\necho run >> {0}/runs\necho '{{\"Version\":1,\"AccessKeyId\":\"testaccess\",\"SecretAccessKey\":\"{secret}\",\
             \"Expiration\":\"{ends}\"}}'\n",
            self.dir.display()
        );
        self.process_is(&script);
    }

    fn process_is(&self, script: &str) {
        // replaced as a whole, since a script that is open for writing cannot be run
        let (new, path) = (self.dir.join("new"), self.dir.join("process"));
        std::fs::write(&new, script).unwrap();
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::rename(new, path).unwrap();
    }

    fn runs(&self) -> usize {
        std::fs::read_to_string(self.dir.join("runs")).unwrap_or_default().lines().count()
    }
}

#[tokio::test]
async fn a_credential_process_is_asked_before_the_end_and_when_the_store_says_so() {
    if role().is_none() {
        let dir = tempfile::tempdir().unwrap();
        let config = format!("[profile team]\ncredential_process = {}/process\n", dir.path().display());
        std::fs::write(dir.path().join("config"), config).unwrap();
        return in_child(
            "store_credentials::a_credential_process_is_asked_before_the_end_and_when_the_store_says_so",
            dir.path(),
        );
    }
    let Some(scene) = scene().await else { return };
    let secret = "testsecretkey12345";
    scene.process_gives(secret, Duration::from_secs(3600));
    for _ in 0..3 {
        scene.put().await.unwrap();
    }
    assert_eq!(scene.runs(), 1, "kept");
    scene.expire_once();
    scene.put().await.unwrap();
    assert_eq!(scene.runs(), 2, "asked again at once, and the same request went on");
    // a link cannot outlive the credentials that signed it
    let signed =
        scene.store.sign_get(&Key::pack(fresh(), fresh()), Duration::from_secs(7200), None).await.unwrap().unwrap();
    let left = signed.expires_at.duration_since(scene.clock.now()).as_secs();
    assert!((3500..=3600).contains(&left), "{left}");
    scene.clock.advance(Duration::from_secs(54 * 60));
    scene.put().await.unwrap();
    assert_eq!(scene.runs(), 2);
    scene.process_is("#!/bin/sh\nexit 1\n");
    scene.clock.advance(Duration::from_secs(2 * 60));
    scene.put().await.expect("the old ones still hold, though they could not be renewed");
    scene.process_gives(secret, Duration::from_secs(3600));
    scene.clock.advance(Duration::from_secs(60));
    scene.put().await.unwrap();
    assert_eq!(scene.runs(), 3, "renewed before the end");
    scene.process_is("#!/bin/sh\nexit 1\n");
    scene.clock.advance(Duration::from_secs(7200));
    let refused = scene.put().await;
    assert!(matches!(refused, Err(Error::Denied { .. })), "{refused:?}");
    // short-lived ones are not asked for at every request
    scene.process_gives(secret, Duration::from_secs(120));
    for _ in 0..3 {
        scene.put().await.unwrap();
    }
    assert_eq!(scene.runs(), 4);
}

#[tokio::test]
async fn a_profile_rewritten_on_disk_is_read_again() {
    let keys = |id: &str| format!("[team]\naws_access_key_id = {id}\naws_secret_access_key = testsecretkey12345\n");
    if role().is_none() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("credentials"), keys("testaccess")).unwrap();
        return in_child("store_credentials::a_profile_rewritten_on_disk_is_read_again", dir.path());
    }
    let Some(scene) = scene().await else { return };
    scene.put().await.unwrap();
    std::fs::write(scene.dir.join("credentials"), keys("rotated")).unwrap();
    scene.put().await.unwrap();
    scene.expire_once();
    assert!(matches!(scene.put().await, Err(Error::Denied { .. })), "the server does not know the new ones");
    let last = scene.proxy.log().pop().unwrap();
    assert!(last.headers["authorization"].contains("Credential=rotated/"), "{last:?}");
    std::fs::write(scene.dir.join("credentials"), keys("testaccess")).unwrap();
    scene.clock.advance(Duration::from_secs(16 * 60));
    scene.put().await.expect("those without an end are read again after a while");
}

/// Keys as a metadata service gives them; no server knows them.
fn lent(id: &str, ends: jiff::Timestamp) -> String {
    format!(
        r#"{{"Code":"Success","Type":"AWS-HMAC","LastUpdated":"{ends}","AccessKeyId":"{id}","SecretAccessKey":"secret","Token":"session","Expiration":"{ends}"}}"#
    )
}

/// Puts once and says with which key id and session token the request was signed.
async fn signed_with(scene: &Scene) -> (String, String) {
    let refused = scene.put().await;
    assert!(matches!(refused, Err(Error::Denied { .. })), "the server does not know such keys: {refused:?}");
    let last = scene.proxy.log().pop().unwrap();
    let id = last.headers["authorization"].split("Credential=").nth(1).unwrap().split('/').next().unwrap();
    (id.to_owned(), last.headers["x-amz-security-token"].clone())
}

#[tokio::test]
async fn an_instance_role_is_asked_over_our_own_http_client() {
    if role().is_none() {
        let dir = tempfile::tempdir().unwrap();
        return in_child("store_credentials::an_instance_role_is_asked_over_our_own_http_client", dir.path());
    }
    let Some(scene) = scene().await else { return };
    let metadata = FaultProxy::start("http://127.0.0.1:1").await;
    let config = format!("[profile team]\nregion = us-east-1\nec2_metadata_service_endpoint = {}\n", metadata.url());
    std::fs::write(scene.dir.join("config"), config).unwrap();
    let ends = scene.clock.now().saturating_add(jiff::SignedDuration::from_hours(6)).unwrap();
    let token = Answer::new(200, "a-token").header("x-aws-ec2-metadata-token-ttl-seconds", "21600");
    metadata.on(Rule::new("PUT", "/latest/api/token").does(Fault::Answer(token)));
    for list in ["security-credentials-extended/", "security-credentials/"] {
        let role = format!("/latest/meta-data/iam/{list}trainer");
        metadata.on(Rule::new("GET", &role).does(Fault::Answer(Answer::new(200, lent("instance", ends)))));
        let list = format!("/latest/meta-data/iam/{list}");
        metadata.on(Rule::new("GET", &list).does(Fault::Answer(Answer::new(200, "trainer"))));
    }
    assert_eq!(signed_with(&scene).await, ("instance".to_owned(), "session".to_owned()));
    let asked = metadata.log();
    assert!(
        asked
            .iter()
            .filter(|seen| seen.method == "GET")
            .all(|seen| seen.headers["x-aws-ec2-metadata-token"] == "a-token")
    );
    assert!((2..=4).contains(&asked.len()), "{asked:?}");
    assert_eq!(signed_with(&scene).await.0, "instance");
    assert_eq!(metadata.log().len(), asked.len(), "kept");
}

#[tokio::test]
async fn a_web_identity_is_exchanged_over_our_own_http_client() {
    if role().is_none() {
        let dir = tempfile::tempdir().unwrap();
        return in_child("store_credentials::a_web_identity_is_exchanged_over_our_own_http_client", dir.path());
    }
    let Some(scene) = scene().await else { return };
    let exchange = FaultProxy::start("http://127.0.0.1:1").await;
    std::fs::write(scene.dir.join("identity"), "signed-by-the-cluster").unwrap();
    let config = format!(
        "[profile team]\nregion = us-east-1\nrole_arn = arn:aws:iam::123456789012:role/trainer\n\
         web_identity_token_file = {}/identity\nendpoint_url = {}\n",
        scene.dir.display(),
        exchange.url()
    );
    std::fs::write(scene.dir.join("config"), config).unwrap();
    let ends = scene.clock.now().saturating_add(jiff::SignedDuration::from_hours(1)).unwrap();
    let document = format!(
        "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleWithWebIdentityResult>\
         <Credentials><AccessKeyId>exchanged</AccessKeyId><SecretAccessKey>secret</SecretAccessKey><SessionToken>session</SessionToken>\
         <Expiration>{ends:.0}</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
    );
    let answer = Answer::new(200, document).header("content-type", "text/xml");
    exchange.on(Rule::new("POST", "/").does(Fault::Answer(answer)));
    assert_eq!(signed_with(&scene).await, ("exchanged".to_owned(), "session".to_owned()));
    let asked = exchange.log();
    assert!(asked.len() == 1 && asked[0].body_bytes > 100, "{asked:?}");
}
