//! Opens everything a service needs, in an order that changes nothing before it is known that it may.
//!
//! Refused in words: keys that the secret file does not open, a secret file that is missing though the database has keys, a
//! local store that other replicas cannot see. A secret file is made only for a database without keys.
//!
//! ```text
//! database (opened, migrated) -> store (opened, probed) -> secret key file -> keys -> callbacks
//! ```

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use data_encoding::HEXLOWER_PERMISSIVE;
use fs_err::os::unix::fs::OpenOptionsExt;
use zeroize::Zeroizing;

use super::data::Data;
use super::keys::{Keys, Secret};
use super::{App, Error};
use crate::clock::{Clock, Ids};
use crate::config::Settings;
use crate::db::{self, Db};
use crate::store::probe::Depth;
use crate::store::{self, Store};
use crate::webhook::{self, Webhooks};

/// Why a service does not start. Each is for the operator, and none passes by itself but an unreachable database or store.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Unreachable, of a newer release, or of a SQLite that loses data.
    #[error("the database could not be opened")]
    Database(#[source] db::Error),
    #[error("the sender of callbacks could not be set up")]
    Callbacks(#[source] webhook::Error),
    #[error("the store could not be opened")]
    Store(#[source] store::Error),
    /// It loses bytes, or takes none.
    #[error("{reason}; `dray store check` shows more")]
    StoreRefused { reason: String },
    /// Never repaired by making a new one: that would lose what the old one opens.
    #[error("`{}` is no secret key file: it holds 64 hex digits; restore it from its backup", path.display())]
    SecretFormat { path: PathBuf },
    /// Making a new one would make every link and every sealed secret useless.
    #[error(
        "the secret key file `{}` is missing, but the database has keys that only it opens; restore it from its backup, or \
         copy it from another replica",
        path.display()
    )]
    SecretMissing { path: PathBuf },
    /// Each replica would make its own, and none could open what another sealed.
    #[error(
        "`multi_replica` is set, but the secret key file `{}` does not exist; make one for all replicas: \
         head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n' > FILE, readable by the service only",
        path.display()
    )]
    SecretNotShared { path: PathBuf },
    #[error("the secret key file `{}` cannot be used", path.display())]
    SecretFile {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// What the keys or the database answered, in the words of a use case.
    #[error(transparent)]
    Refused(#[from] Error),
}

impl App {
    /// Opens database, store and keys as `settings` say. The data directory exists already. What it may leave behind when it
    /// fails is a migrated database and a new secret key file, both of which the next start takes up.
    pub async fn open(
        settings: Settings,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn Ids>,
        origin: String,
    ) -> Result<Self, OpenError> {
        let options = db::Options { connections: settings.database.connections, timeout: settings.database.timeout.0 };
        let db = Db::open(&settings.database_url(), options).await.map_err(OpenError::Database)?;
        let store = Store::open(&settings.store_resolved(), clock.clone()).await.map_err(OpenError::Store)?;
        if let Some(reason) = store.probe(ids.uuid(), Depth::Quick).await.refuses() {
            return Err(OpenError::StoreRefused { reason });
        }
        let secret = secret(&settings, Keys::exist(&db).await?, &*ids)?;
        let keys = Keys::open(&db, secret, &*clock, &*ids).await?;
        if !db.is_shared() {
            // whoever held a claim in it is gone
            crate::transaction!(db, |tx| db::operations::release_all(tx).await).map_err(OpenError::Database)?;
        }
        let webhooks = Webhooks::open(&settings).map_err(OpenError::Callbacks)?;
        let data = Data::for_store(&store);
        Ok(Self { db, store, clock, ids, settings, keys, data, webhooks, origin })
    }
}

/// The secret of the file; a new one, written down first, only where nothing can be sealed with an older one and no other
/// replica could have its own.
fn secret(settings: &Settings, keys_exist: bool, ids: &dyn Ids) -> Result<Secret, OpenError> {
    let path = settings.secret_key_path();
    match fs_err::read_to_string(&path) {
        Ok(text) => parse(&path, &Zeroizing::new(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if keys_exist {
                return Err(OpenError::SecretMissing { path });
            }
            if settings.multi_replica {
                return Err(OpenError::SecretNotShared { path });
            }
            let secret = Zeroizing::new(ids.secret());
            write(&path, ids, &secret).map_err(|source| OpenError::SecretFile { path, source })?;
            Ok(secret)
        }
        Err(source) => Err(OpenError::SecretFile { path, source }),
    }
}

/// 64 hex digits in either case, white space around them.
fn parse(path: &Path, text: &str) -> Result<Secret, OpenError> {
    let bytes = HEXLOWER_PERMISSIVE.decode(text.trim().as_bytes()).map(Zeroizing::new);
    let bytes = bytes.ok().and_then(|bytes| <[u8; 32]>::try_from(bytes.as_slice()).ok());
    bytes.map(Zeroizing::new).ok_or_else(|| OpenError::SecretFormat { path: path.to_owned() })
}

/// Durable before the first key is sealed with it; readable by the owner only. Whole under its name or not there: a crash
/// leaves a file under another name at most, which nobody reads. One that is there already is never replaced, so of two that
/// write it together one fails.
fn write(path: &Path, ids: &dyn Ids, secret: &Secret) -> std::io::Result<()> {
    let text = Zeroizing::new(format!("{}\n", data_encoding::HEXLOWER.encode(&**secret)));
    let begun = path.with_extension(format!("new-{}", ids.uuid().simple()));
    let mut file = fs_err::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&begun)?;
    let linked =
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).and_then(|()| fs_err::hard_link(&begun, path));
    fs_err::remove_file(&begun)?;
    linked?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs_err::File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::RandomIds;

    fn settings(directory: &Path) -> Settings {
        Settings { data: directory.to_owned(), ..Settings::default() }
    }

    #[test]
    fn a_secret_is_made_once_and_kept_private() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(directory.path());
        let made = secret(&settings, false, &RandomIds).unwrap();
        assert_eq!(secret(&settings, true, &RandomIds).unwrap(), made);
        let mode = fs_err::metadata(settings.secret_key_path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs_err::read_dir(directory.path()).unwrap().count(), 1, "nothing beside it");
    }

    #[test]
    fn a_secret_that_is_there_is_never_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret.key");
        fs_err::write(&path, "another's").unwrap();
        let refused = write(&path, &RandomIds, &Zeroizing::new([7; 32])).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::AlreadyExists);
        assert_eq!(fs_err::read_to_string(&path).unwrap(), "another's");
        assert_eq!(fs_err::read_dir(directory.path()).unwrap().count(), 1, "nothing beside it");
    }

    #[test]
    fn no_secret_is_made_where_keys_or_other_replicas_need_the_old_one() {
        let directory = tempfile::tempdir().unwrap();
        let mut settings = settings(directory.path());
        assert!(matches!(secret(&settings, true, &RandomIds), Err(OpenError::SecretMissing { .. })));
        settings.multi_replica = true;
        assert!(matches!(secret(&settings, false, &RandomIds), Err(OpenError::SecretNotShared { .. })));
        fs_err::write(settings.secret_key_path(), "nonsense").unwrap();
        assert!(matches!(secret(&settings, false, &RandomIds), Err(OpenError::SecretFormat { .. })));
    }
}
