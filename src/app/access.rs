//! What a node may touch, and what an upload means to a job: the seam between this road and the stage road.
//!
//! A node's token opens nothing by itself. It may send what its job's lease declared as an output and read what is staged on
//! its node; both are the stage road's facts, looked up here in the caller's own transaction.

use uuid::Uuid;

use super::error::{Code, Error, Kind};
use super::{App, Caller};
use crate::db::uploads::{OutputOf, Upload};
use crate::db::versions::Version;
use crate::db::{Tx, jobs, stagings};
use crate::domain::id::DatasetName;

/// Wait until the jobs in `data.jobs` are over, or cancel them.
pub const IN_USE: Code = Code::new(Kind::Conflict, "in_use", "a job holds on to this version");

impl App {
    /// Whether this caller may open an upload into the dataset, for this declared output if one is named. Without a node and
    /// an output anybody of the team may; with an output the job's declaration decides, also for a caller that is no node.
    /// In the caller's transaction, so that what is allowed is still so when the upload is written.
    pub(super) async fn may_open(
        &self,
        tx: &mut Tx,
        caller: &Caller,
        output: Option<&OutputOf>,
        to: &DatasetName,
    ) -> Result<(), Error> {
        match (&caller.node, output) {
            (None, None) => Ok(()),
            (Some(_), None) => Err(Error::denied("a node sends declared outputs only", "name the job's output")),
            (_, Some(output)) => self.may_push_output(tx, caller, &output.into(), to.as_str()).await.map(drop),
        }
    }

    /// Whether this caller may read the version's bytes: anybody of its team; a node what is staged on it, and what the dataset
    /// it is pushing an output into holds already.
    /// Asked by every use case that gives out a version's bytes or where they lie. `false` is answered as "no such version".
    pub(super) async fn may_read(&self, tx: &mut Tx, caller: &Caller, version: Uuid) -> Result<bool, Error> {
        let Some(node) = &caller.node else { return Ok(true) };
        Ok(self.node_may_read(tx, node.id, version).await? || stagings::node_pushes_to(tx, node.id, version).await?)
    }

    /// Whether the output that the upload is for comes after a newer lease of its job has begun.
    /// Only a first answer: a lease that begins afterwards is noticed when the output is reported as stored.
    pub(super) async fn is_late(&self, tx: &mut Tx, upload: &Upload) -> Result<bool, Error> {
        let Some(output) = &upload.output else { return Ok(false) };
        let job = jobs::get(tx, upload.team, output.job).await?;
        Ok(job.is_some_and(|job| output.lease_epoch < job.epoch))
    }

    /// Refuses to delete what a job that is not over holds on to. Said under the version's row lock, which whoever submits a
    /// job takes too: so either the job sees that the version is gone, or this sees the job. The answer names ten jobs at
    /// most.
    pub(super) async fn not_held_by_jobs(&self, tx: &mut Tx, version: Uuid) -> Result<(), Error> {
        let holding = jobs::holding(tx, version).await?;
        if holding.is_empty() {
            return Ok(());
        }
        let ids: Vec<String> = holding.iter().map(|(id, _)| id.to_string()).collect();
        let detail = format!("jobs that are not over stage this version: {}", ids.join(", "));
        let hint = "wait until they are over, or cancel them";
        Err(Error::new(IN_USE, detail, hint).with_data(serde_json::json!({ "jobs": ids })))
    }

    /// Says, in the transaction that makes a version, that it was made.
    pub(super) async fn version_made(&self, tx: &mut Tx, _upload: &Upload, version: &Version) -> Result<(), Error> {
        tx.notify(format!("dataset/{}", version.dataset));
        Ok(())
    }
}
