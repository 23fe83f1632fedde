//! A running service: opened, answering, drained.
//!
//! `admin.token` exists before the port answers. Stopping takes no new connections, ends long polls, lets requests in flight
//! finish for `drain`, then ends background work and closes the database; what is left is cut, and nothing acknowledged is lost.
//!
//! The order of the start is what keeps two services apart: directory, lock, replica id, port bound, database and store
//! opened, other replicas asked, `admin.token`, port answering. Nobody is answered by a service that may still refuse to
//! start, and a second one on the same directory fails at the lock before it touches the database.

use futures::future::BoxFuture;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum_server::tls_rustls::RustlsConfig;
use fs_err as fs;
use fs_err::os::unix::fs::OpenOptionsExt;
use tokio::net::TcpSocket;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::background::{Background, Task};
use super::reconcilers::reconcilers;
use crate::app::{self, App};
use crate::clock::{Clock, Ids};
use crate::config::Settings;

/// How long the end waits for the store to abort what was given up. A store that is away must not hold it up.
const ABORTS: Duration = Duration::from_secs(10);

/// Why a service does not start or go on.
///
/// All of them end the process, but for `Tls` from a reload.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("`{}` cannot be used", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The lock is held by a living process: a killed one's goes with it.
    #[error("another `dray serve` uses the data directory `{}`; stop it, or give this one its own with --data", .0.display())]
    InUse(PathBuf),
    #[error("cannot listen on `{address}`; choose another address with --listen")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("the TLS certificate or key cannot be used; see tls.cert and tls.key")]
    Tls(#[source] io::Error),
    #[error(
        "the store is local, but another replica ({0}) serves the same database; stop it, or give all of them a store they share \
         (store.url = \"s3://...\")"
    )]
    LocalStoreShared(String),
    #[error(transparent)]
    Open(#[from] app::OpenError),
    /// A first write failed: the replica's sign of life, or the first token.
    #[error("the service could not prepare its database")]
    Prepare(#[from] app::Error),
    #[error("the HTTP server ended")]
    Http(#[source] io::Error),
}

/// A service that answers. Dropping it cuts everything; [`Service::stop`] drains first.
///
/// One for each data directory and process.
#[derive(Debug)]
pub struct Service {
    app: Arc<App>,
    address: SocketAddr,
    /// This data directory's, the same after a restart.
    replica: Uuid,
    handle: axum_server::Handle<SocketAddr>,
    http: JoinSet<io::Result<()>>,
    background: Background,
    tls: Option<RustlsConfig>,
    /// Holds the lock on the data directory.
    _lock: fs::File,
}

impl Service {
    /// Opens what `settings` name and answers on `settings.listen`.
    ///
    /// Returns once the port answers. When it fails, nothing answers and what was written (directory, lock, id) is found
    /// again next time.
    pub async fn start(settings: Settings, clock: Arc<dyn Clock>, ids: Arc<dyn Ids>) -> Result<Self, Error> {
        Self::start_with(settings, clock, ids, reconcilers).await
    }

    /// [`Service::start`] with other background work; tests that drive each step by hand give none.
    pub async fn start_with(
        settings: Settings,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn Ids>,
        tasks: impl FnOnce(Uuid) -> Vec<Task>,
    ) -> Result<Self, Error> {
        let data = std::path::absolute(&settings.data).map_err(file(&settings.data))?;
        let settings = Settings { data: data.clone(), ..settings };
        make_directory(&data)?;
        let lock = lock(&data)?;
        let replica = replica_id(&data, &*ids)?;
        let tls = tls(&settings).await?;
        // bound, not listening: the address is ours, and nobody is answered yet
        let (socket, address) = bind(settings.listen)?;
        let origin = origin(&settings, address);
        let opening: BoxFuture<'_, _> = Box::pin(App::open(settings, clock, ids, origin));
        let app = Arc::new(opening.await?);
        refuse_shared_local_store(&app, replica).await?;
        app.replica_lives(replica).await?;
        admin_token(&app, &data).await?;
        let listener = socket.listen(1_024).and_then(|listener| listener.into_std());
        let listener = listener.map_err(|source| Error::Listen { address, source })?;
        let background = Background::start(&app, tasks(replica));
        let handle = axum_server::Handle::new();
        let mut http = JoinSet::new();
        http.spawn(serve_http(app.clone(), listener, handle.clone(), tls.clone()));
        handle.listening().await;
        Ok(Self { app, address, replica, handle, http, background, tls, _lock: lock })
    }

    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// The real one: `listen` may have asked for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Reads certificate and key again; the old ones stay in use when the new ones are no good.
    ///
    /// Connections that are open keep their certificate. Nothing happens where TLS is not configured.
    pub async fn reload_tls(&self) -> Result<(), Error> {
        let paths = &self.app.settings.tls;
        if let (Some(config), Some(cert), Some(key)) = (&self.tls, &paths.cert, &paths.key) {
            config.reload_from_config(read_tls(cert, key).await?);
        }
        Ok(())
    }

    /// Ends when the HTTP server ends by itself, which it should not.
    ///
    /// Cancel-safe: may be dropped and called again.
    pub async fn failed(&mut self) -> Error {
        let ended = self.http.join_next().await;
        let error = match ended {
            Some(Ok(Err(error))) => error,
            Some(Err(error)) => io::Error::other(error),
            Some(Ok(Ok(()))) | None => io::Error::other("it ended without being asked"),
        };
        Error::Http(error)
    }

    /// Begins to drain: no new connections, long polls are answered, requests in flight may end within `drain`.
    ///
    /// May be called twice; `healthz` answers 503 from here on.
    pub fn drain(&self) {
        self.app.db.wakeups().close();
        self.handle.graceful_shutdown(Some(self.app.settings.drain.0));
    }

    /// Cuts requests in flight when called, also while [`Service::stop`] waits for them.
    pub fn cutter(&self) -> impl FnOnce() + use<> {
        let handle = self.handle.clone();
        move || handle.shutdown()
    }

    /// Drains and ends everything in order: HTTP, background work, the store's aborts, the sign of life, the database.
    ///
    /// Tasks end after HTTP, so that what a last request began may still be carried on. Takes `drain` at most, plus the end
    /// of one step of a task and [`ABORTS`]. An error here loses nothing that was acknowledged.
    pub async fn stop(mut self) -> Result<(), Error> {
        self.drain();
        let ended = self.http.join_next().await;
        self.background.stop().await;
        if tokio::time::timeout(ABORTS, self.app.store.close()).await.is_err() {
            tracing::warn!("uploads that were given up are left open in the store; they are aborted once they are old");
        }
        let farewell = self.app.replica_ends(self.replica).await;
        self.app.db.close().await;
        match ended {
            Some(Ok(Err(error))) => Err(Error::Http(error)),
            Some(Err(error)) => Err(Error::Http(io::Error::other(error))),
            _ => Ok(farewell?),
        }
    }
}

/// HTTP/1.1 only, 64 headers at most, and `limits.header_timeout` for each head, so that idle strangers do not hold
/// connections.
async fn serve_http(
    app: Arc<App>,
    listener: std::net::TcpListener,
    handle: axum_server::Handle<SocketAddr>,
    tls: Option<RustlsConfig>,
) -> io::Result<()> {
    let timeout = app.settings.limits.header_timeout.0;
    let service = super::router(app).into_make_service();
    macro_rules! answer {
        ($server:expr) => {{
            let mut server = $server.handle(handle).http1_only().first_request_timeout(timeout);
            server.http_builder().http1().header_read_timeout(timeout).max_headers(64);
            server.serve(service).await
        }};
    }
    match tls {
        Some(tls) => answer!(axum_server::from_tcp_rustls(listener, tls)?),
        None => answer!(axum_server::from_tcp(listener)?),
    }
}

/// Taken before the database is opened: a wrong address fails at once. `SO_REUSEADDR`, so that a restart need not wait for
/// old connections.
fn bind(address: SocketAddr) -> Result<(TcpSocket, SocketAddr), Error> {
    let bound = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let address = socket.local_addr()?;
        Ok((socket, address))
    };
    bound().map_err(|source| Error::Listen { address, source })
}

/// For URLs made where no request is at hand. An unspecified address becomes loopback, which works on this machine only: set
/// `public_url` for everybody else.
fn origin(settings: &Settings, address: SocketAddr) -> String {
    if let Some(url) = &settings.public_url {
        return url.as_str().trim_end_matches('/').to_owned();
    }
    let scheme = if settings.tls.cert.is_some() { "https" } else { "http" };
    let host = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("{scheme}://{}", SocketAddr::new(host, address.port()))
}

async fn tls(settings: &Settings) -> Result<Option<RustlsConfig>, Error> {
    let (Some(cert), Some(key)) = (&settings.tls.cert, &settings.tls.key) else { return Ok(None) };
    Ok(Some(RustlsConfig::from_config(read_tls(cert, key).await?)))
}

/// Certificate and key from their files. Offers HTTP/1.1 alone, since a client that was offered more would choose what we do
/// not speak.
async fn read_tls(cert: &Path, key: &Path) -> Result<Arc<rustls::ServerConfig>, Error> {
    let read = RustlsConfig::from_pem_file(cert, key).await.map_err(Error::Tls)?;
    let mut config = (*read.get_inner()).clone();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// A replica that cannot see the others' objects would answer that data is lost. Asked before this one says that it lives.
async fn refuse_shared_local_store(app: &App, replica: Uuid) -> Result<(), Error> {
    if app.settings.store_resolved().url.starts_with("s3://") {
        return Ok(());
    }
    match app.other_replicas(replica).await?.into_iter().next() {
        Some(other) => Err(Error::LocalStoreShared(other)),
        None => Ok(()),
    }
}

/// Writes `admin.token` unless the one that lies there is good.
///
/// Idempotent. A token that was revoked or belongs to another database is replaced; the file is the operator's way in.
async fn admin_token(app: &App, data: &Path) -> Result<(), Error> {
    let path = data.join("admin.token");
    let known = match fs::read_to_string(&path) {
        Ok(text) => Some(text.trim().to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(source) => return Err(Error::File { path, source }),
    };
    match app.ensure_admin(known.as_deref()).await? {
        Some(token) => write_private(&path, &format!("{token}\n")).map_err(file(&path)),
        None => Ok(()),
    }
}

/// 0700: keys and tokens lie there.
fn make_directory(path: &Path) -> Result<(), Error> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(file(path))
}

/// An advisory lock (`flock`) of the open file: it ends with the process, so nothing stale has to be cleared away. Held as
/// long as the returned file.
fn lock(data: &Path) -> Result<fs::File, Error> {
    use rustix::fs::{FlockOperation, flock};
    let path = data.join("lock");
    let options = || fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let lock = options().map_err(file(&path))?;
    match flock(lock.file(), FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::InUse(data.to_owned())),
        Err(error) => Err(Error::File { path, source: error.into() }),
    }
}

/// The same after a restart, so that a replica is not taken for another one.
///
/// A file that cannot be read as a UUID is replaced.
fn replica_id(data: &Path, ids: &dyn Ids) -> Result<Uuid, Error> {
    let path = data.join("replica.id");
    let known = fs::read_to_string(&path).ok().and_then(|text| Uuid::try_parse(text.trim()).ok());
    if let Some(known) = known {
        return Ok(known);
    }
    let id = ids.uuid();
    write_private(&path, &format!("{id}\n")).map_err(file(&path))?;
    Ok(id)
}

/// Whole or not at all, durable, readable by the owner only.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let draft = path.with_extension("new");
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

fn file(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_says_nowhere_is_reached_by_loopback() {
        let settings = Settings::default();
        for (listen, made) in [
            ("0.0.0.0:80", "http://127.0.0.1:80"),
            ("[::]:80", "http://[::1]:80"),
            ("10.1.2.3:80", "http://10.1.2.3:80"),
            ("[fd00::1]:80", "http://[fd00::1]:80"),
        ] {
            assert_eq!(origin(&settings, listen.parse().unwrap()), made);
        }
    }
}
