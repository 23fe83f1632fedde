//! `dray link`, `dray rm`.
//!
//! Both change things for others: a link gives bytes away, a deletion takes them. A link is said with its true end, which
//! may be nearer than what was asked for; a deletion is asked about on a terminal.

use super::error::Error;
use super::output;
use super::reference::{Reference, ReferenceParser};
use super::session::Session;
use super::units::{instant, parse_duration, size};
use crate::api::datasets::Version;
use crate::api::links::{ArchiveKind, CreateLink, Link};
use crate::client::api::route;
use serde_json::json;
use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Duration;

/// Make a URL by which someone without an account downloads files
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct LinkArgs {
    #[command(subcommand)]
    command: Option<LinkCommand>,
    /// `DATASET[@V][:PATH]`
    #[arg(value_name = "REF", value_parser = ReferenceParser, required = true)]
    reference: Option<Reference>,
    /// One archive of the version or subtree
    #[arg(long)]
    archive: Option<Archive>,
    /// How long it works; 7 days at most
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "7d")]
    expires: Duration,
    /// A URL of the store's own instead of the service's
    #[arg(long)]
    direct: bool,
}

#[derive(Debug, clap::Subcommand)]
pub enum LinkCommand {
    /// Make a link stop working
    Revoke { id: String },
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum Archive {
    Zip,
    Tar,
}

/// The URL stands alone on the first line, to be copied. Whoever holds it needs no token.
pub async fn link(session: &Session, args: LinkArgs) -> Result<(), Error> {
    let api = session.api()?;
    if let Some(LinkCommand::Revoke { id }) = args.command {
        api.delete::<()>(&route(&["v1", "links", &id], &[])).await?;
        let document = json!({ "id": id, "revoked": true });
        return Ok(output::show(session.format, &document, |out| writeln!(out, "revoked {}", output::clean(&id)))?);
    }
    let reference = args.reference.expect("clap requires it without a subcommand");
    let request = request(&reference, args.archive, args.expires, args.direct)?;
    let link: Link = api.post("/v1/links", &request).await?;
    output::show(session.format, &link, |out| {
        writeln!(out, "{}", output::clean(&link.url))?;
        let facts = [("link", link.id.clone()), ("size", size(link.bytes)), ("until", instant(&link.expires_at))];
        output::facts(out, &facts)
    })?;
    Ok(())
}

/// Refused here what the wire cannot say: JSON has no bytes.
fn request(
    reference: &Reference,
    archive: Option<Archive>,
    expires: Duration,
    direct: bool,
) -> Result<CreateLink, Error> {
    let path = reference.path.as_ref().map_or(&b""[..], |path| path.as_bytes());
    let path = std::str::from_utf8(path).map_err(|_| Error::Usage {
        what: "a link's path must be UTF-8".to_owned(),
        hint: "link the directory that holds it, as an archive",
    })?;
    Ok(CreateLink {
        reference: reference.version.clone(),
        path: path.to_owned(),
        archive: archive.map(|archive| match archive {
            Archive::Zip => ArchiveKind::Zip,
            Archive::Tar => ArchiveKind::Tar,
        }),
        expires_in: Some(expires.as_secs()),
        direct,
    })
}

/// Delete a version, or without `@V` a dataset with all its versions
#[derive(Debug, clap::Args)]
pub struct RmArgs {
    /// `DATASET[@V]`
    #[arg(value_name = "REF", value_parser = ReferenceParser)]
    reference: Reference,
    /// Do not ask, also on a terminal
    #[arg(long, short)]
    yes: bool,
}

/// Off a terminal nothing is asked: a script that says `rm` means it. `@latest` is resolved first, and the question names
/// the version that is meant.
pub async fn rm(session: &Session, args: RmArgs) -> Result<(), Error> {
    let api = session.api()?;
    let reference = args.reference;
    if reference.path.is_some() {
        return Err(Error::Usage {
            what: "a version is deleted whole, not in parts".to_owned(),
            hint: "push the tree without the files, then delete the old version",
        });
    }
    let (target, path) = if reference.is_pinned() {
        let version: Version = api.get(&route(&["v1", "resolve"], &[("ref", &reference.version)])).await?;
        (version.reference.clone(), route(&["v1", "versions", &version.id], &[]))
    } else {
        (reference.version.clone(), route(&["v1", "datasets"], &[("name", &reference.version)]))
    };
    let what = if reference.is_pinned() { "version" } else { "dataset with all its versions" };
    if !args.yes && io::stdin().is_terminal() && !confirmed(what, &target)? {
        return Err(Error::Usage { what: "not deleted".to_owned(), hint: "say `--yes` to delete without a question" });
    }
    api.delete::<()>(&path).await?;
    let document = json!({ "ref": target, "deleted": true });
    output::show(session.format, &document, |out| writeln!(out, "deleted {what} {}", output::clean(&target)))?;
    Ok(())
}

/// Asks on stderr, so that stdout stays a document. Everything but yes is no, an end of input too.
fn confirmed(what: &str, target: &str) -> Result<bool, Error> {
    let mut err = io::stderr().lock();
    write!(err, "delete {what} {}? [y/N] ", output::clean(target))?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
