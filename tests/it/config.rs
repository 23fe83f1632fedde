//! What a service does with its settings at its start: what it makes, what it keeps, and what it refuses in words.

use std::path::Path;
use std::sync::Arc;

use dray::clock::{ManualClock, RandomIds};
use dray::config::{Flags, Settings};
use dray::server::{Error, Service};

use crate::both_engines;
use crate::support::{Builder, Engine, TestService};

fn settings(data: &Path) -> Settings {
    let flags = Flags { data: Some(data.to_owned()), listen: Some("127.0.0.1:0".to_owned()), ..Flags::default() };
    Settings::load(&flags, []).unwrap()
}

async fn start(settings: Settings) -> Result<Service, Error> {
    Service::start(settings, Arc::<ManualClock>::default(), Arc::new(RandomIds)).await
}

/// The error with its causes, as `main` prints them.
async fn refused(settings: Settings) -> String {
    let error = start(settings).await.expect_err("the service started");
    let mut text = error.to_string();
    let mut next = std::error::Error::source(&error);
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

#[tokio::test]
async fn a_first_start_makes_everything_private_and_a_second_one_keeps_it() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("deep/data");
    start(settings(&data)).await.unwrap().stop().await.unwrap();
    let read = |name: &str| std::fs::read(data.join(name)).unwrap();
    let made = ["admin.token", "secret.key", "replica.id"].map(read);
    for name in ["admin.token", "secret.key", "replica.id", "lock"] {
        let mode = std::fs::metadata(data.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{name} can be read by others");
    }
    assert_eq!(std::fs::metadata(&data).unwrap().permissions().mode() & 0o077, 0);
    assert!(data.join("dray.sqlite").exists() && data.join("store").is_dir());
    start(settings(&data)).await.unwrap().stop().await.unwrap();
    assert_eq!(["admin.token", "secret.key", "replica.id"].map(read), made);
}

#[tokio::test]
async fn one_data_directory_serves_one_process_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let first = start(settings(directory.path())).await.unwrap();
    let text = refused(settings(directory.path())).await;
    assert!(text.contains("another `dray serve` uses the data directory"), "{text}");
    first.stop().await.unwrap();
    start(settings(directory.path())).await.unwrap().stop().await.unwrap();
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let text = refused(Settings { listen: address, ..settings(directory.path()) }).await;
    assert!(text.contains(&format!("cannot listen on `{address}`")) && text.contains("--listen"), "{text}");
}

#[tokio::test]
async fn a_lost_or_foreign_secret_key_is_refused_before_anything_is_signed() {
    let directory = tempfile::tempdir().unwrap();
    let settings = settings(directory.path());
    start(settings.clone()).await.unwrap().stop().await.unwrap();
    let path = settings.secret_key_path();
    let secret = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let text = refused(settings.clone()).await;
    assert!(text.contains("is missing, but the database has keys that only it opens"), "{text}");
    std::fs::write(&path, "00".repeat(32)).unwrap();
    let text = refused(settings.clone()).await;
    assert!(text.contains("does not open"), "{text}");
    std::fs::write(&path, secret).unwrap();
    start(settings).await.unwrap().stop().await.unwrap();
}

#[tokio::test]
async fn a_database_that_is_none_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(
        directory.path().join("dray.sqlite"),
        "this is no database, but it is long enough to be looked at ".repeat(20),
    )
    .unwrap();
    let text = refused(settings(directory.path())).await;
    assert!(text.contains("the database could not be opened"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_local_store_is_not_shared_by_replicas() {
    if crate::support::postgres().is_none() {
        return;
    }
    let first = Builder::new(Engine::Postgres).start().await;
    let directory = tempfile::tempdir().unwrap();
    let mut second = settings(directory.path());
    second.database.url = Some(first.postgres_url().unwrap().into());
    second.secret_key_file = Some(first.data().join("secret.key"));
    let text = refused(second.clone()).await;
    assert!(text.contains("the store is local, but another replica") && text.contains(&first.url), "{text}");
    // without the secret key a replica does not even come so far
    second.secret_key_file = None;
    let text = refused(second).await;
    assert!(text.contains("is missing, but the database has keys"), "{text}");
}

both_engines! {
    async fn urls_begin_with_what_the_settings_say(builder: Builder) {
        let service = builder.settings(|settings| settings.public_url = Some("https://dray.example.net/".parse().unwrap())).start().await;
        assert_eq!(service.app().origin, "https://dray.example.net");
    }
}

#[tokio::test]
async fn tls_is_served_and_a_bad_new_certificate_leaves_the_old_one_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let (cert, key) = (directory.path().join("tls.crt"), directory.path().join("tls.key"));
    std::fs::write(&cert, include_str!("support/tls/localhost.crt")).unwrap();
    std::fs::write(&key, include_str!("support/tls/localhost.key")).unwrap();
    let service: TestService = Builder::new(Engine::Sqlite)
        .settings(|settings| {
            settings.tls.cert = Some(cert.clone());
            settings.tls.key = Some(key.clone());
        })
        .start()
        .await;
    let root = reqwest::Certificate::from_pem(include_bytes!("support/tls/localhost.crt")).unwrap();
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([root]).build().unwrap();
    let url = format!("https://127.0.0.1:{}/healthz", service.service().address().port());
    assert_eq!(client.get(&url).send().await.unwrap().status(), 200);
    assert!(service.app().origin.starts_with("https://127.0.0.1:"), "{}", service.app().origin);
    service.service().reload_tls().await.unwrap();
    std::fs::write(&cert, "nonsense").unwrap();
    assert!(matches!(service.service().reload_tls().await, Err(Error::Tls(_))));
    assert_eq!(client.get(&url).send().await.unwrap().status(), 200);
}
