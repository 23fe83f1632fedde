//! Readiness receipts: the node's half is checked against what the service itself knows, then countersigned and kept.
//!
//! Nothing is believed that can be computed: the tree digest, the number of files and bytes of exactly what was to be staged come from the inputs'
//! trees (`app::inputs`), identity and sequence from SQL. Only a receipt that says the same becomes `ready`.
//!
//! ```text
//! report `ready` -> lease live? -> statement equal to what the service computed? -> node's signature? -> countersigned, kept, in the row
//! ```

use super::App;
use super::error::{Code, Error, Kind};
use super::jobs::json;
use crate::api::jobs::StagingReport;
use crate::content::digest::Digest;
use crate::db::{Tx, jobs, keys, leases, stagings};
use crate::domain::receipt::{self, Envelope, Key, Owner, Readiness};

/// The detail names the first thing that does not hold. The agent verifies the directory again and signs what it finds; the
/// staging is not ready until then.
pub const BAD_RECEIPT: Code = Code::new(Kind::Invalid, "bad_receipt", "the readiness receipt does not hold");

impl App {
    /// Checks and countersigns the receipt of a `ready` report; writes it into the row and keeps it for ever. In the
    /// transaction of the report, under the job's lock, before the row becomes `ready`: without a receipt that holds there
    /// is no `ready`. `ready_seq` must be the next one, so an earlier receipt of the same staging cannot be shown again.
    ///
    /// Only when it was verified, and how, is taken on the node's word. Signatures of others are dropped.
    pub(super) async fn take_receipt(
        &self,
        tx: &mut Tx,
        job: &jobs::Job,
        row: &mut stagings::Staging,
        report: &StagingReport,
    ) -> Result<(), Error> {
        self.lease_still_lives(tx, row).await?;
        let given = report.receipt.as_ref().ok_or_else(|| bad("a report of `ready` carries no receipt"))?;
        let text = json(given)?;
        let mut envelope = Envelope::from_json(text.as_bytes()).map_err(|error| bad(error.to_string()))?;
        let statement = envelope.statement().map_err(|error| bad(error.to_string()))?;
        let (node, name) =
            row.node.clone().ok_or_else(|| Error::internal("a report about a staging without a node"))?;
        let expected =
            row.expected.ok_or_else(|| Error::internal("a staging's tree is not known before its receipt"))?;
        let wanted = Readiness {
            team: job.team_name.clone(),
            job: job.id.to_string(),
            staging: row.id.to_string(),
            ready_seq: row.ready_seq + 1,
            lease_epoch: row.epoch,
            node: name.clone(),
            tree: Digest::from_bytes(expected.tree),
            files: expected.files,
            bytes: expected.bytes,
            verified_at: statement.verified_at.clone(),
            method: statement.method.clone(),
        };
        if let Some(difference) = difference(&wanted, &statement) {
            return Err(bad(difference));
        }
        let key = keys::of_node(tx, node).await?.ok_or_else(|| bad("the node has no enrolled key"))?;
        let (id, public, valid_from) = (key.key_id, key.public_key, key.valid_from);
        let key = Key { id, owner: Owner::Node(Some(name)), public, valid_from, valid_until: None };
        receipt::signed_by_node(&envelope, &statement, std::slice::from_ref(&key))
            .map_err(|error| bad(error.to_string()))?;
        envelope.signatures.retain(|signature| signature.keyid == key.id);
        let bytes = envelope.signed_bytes().map_err(|error| bad(error.to_string()))?;
        let signature = self.keys.sign_receipt(&bytes);
        envelope.add(signature.key_id, &signature.bytes);
        let envelope = json(&envelope)?;
        let kept = stagings::Staging { ready_seq: row.ready_seq + 1, ..row.clone() };
        stagings::add_receipt(tx, &kept, &envelope, self.clock.now()).await?;
        row.receipt = Some(envelope);
        Ok(())
    }

    /// Nothing becomes ready on a lease whose time has run out, released or not: who reads the receipt relies on the node
    /// being the job's.
    async fn lease_still_lives(&self, tx: &mut Tx, row: &stagings::Staging) -> Result<(), Error> {
        let lease = match row.lease {
            Some(lease) => leases::get(tx, row.team, lease).await?,
            None => None,
        };
        if lease.is_some_and(|lease| lease.tenure.is_live(self.clock.now())) {
            return Ok(());
        }
        let detail = "the lease's time has run out";
        Err(Error::new(
            super::leases::LEASE_OVER,
            detail,
            "the staging is about to be released; ask for the node's work again",
        ))
    }
}

fn bad(detail: impl Into<String>) -> Error {
    Error::new(BAD_RECEIPT, detail, "verify the job's directory again and sign what was found")
}

/// The first field in which a statement is not what it should be, in words for the agent's log.
fn difference(wanted: &Readiness, said: &Readiness) -> Option<String> {
    let differs = |field: &str, wanted: &dyn std::fmt::Display, said: &dyn std::fmt::Display| {
        let (wanted, said) = (wanted.to_string(), said.to_string());
        (wanted != said).then(|| format!("the receipt's `{field}` is `{}`, not `{wanted}`", said.escape_debug()))
    };
    differs("team", &wanted.team, &said.team)
        .or_else(|| differs("job", &wanted.job, &said.job))
        .or_else(|| differs("staging", &wanted.staging, &said.staging))
        .or_else(|| differs("ready_seq", &wanted.ready_seq, &said.ready_seq))
        .or_else(|| differs("lease_epoch", &wanted.lease_epoch, &said.lease_epoch))
        .or_else(|| differs("node", &wanted.node, &said.node))
        .or_else(|| differs("tree", &wanted.tree, &said.tree))
        .or_else(|| differs("files", &wanted.files, &said.files))
        .or_else(|| differs("bytes", &wanted.bytes, &said.bytes))
}
