//! A whole service for a test: real router on a real port, real SQL, a local store, a clock that the test owns.
//!
//! ```ignore
//! both_engines! {
//!     async fn a_team_is_made(service) {
//!         let team = service.post("/v1/teams", &json!({"name": "blue"})).await.expect(201);
//!         service.clock.advance(Duration::from_secs(60));
//!         service.get("/v1/whoami").await.expect(200);
//!     }
//! }
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dray::app::App;
use dray::clock::{Ids, ManualClock, RandomIds};
use dray::config::Settings;
use dray::server::{Service, reconcilers};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::Connection;

/// Which database a test runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    Sqlite,
    /// Where `DRAY_TEST_PG` says; a database of the test's own, dropped with it.
    Postgres,
}

/// Runs the same test on SQLite and on Postgres: `async fn name(service) { ... }`, where `service` is a fresh [`TestService`];
/// or `async fn name(builder: Builder) { ... }` to start it with other settings. Several in one block.
#[macro_export]
macro_rules! both_engines {
    (@start $service:ident, $builder:expr) => { let $service = $builder.start().await; };
    (@start $service:ident Builder, $builder:expr) => { let $service = $builder; };
    ($($(#[$meta:meta])* async fn $name:ident($service:ident $(: $kind:ident)?) $body:block)+) => { $(
        mod $name {
            #[allow(unused_imports, reason = "a test may need nothing of its file")]
            use super::*;

            async fn body(builder: $crate::support::Builder) {
                $crate::both_engines!(@start $service $($kind)?, builder);
                $body
            }

            $(#[$meta])*
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                body($crate::support::Builder::new($crate::support::Engine::Sqlite)).await;
            }

            $(#[$meta])*
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                if $crate::support::postgres().is_some() {
                    body($crate::support::Builder::new($crate::support::Engine::Postgres)).await;
                }
            }
        }
    )+ };
}

/// How a test's service is started.
#[derive(Debug)]
pub struct Builder {
    engine: Engine,
    settings: Settings,
    quiet: bool,
    clock: Arc<ManualClock>,
}

impl Builder {
    pub fn new(engine: Engine) -> Self {
        let settings = Settings { listen: "127.0.0.1:0".parse().unwrap(), ..Settings::default() };
        Self { engine, settings, quiet: false, clock: Arc::default() }
    }

    /// Changes settings; data directory, database and (unless it names one) store are the test's own anyway.
    pub fn settings(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// No background work: the test runs each step by [`TestService::run`].
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    pub async fn start(mut self) -> TestService {
        let directory = tempfile::tempdir().unwrap();
        self.settings.data = directory.path().join("data");
        let database = match self.engine {
            Engine::Sqlite => None,
            Engine::Postgres => Some(PgDatabase::create().await),
        };
        if let Some(database) = &database {
            self.settings.database.url = Some(database.url.clone().into());
        }
        let service = start(&self.settings, &self.clock, self.quiet).await;
        TestService::new(service, self, directory, database)
    }
}

async fn start(settings: &Settings, clock: &Arc<ManualClock>, quiet: bool) -> Service {
    let tasks = |replica| if quiet { Vec::new() } else { reconcilers(replica) };
    Service::start_with(settings.clone(), clock.clone(), Arc::new(RandomIds), tasks).await.unwrap()
}

/// A running service and what a test does to it.
#[derive(Debug)]
pub struct TestService {
    pub clock: Arc<ManualClock>,
    /// `http://127.0.0.1:PORT`
    pub url: String,
    /// Token of the operator: admin of team `default`.
    pub admin: String,
    pub engine: Engine,
    http: reqwest::Client,
    service: Service,
    settings: Settings,
    quiet: bool,
    directory: tempfile::TempDir,
    database: Option<PgDatabase>,
}

impl TestService {
    fn new(service: Service, builder: Builder, directory: tempfile::TempDir, database: Option<PgDatabase>) -> Self {
        let admin = std::fs::read_to_string(builder.settings.data.join("admin.token")).unwrap();
        // loopback only, and a test that hangs should fail
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(120)).build().unwrap();
        Self {
            clock: builder.clock,
            url: format!("http://{}", service.address()),
            admin: admin.trim().to_owned(),
            engine: builder.engine,
            http,
            service,
            settings: builder.settings,
            quiet: builder.quiet,
            directory,
            database,
        }
    }

    pub async fn sqlite() -> Self {
        Builder::new(Engine::Sqlite).start().await
    }

    pub fn app(&self) -> &Arc<App> {
        self.service.app()
    }

    pub fn service(&self) -> &Service {
        &self.service
    }

    /// The data directory.
    pub fn data(&self) -> &Path {
        &self.settings.data
    }

    /// The URL of the test's own database on Postgres.
    pub fn postgres_url(&self) -> Option<&str> {
        self.database.as_ref().map(|database| database.url.as_str())
    }

    /// A directory for the test's own files, gone with it.
    pub fn scratch(&self) -> PathBuf {
        let path = self.directory.path().join("scratch");
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// One run of a reconciler by its name.
    pub async fn run(&self, task: &str) {
        let tasks = reconcilers(RandomIds.uuid());
        let found = tasks.iter().find(|known| known.name == task);
        found.unwrap_or_else(|| panic!("no reconciler `{task}`")).run(self.app()).await.unwrap();
    }

    /// Stops in good order and starts again on the same data, on another port.
    pub async fn restart(self) -> Self {
        self.restart_after(async {}).await
    }

    /// Stops in good order, and starts again after `meanwhile`; where the settings name a port, on the same.
    pub async fn restart_after(self, meanwhile: impl Future<Output = ()>) -> Self {
        let Self { service, settings, quiet, directory, database, clock, engine, .. } = self;
        service.stop().await.unwrap();
        meanwhile.await;
        let service = start(&settings, &clock, quiet).await;
        let builder = Builder { engine, settings, quiet, clock };
        Self::new(service, builder, directory, database)
    }

    /// Stops in good order; the data goes with it.
    pub async fn stop(self) {
        self.service.stop().await.unwrap();
    }

    /// A second replica on the same database, store and keys, with its background work. Needs Postgres and a store that both
    /// reach; goes before the first.
    pub async fn replica(&self) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut settings = self.settings.clone();
        settings.secret_key_file = Some(self.settings.secret_key_path());
        settings.data = directory.path().join("data");
        let service = start(&settings, &self.clock, false).await;
        let builder = Builder { engine: self.engine, settings, quiet: false, clock: self.clock.clone() };
        Self::new(service, builder, directory, None)
    }

    pub fn request(&self, method: Method, path: &str, token: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url));
        if token.is_empty() { request } else { request.bearer_auth(token) }
    }

    /// Any call, with any token (empty: none) and, unless null, a JSON body.
    pub async fn call(&self, method: Method, path: &str, token: &str, body: &Value) -> Answer {
        let request = self.request(method, path, token);
        let request = if body.is_null() { request } else { request.json(body) };
        Answer::of(request.send().await.unwrap()).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path, &self.admin, &Value::Null).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.call(Method::POST, path, &self.admin, body).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.call(Method::DELETE, path, &self.admin, &Value::Null).await
    }

    /// Makes a team; answers a token of its admin.
    pub async fn team(&self, name: &str) -> String {
        self.post("/v1/teams", &json!({ "name": name })).await.expect(201);
        self.token(name, "admin").await
    }

    /// Makes a token of a role (`admin`, `team`, `team-read`, `scheduler`) in a team.
    pub async fn token(&self, team: &str, role: &str) -> String {
        self.post("/v1/tokens", &json!({ "role": role, "team": team })).await.expect(201).text("token")
    }

    /// Adds a node to the admin's team; answers its token.
    pub async fn node(&self, name: &str) -> String {
        self.post("/v1/nodes", &json!({ "name": name })).await.expect(201).text("token")
    }
}

/// What the service said.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: reqwest::header::HeaderMap,
    pub bytes: Vec<u8>,
}

impl Answer {
    pub async fn of(response: reqwest::Response) -> Self {
        let (status, headers) = (response.status(), response.headers().clone());
        Self { status, headers, bytes: response.bytes().await.unwrap().to_vec() }
    }

    pub fn json(&self) -> Value {
        if self.bytes.is_empty() {
            return Value::Null;
        }
        serde_json::from_slice(&self.bytes).unwrap_or_else(|error| panic!("{error}: {self}"))
    }

    /// The body, typed as the wire says.
    pub fn typed<T: serde::de::DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|error| panic!("{error}: {self}"))
    }

    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{self}");
        self
    }

    /// A problem of that status and code, complete with what to do next.
    #[track_caller]
    pub fn problem(self, status: u16, code: &str) -> Value {
        let problem = self.expect(status);
        assert_eq!(problem.headers["content-type"], "application/problem+json", "{problem}");
        let json = problem.json();
        assert_eq!(json["code"], code, "{problem}");
        assert_eq!(json["status"], status, "{problem}");
        for field in ["title", "detail", "hint", "request_id"] {
            assert!(json[field].as_str().is_some_and(|text| !text.is_empty()), "no `{field}`: {problem}");
        }
        json
    }

    /// A text field of the body.
    #[track_caller]
    pub fn text(&self, field: &str) -> String {
        self.json()[field].as_str().unwrap_or_else(|| panic!("no text `{field}`: {self}")).to_owned()
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let body = String::from_utf8_lossy(&self.bytes);
        write!(f, "{} {}", self.status, body.chars().take(2_000).collect::<String>())
    }
}

/// A database of one test; dropped with it.
#[derive(Debug)]
pub struct PgDatabase {
    server: String,
    name: String,
    pub url: String,
}

impl PgDatabase {
    /// On the server that [`super::postgres`] found.
    pub async fn create() -> Self {
        let server = super::postgres().expect("the macro looked before");
        let name = format!("dray_test_{}", RandomIds.uuid().simple());
        let mut url: url::Url = server.parse().unwrap();
        url.set_path(&name);
        let database = Self { server, name, url: url.into() };
        database.administer("CREATE DATABASE").await.unwrap();
        database
    }

    async fn administer(&self, what: &str) -> Result<(), sqlx::Error> {
        let mut connection = sqlx::PgConnection::connect(&self.server).await?;
        let force = if what.starts_with("DROP") { " WITH (FORCE)" } else { "" };
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!("{what} {}{force}", self.name))).execute(&mut connection).await?;
        connection.close().await
    }
}

impl Drop for PgDatabase {
    fn drop(&mut self) {
        // a runtime of its own, since the test's is going away
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                if let Ok(runtime) = runtime
                    && let Err(error) = runtime.block_on(self.administer("DROP DATABASE"))
                {
                    eprintln!("the test's database {} was not dropped: {error}", self.name);
                }
            });
        });
    }
}
