//! An upload's life: opened, reopened, aborted, expired.
//!
//! What may follow what is decided by [`Standing`]; here it is looked up and carried out in one transaction. Another team's
//! upload does not exist. Expiry touches open uploads only, under their row lock, so a commit under way is never cut off.
//!
//! The states are drawn in [`crate::domain::version`]. Order of locks: team, then upload, when one is opened; upload first
//! in all else.

use jiff::Timestamp;
use serde_json::json;
use uuid::Uuid;

use super::error::{Code, Error, FENCED, Kind};
use super::versions::dataset_name;
use super::{App, Caller, Idempotency};
use crate::api;
use crate::api::uploads::{OpenUpload, OutputOf};
use crate::db::uploads::{Holder, Lifetime, Upload};
use crate::db::{Tx, packs, teams, uploads, versions};
use crate::domain::id::DatasetName;
use crate::domain::version::{Act, OverQuota, Refused, Standing, UploadState, within_quota};
use crate::transaction;

/// Open a new one, which is offered what other live uploads hold; one that expired may be reopened.
pub const UPLOAD_ENDED: Code = Code::new(Kind::Conflict, "upload_ended", "the upload takes nothing any more");
/// Passes: wait for the operation, which leaves it committed or open again.
pub const COMMITTING: Code = Code::new(Kind::Conflict, "committing", "the upload is being committed");
/// `data.needed_bytes` and `data.left_bytes`. Does not pass by waiting, unless other uploads are given up.
pub const QUOTA_EXCEEDED: Code = Code::new(Kind::TooLarge, "quota_exceeded", "the team's quota has no room for this");
/// Abort some, or wait until some expire.
pub const TOO_MANY_UPLOADS: Code = Code::new(Kind::TooMany, "too_many_uploads", "the team has too many open uploads");

/// Uploads ended by one run of the sweeper's transaction; it runs until none is overdue.
const SWEEP: u32 = 100;
/// Lost packs of a parent that an upload's document names; further ones are told when the commit misses them.
const LOST_TOLD: u32 = 4096;

impl App {
    /// Opens an upload; always a new one, except that a repeated call with the same key gets the same. What other live
    /// uploads of the dataset have pinned is pinned for it too and counted as offered: so another machine goes on where one
    /// broke off, and fences nobody. The dataset is made on its first mention.
    pub async fn open_upload(
        &self,
        caller: &Caller,
        request: &OpenUpload,
        call: &Idempotency,
    ) -> Result<api::uploads::Upload, Error> {
        let name = dataset_name(&request.dataset)?;
        transaction!(self.db, |tx| {
            if let Some(earlier) = self.replay(tx, caller.team, call).await? {
                return Ok(earlier);
            }
            let upload = self.admit_upload(tx, caller, &name, request).await?;
            uploads::insert(tx, &upload, self.clock.now()).await?;
            let offered = packs::pin_offered(tx, upload.id, upload.dataset, self.clock.now()).await?;
            let made = self.upload_document(tx, &upload, Some(offered)).await?;
            self.remember(tx, caller.team, call, &made).await?;
            Ok::<_, Error>(made)
        })
    }

    /// Everything that may speak against a new upload, and its row: the number of open ones, the quota with what all of them
    /// announced, and for a node the output. Under the team's lock, so that two cannot both take the last place.
    async fn admit_upload(
        &self,
        tx: &mut Tx,
        caller: &Caller,
        name: &DatasetName,
        request: &OpenUpload,
    ) -> Result<Upload, Error> {
        let now = self.clock.now();
        let team = teams::lock(tx, caller.team).await?.ok_or_else(|| Error::internal("a caller's team has no row"))?;
        let (open, announced) = uploads::live(tx, caller.team, now).await?;
        let most = u64::from(self.settings.limits.open_uploads_per_team);
        if open >= most {
            let detail = format!("the team has {open} open uploads, and {most} are allowed");
            let hint = "abort uploads that are not needed, or wait until they expire";
            return Err(Error::new(TOO_MANY_UPLOADS, detail, hint).retry_after(std::time::Duration::from_secs(60)));
        }
        within_quota(team.quota_bytes, team.used_bytes.saturating_add(announced), request.bytes).map_err(over_quota)?;
        let output = request.output.as_ref().map(output_row).transpose()?;
        let dataset = versions::ensure_dataset(tx, caller.team, name, self.ids.uuid(), now).await?;
        self.may_open(tx, caller, output.as_ref(), name).await?;
        Ok(Upload {
            id: self.ids.uuid(),
            team: caller.team,
            dataset,
            standing: Standing::FIRST,
            bytes: request.bytes,
            sent: 0,
            output,
            node: caller.node.as_ref().map(|node| node.id),
            operation: None,
            expires_at: self.upload_life().until,
        })
    }

    /// With what it has pinned so far, as `offered_packs`.
    pub async fn get_upload(&self, caller: &Caller, id: Uuid) -> Result<api::uploads::Upload, Error> {
        let mut session = self.db.read().await?;
        let upload = visible(uploads::get(&mut session, id).await?, caller, id)?;
        self.upload_document(&mut session, &upload, None).await
    }

    /// Takes an upload over: whoever held it before is fenced by the epoch that is answered. An expired one comes back,
    /// without its pins; what other live uploads have pinned is offered as at the opening. Refused once it is committing,
    /// committed or aborted.
    pub async fn reopen_upload(&self, caller: &Caller, id: Uuid) -> Result<api::uploads::Upload, Error> {
        transaction!(self.db, |tx| {
            let mut upload = visible(uploads::lock(tx, id).await?, caller, id)?;
            let until = self.upload_life().until;
            self.step(tx, &mut upload, Act::Reopen, until).await?;
            let offered = packs::pin_offered(tx, id, upload.dataset, self.clock.now()).await?;
            self.upload_document(tx, &upload, Some(offered)).await
        })
    }

    /// Gives an upload up: its pins go, nothing of it is ever seen. Saying it twice is fine. Not while it is committing:
    /// wait for the operation. By any caller that sees it, without an epoch.
    pub async fn abort_upload(&self, caller: &Caller, id: Uuid) -> Result<(), Error> {
        transaction!(self.db, |tx| {
            let mut upload = visible(uploads::lock(tx, id).await?, caller, id)?;
            let until = upload.expires_at;
            self.step(tx, &mut upload, Act::Abort, until).await?;
            packs::unpin(tx, id).await?;
            Ok::<_, Error>(())
        })
    }

    /// Ends open uploads whose time is over: they are fenced and their pins dropped. Answers how many; may run anywhere, any
    /// number of times.
    pub async fn expire_uploads(&self) -> Result<u64, Error> {
        let mut ended = 0;
        loop {
            let batch: u32 = transaction!(self.db, |tx| {
                let overdue = uploads::overdue(tx, self.clock.now(), SWEEP).await?;
                let mut count = 0;
                for mut upload in overdue {
                    let until = upload.expires_at;
                    self.step(tx, &mut upload, Act::Expire, until).await?;
                    packs::unpin(tx, upload.id).await?;
                    count += 1;
                }
                Ok::<_, Error>(count)
            })?;
            ended += u64::from(batch);
            if batch < SWEEP {
                return Ok(ended);
            }
        }
    }

    /// Moves a locked upload on, as its rules allow; refusals become conflicts. `until` is its end from now on. Afterwards
    /// `upload` stands as its row does.
    pub(super) async fn step(&self, tx: &mut Tx, upload: &mut Upload, act: Act, until: Timestamp) -> Result<(), Error> {
        let next = upload.standing.after(act).map_err(refused)?;
        if next != upload.standing && !uploads::advance(tx, upload.id, upload.standing, next, until).await? {
            return Err(Error::internal(format!("upload `{}` moved while it was locked", upload.id)));
        }
        upload.standing = next;
        upload.expires_at = until;
        Ok(())
    }

    /// Now, and the end of an upload that something happens to now.
    pub(super) fn upload_life(&self) -> Lifetime {
        let now = self.clock.now();
        let until = now.checked_add(self.settings.limits.upload_ttl.0).unwrap_or(Timestamp::MAX);
        Lifetime { now, until }
    }

    /// Says why [`uploads::extend`] did nothing, by looking at the upload in the same transaction.
    pub(super) async fn why_not(&self, tx: &mut Tx, caller: &Caller, holder: Holder) -> Error {
        match uploads::get(tx, holder.upload).await {
            Ok(found) => match visible(found, caller, holder.upload) {
                Ok(upload) => match may_add(&upload, holder.epoch, self.clock.now()) {
                    Err(refusal) => refusal,
                    Ok(()) => Error::internal(format!("upload `{}` is open but took nothing", holder.upload)),
                },
                Err(error) => error,
            },
            Err(error) => error.into(),
        }
    }

    /// `lost_packs` names what the newest version lacks, so that a push sends it again and heals it.
    async fn upload_document(
        &self,
        tx: &mut Tx,
        upload: &Upload,
        offered: Option<u64>,
    ) -> Result<api::uploads::Upload, Error> {
        let parent = versions::newest(tx, upload.dataset).await?;
        let lost_packs = match &parent {
            Some(parent) => versions::dead_packs(tx, parent.layout.id, LOST_TOLD).await?,
            None => Vec::new(),
        };
        let offered_packs = match offered {
            Some(offered) => offered,
            None => packs::pinned(tx, upload.id).await?,
        };
        Ok(api::uploads::Upload {
            id: upload.id.to_string(),
            dataset: versions::dataset_name(tx, upload.dataset).await?,
            epoch: upload.standing.epoch,
            state: state_document(upload.standing.state),
            expires_at: upload.expires_at.to_string(),
            parent: parent.as_ref().map(super::versions::document),
            lost_packs: lost_packs.iter().map(ToString::to_string).collect(),
            offered_packs,
            max_pack_bytes: self.settings.limits.max_pack_bytes.0,
            portable_names: versions::is_portable(tx, upload.team).await?,
        })
    }
}

fn output_row(output: &OutputOf) -> Result<uploads::OutputOf, Error> {
    let bad = |_| Error::invalid("output.job", "is no job's id", "give the id that `job submit` answered");
    let job = Uuid::parse_str(&output.job).map_err(bad)?;
    Ok(uploads::OutputOf { job, lease_epoch: output.lease_epoch, name: output.name.clone() })
}

/// The upload, if it is the caller's team's, and with a node's token the node's own. Otherwise it does not exist.
pub(super) fn visible(upload: Option<Upload>, caller: &Caller, id: Uuid) -> Result<Upload, Error> {
    let node = caller.node.as_ref().map(|node| node.id);
    upload
        .filter(|upload| upload.team == caller.team && (node.is_none() || upload.node == node))
        .ok_or_else(|| Error::not_found("upload", id, "open one with `POST /v1/uploads`"))
}

/// Whether the holder of this epoch may add to the upload now. An open one whose time is over is treated as the sweeper
/// would have left it: its epoch has risen, so its holder is fenced.
pub(super) fn may_add(upload: &Upload, epoch: u64, now: Timestamp) -> Result<(), Error> {
    let standing = upload.standing;
    let over = standing.state == UploadState::Open && upload.expires_at <= now;
    let standing = if over { standing.after(Act::Expire).map_err(refused)? } else { standing };
    standing.fence(epoch).and_then(|standing| standing.after(Act::Add)).map(drop).map_err(refused)
}

/// A refusal of the rules, as an answer.
pub(super) fn refused(why: Refused) -> Error {
    let code = match why {
        Refused::Fenced { .. } => FENCED,
        Refused::Committing => COMMITTING,
        Refused::Committed | Refused::Aborted | Refused::Expired | Refused::NotCommitting => UPLOAD_ENDED,
    };
    let error = Error::new(code, why.to_string(), "ask `GET /v1/uploads/{id}` how it stands");
    match why {
        Refused::Fenced { now, .. } => error.with_data(json!({ "epoch": now })),
        _ => error,
    }
}

/// A full quota, as an answer with its numbers.
pub(super) fn over_quota(over: OverQuota) -> Error {
    let data = json!({ "needed_bytes": over.needed, "left_bytes": over.left });
    Error::new(
        QUOTA_EXCEEDED,
        over.to_string(),
        "delete versions with `dray rm`, or ask the operator for a larger quota",
    )
    .with_data(data)
}

fn state_document(state: UploadState) -> api::uploads::UploadState {
    match state {
        UploadState::Open => api::uploads::UploadState::Open,
        UploadState::Committing => api::uploads::UploadState::Committing,
        UploadState::Committed => api::uploads::UploadState::Committed,
        UploadState::Aborted => api::uploads::UploadState::Aborted,
        UploadState::Expired => api::uploads::UploadState::Expired,
    }
}
