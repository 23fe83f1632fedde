//! `dray receipt verify`: whether a readiness receipt holds, with keys from the service or from a file.
//!
//! With `--keys` it works without a network: the keys were saved when they were trusted, and the receipt proves itself.
//! Keys from the service prove no more than that the service stands by the receipt.

use super::error::Error;
use super::output;
use super::session::Session;
use super::units::{count, instant, size};
use crate::api::events::{PublicKey, PublicKeys};
use crate::domain::receipt::{Envelope, Key, MAX_ENVELOPE_BYTES, Owner, Readiness, verify};
use data_encoding::BASE64;
use serde_json::{Value, json};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Check receipts
#[derive(Debug, clap::Subcommand)]
pub enum ReceiptCommand {
    /// Prove who signed a readiness receipt, and show what it says
    Verify {
        /// The envelope, or a staging document that holds it; `-` reads stdin
        file: PathBuf,
        /// Public keys saved from `/v1/keys`; without it they are fetched from the service
        #[arg(long, value_name = "FILE")]
        keys: Option<PathBuf>,
    },
}

/// Longest file that is read: a staging document holds its receipt and little else.
///
/// Bounds what a file given by somebody else can make us read.
const MAX_FILE: u64 = 4 * MAX_ENVELOPE_BYTES as u64;

/// Exit 0 only for a receipt that holds. It says what was true at `verified_at`, not that the files are there now.
pub async fn run(session: &Session, command: ReceiptCommand) -> Result<(), Error> {
    let ReceiptCommand::Verify { file, keys } = command;
    let envelope = read_envelope(&file)?;
    let keys = match keys {
        Some(path) => parse(&path, "key file", &read(&path, "key file")?)?,
        None => session.api_without_token()?.get::<PublicKeys>("/v1/keys").await?,
    };
    let statement = check(&envelope, &keys)?;
    let mut document = serde_json::to_value(&statement).unwrap_or_default();
    document["valid"] = json!(true);
    output::show(session.format, &document, |out| {
        writeln!(out, "the receipt holds")?;
        output::facts(out, &facts(&statement))
    })?;
    Ok(())
}

/// Proves an envelope with the service's keys.
///
/// One key that cannot be read refuses all: a list that is damaged proves nothing.
pub fn check(envelope: &Envelope, keys: &PublicKeys) -> Result<Readiness, Error> {
    let keys = keys.keys.iter().map(key).collect::<Result<Vec<_>, _>>()?;
    verify(envelope, &keys).map_err(|error| Error::BadReceipt { why: error.to_string() })
}

fn key(key: &PublicKey) -> Result<Key, Error> {
    let bad = |what: &str| Error::BadReceipt { why: format!("key `{}` has no usable {what}", key.key_id) };
    let bytes = BASE64.decode(key.public_key.as_bytes()).map_err(|_| bad("bytes"))?;
    Ok(Key {
        id: key.key_id.clone(),
        owner: match key.owner.as_str() {
            "node" => Owner::Node(key.node.clone()),
            "service" => Owner::Service,
            _ => return Err(bad("owner")),
        },
        public: bytes.try_into().map_err(|_| bad("bytes"))?,
        valid_from: key.valid_from.parse().map_err(|_| bad("begin"))?,
        valid_until: key.valid_until.as_deref().map(str::parse).transpose().map_err(|_| bad("end"))?,
    })
}

/// Only what is signed is shown.
fn facts(statement: &Readiness) -> Vec<(&'static str, String)> {
    let method = &statement.method;
    let proven = match &method.unchanged_since {
        None => format!("{} files written, synced and read back", count(method.reread_files)),
        Some(since) => format!(
            "{} files written, synced and read back; {} unchanged since {}",
            count(method.reread_files),
            count(method.unchanged_files),
            instant(since)
        ),
    };
    vec![
        ("node", statement.node.clone()),
        ("job", statement.job.clone()),
        ("staging", statement.staging.clone()),
        ("lease epoch", statement.lease_epoch.to_string()),
        ("tree", statement.tree.to_string()),
        ("holds", format!("{} in {} files", size(statement.bytes), count(statement.files))),
        ("verified", instant(&statement.verified_at)),
        ("method", proven),
    ]
}

fn read_envelope(path: &Path) -> Result<Envelope, Error> {
    let document: Value = parse(path, "receipt", &read(path, "receipt")?)?;
    // A staging document, or an event about one, holds the envelope.
    let inner = [document.get("receipt"), document.pointer("/data/receipt")].into_iter().flatten().next();
    let text = inner.unwrap_or(&document).to_string();
    Envelope::from_json(text.as_bytes()).map_err(|error| Error::BadReceipt { why: error.to_string() })
}

/// A key file passes through here too, and is bounded the same.
fn read(path: &Path, what: &'static str) -> Result<Vec<u8>, Error> {
    let mut text = Vec::new();
    let mut take = |reader: &mut dyn Read| reader.take(MAX_FILE + 1).read_to_end(&mut text);
    let done = match path.as_os_str() == "-" {
        true => take(&mut std::io::stdin().lock()),
        false => fs_err::File::open(path).and_then(|mut file| take(&mut file)),
    };
    done.map_err(Error::local(path))?;
    if text.len() as u64 > MAX_FILE {
        let why = format!("it is longer than {MAX_FILE} bytes");
        return Err(Error::BadFile { path: path.to_owned(), what, why });
    }
    Ok(text)
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path, what: &'static str, text: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(text).map_err(|error| Error::BadFile { path: path.to_owned(), what, why: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_too_long_is_called_what_it_is() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(MAX_FILE + 1).unwrap();
        for what in ["receipt", "key file"] {
            assert!(matches!(read(file.path(), what), Err(Error::BadFile { what: told, .. }) if told == what));
        }
    }
}
