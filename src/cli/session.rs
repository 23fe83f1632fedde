//! What every verb is run with: which service, whose token, which format, and the wish to stop.
//!
//! The URL and the token come from a flag, the environment or the login file, in this order. A token from the login file is
//! sent only to the URL stored with it.
//!
//! Nothing is sent and no file is read before a verb asks: `dray --help` works without a home, a service or a token.

use super::error::Error;
use super::output::Format;
use super::progress::{Progress, Style};
use super::units::parse_duration;
use crate::client::Context;
use crate::client::api::{Api, Options, parse_urls};
use crate::clock::{RandomIds, SystemClock};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use url::Url;

/// Options of every verb.
#[derive(Debug, Clone, clap::Args)]
pub struct Global {
    /// Print one JSON document on stdout
    #[arg(long, global = true)]
    pub json: bool,
    /// The service's base URL; several, comma separated, are tried in turn
    #[arg(long, global = true, env = "DRAY_URL", value_name = "URL")]
    pub url: Option<String>,
    /// Bearer token
    #[arg(long, global = true, env = "DRAY_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub token: Option<SecretString>,
    /// HTTP proxy for all requests (the environment's proxies are not used)
    #[arg(long, global = true, env = "DRAY_PROXY", value_name = "URL", hide_short_help = true)]
    pub proxy: Option<Url>,
    /// Drop and repeat a request when no byte moved for this long
    #[arg(long, global = true, env = "DRAY_STALL_TIMEOUT", value_name = "TIME", value_parser = parse_duration,
          default_value = "30s", hide_short_help = true)]
    pub stall_timeout: Duration,
    /// Give up when a request has failed for this long
    #[arg(long, global = true, env = "DRAY_PATIENCE", value_name = "TIME", value_parser = parse_duration,
          default_value = "3m", hide_short_help = true)]
    pub patience: Duration,
    /// Messages on stderr: a `tracing` filter like `info` or `dray_outside::client=debug`
    #[arg(long, global = true, env = "DRAY_LOG", value_name = "FILTER", hide_short_help = true)]
    pub log: Option<String>,
    /// Where the caches of push and pull lie
    #[arg(long, global = true, env = "DRAY_CACHE_DIR", value_name = "DIR", hide_short_help = true)]
    pub cache_dir: Option<PathBuf>,
    #[arg(long, global = true, env = "XDG_CONFIG_HOME", hide = true)]
    config_home: Option<PathBuf>,
    #[arg(long, global = true, env = "XDG_CACHE_HOME", hide = true)]
    cache_home: Option<PathBuf>,
    #[arg(long, global = true, env = "HOME", hide = true)]
    home: Option<PathBuf>,
}

impl Global {
    pub fn format(&self) -> Format {
        if self.json { Format::Json } else { Format::Human }
    }

    /// Where `dray login` keeps the URL and the token.
    ///
    /// By the XDG base directories; none without `XDG_CONFIG_HOME` and `HOME`.
    pub fn login_file(&self) -> Option<PathBuf> {
        let config = self.config_home.clone().or_else(|| self.home.as_ref().map(|home| home.join(".config")));
        config.map(|config| config.join("dray/login.toml"))
    }

    /// `--cache-dir`, else `dray` below the user's place for caches.
    fn caches(&self) -> Option<PathBuf> {
        let xdg = || self.cache_home.clone().or_else(|| self.home.as_ref().map(|home| home.join(".cache")));
        self.cache_dir.clone().or_else(|| xdg().map(|caches| caches.join("dray")))
    }
}

/// The login file: 0600, TOML. Refused where others can read it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    url: String,
    token: String,
}

/// One run of one verb.
///
/// Cheap to clone. Made once for a process; the demonstration changes a copy.
#[derive(Debug, Clone)]
pub struct Session {
    pub global: Global,
    pub format: Format,
    /// Of stderr; independent of `format` on a terminal.
    pub style: Style,
    /// Cancelled by the first Ctrl-C.
    pub cancel: CancellationToken,
}

impl Session {
    pub fn new(global: Global, cancel: CancellationToken) -> Self {
        let format = global.format();
        Self { global, format, style: Style::choose(format), cancel }
    }

    /// The client of the service that the user means. Sends nothing yet.
    ///
    /// URL and token are found by themselves, so a token of the environment goes to whatever URL is named: only the login
    /// file ties both together. Compared as text: the URL must be written as at login.
    pub fn api(&self) -> Result<Api, Error> {
        let login = self.login()?;
        let url = self.global.url.clone().or_else(|| login.as_ref().map(|login| login.url.clone()));
        let Some(url) = url else {
            return Err(no_service());
        };
        let own = login.filter(|login| login.url == url).map(|login| SecretString::from(login.token));
        let Some(token) = self.global.token.clone().or(own) else {
            return Err(Error::Usage {
                what: format!("no token for `{url}`"),
                hint: "set `DRAY_TOKEN`, say `--token`, or run `dray login URL` once",
            });
        };
        Ok(self.connect(&url, token)?)
    }

    /// A client that sends no token, for what anyone may read.
    pub fn api_without_token(&self) -> Result<Api, Error> {
        let url = self.global.url.clone().or(self.login()?.map(|login| login.url));
        let Some(url) = url else { return Err(no_service()) };
        Ok(self.connect(&url, SecretString::from(""))?)
    }

    /// A client for a URL and a token of the verb's own.
    ///
    /// Calls end with `Interrupted` once the session is cancelled. `urls` may be several, tried in turn.
    pub fn connect(&self, urls: &str, token: SecretString) -> Result<Api, crate::client::Error> {
        let options = Options {
            stall_timeout: self.global.stall_timeout,
            patience: self.global.patience,
            first_contact: Options::default().first_contact.min(self.global.patience),
            proxy: self.global.proxy.clone(),
            ..Options::default()
        };
        Ok(Api::new(parse_urls(urls)?, token, options)?.cancelled_by(self.cancel.clone()))
    }

    /// What a transfer needs around it.
    pub fn context(&self, api: Api, progress: Arc<Progress>) -> Context {
        Context {
            api,
            clock: Arc::new(SystemClock),
            ids: Arc::new(RandomIds),
            reporter: progress,
            cancel: self.cancel.clone(),
        }
    }

    /// Directory of a cache by its name, where the user has a place for caches. Not made here. None: nothing is remembered,
    /// so files are read again and none counts as an earlier pull's.
    pub fn cache(&self, name: &str) -> Option<PathBuf> {
        self.global.caches().map(|caches| caches.join(name))
    }

    /// Not read where flags or environment say everything, so that a damaged file hinders nobody who does not need it.
    fn login(&self) -> Result<Option<Login>, Error> {
        if self.global.url.is_some() && self.global.token.is_some() {
            return Ok(None);
        }
        let Some(path) = self.global.login_file() else { return Ok(None) };
        let text = match fs_err::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::Local { path, source }),
        };
        let bad = |why: String| Error::BadFile { path: path.clone(), what: "login file", why };
        let mode = fs_err::metadata(&path).map_err(Error::local(&path))?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(bad(format!("others can read it (mode {:04o}): `chmod 600` it", mode & 0o7777)));
        }
        // The parser's message quotes the file, and the file holds a token.
        toml::from_str(&text).map(Some).map_err(|_| bad("write `url = \"...\"` and `token = \"...\"`".to_owned()))
    }
}

fn no_service() -> Error {
    Error::Usage {
        what: "no service is named".to_owned(),
        hint: "set `DRAY_URL`, say `--url`, or run `dray login URL` once",
    }
}

/// Stores a URL with its token so that only this user can read them; the old file stays until the new one is whole.
///
/// Synced before it replaces the old one; never readable by others, not even for a moment.
pub fn store_login(path: &Path, url: &str, token: &SecretString) -> Result<(), Error> {
    let login = Login { url: url.to_owned(), token: token.expose_secret().to_owned() };
    let text = toml::to_string(&login).expect("two strings are always valid TOML");
    let parent = path.parent().unwrap_or(Path::new("."));
    fs_err::create_dir_all(parent).map_err(Error::local(parent))?;
    let fresh = path.with_extension("toml.new");
    let write = || {
        match fs_err::remove_file(&fresh) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs_err::rename(&fresh, path)
    };
    write().map_err(Error::local(path))
}
