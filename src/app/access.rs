//! What a node may touch, and what an upload means to a job: the seam between this road and the stage road.
//!
//! A node's token opens nothing by itself. It may send what its job's lease declared as an output and read what is staged on
//! its node; both are the stage road's facts, looked up here in the caller's own transaction.

use uuid::Uuid;

use super::error::Error;
use super::{App, Caller};
use crate::db::Tx;
use crate::db::uploads::{OutputOf, Upload};
use crate::db::versions::Version;
use crate::domain::id::DatasetName;

impl App {
    /// Whether this caller may open an upload into the dataset, for this declared output if one is named.
    pub(super) async fn may_open(
        &self,
        _tx: &mut Tx,
        caller: &Caller,
        output: Option<&OutputOf>,
        _to: &DatasetName,
    ) -> Result<(), Error> {
        match (&caller.node, output) {
            (None, None) => Ok(()),
            (Some(_), None) => Err(Error::denied("a node sends declared outputs only", "name the job's output")),
            (_, Some(output)) => {
                Err(Error::not_found("output", &output.name, "a job declares its outputs when it is submitted"))
            }
        }
    }

    /// Whether this caller may read the version's bytes: anybody of its team, and a node what is staged on it.
    pub(super) async fn may_read(&self, _tx: &mut Tx, caller: &Caller, _version: Uuid) -> Result<bool, Error> {
        Ok(caller.node.is_none())
    }

    /// Whether the output that the upload is for comes after its lease's end.
    pub(super) async fn is_late(&self, _tx: &mut Tx, _upload: &Upload) -> Result<bool, Error> {
        Ok(false)
    }

    /// Says, in the transaction that makes a version, that it was made.
    pub(super) async fn version_made(&self, tx: &mut Tx, _upload: &Upload, version: &Version) -> Result<(), Error> {
        tx.notify(format!("dataset/{}", version.dataset));
        Ok(())
    }
}
