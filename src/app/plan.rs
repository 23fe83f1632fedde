//! What a staging would bring, read and told. Nothing is written here, and no wait is ended.
//!
//! It asks what a staging asks, in the same words: the same selection of the same versions, the agent's own reckoning of room, the lease that
//! a node needs. What stands against it is listed rather than refused, so that all of it is seen at once.
//!
//! Codes of refusals: `job_over`, `no_lease`, `node_silent`, `packs_missing`, `version_gone`, `version_incomplete`,
//! `bad_job`, `outside_links`, `path_not_found`, `no_space`.

use std::sync::Arc;

use uuid::Uuid;

use super::error::Error;
use super::inputs::{Refused, Source};
use super::jobs::{INCOMPLETE, no_job, spec_of, stored};
use super::{App, Caller};
use crate::api::datasets::Version;
use crate::api::jobs::InputSpec;
use crate::api::nodes::Inventory;
use crate::api::plans::{Chosen, PlannedInput, PlannedNode, Refusal, StagingPlan};
use crate::content::tree::Counts;
use crate::db::{Tx, jobs, leases, nodes, versions};
use crate::domain::selection::space_needed;

impl App {
    /// What a staging of this job, on this node if one is named, would bring and what stands against it. Fails only where
    /// there is no such job or node, or something cannot be read; all else is in `refusals`. A forecast: nothing is held,
    /// and it may be another a moment later.
    ///
    /// Walks every input's tree by itself, then all of them together where they are several, each time once more to weigh
    /// one that has a shard; so callers wait for their turn ([`super::data::WALKS`]).
    pub async fn plan_staging(
        self: &Arc<Self>,
        caller: &Caller,
        id: Uuid,
        node: Option<&str>,
    ) -> Result<StagingPlan, Error> {
        let mut session = self.db.snapshot().await?;
        let job = jobs::get(&mut session, caller.team, id).await?.ok_or_else(|| no_job(id))?;
        let mut refusals = Vec::new();
        if job.state.is_over() {
            refusals.push(refusal("job_over", format!("the job is {}", job.state.word())));
        }
        let node = match node {
            Some(name) => Some(self.planned_node(&mut session, &job, name, &mut refusals).await?),
            None => None,
        };
        let (mut inputs, mut sources) = (Vec::new(), Vec::new());
        let spec = spec_of(&job)?;
        for (input, kept) in spec.work.iter().chain(&spec.data).zip(jobs::inputs(&mut session, job.id).await?) {
            let live = versions::get(&mut session, kept.version).await?;
            let snapshot: Version = stored(&kept.snapshot)?;
            if let Some(version) = &live
                && let [pack, ..] = versions::dead_packs(&mut session, version.layout.id, 1).await?[..]
            {
                let detail =
                    format!("`{}`: the store lacks packs of `{}`, {pack} for one", input.at, snapshot.reference);
                refusals.push(refusal("packs_missing", detail));
            }
            inputs.push(PlannedInput {
                at: input.at.clone(),
                reference: snapshot.reference,
                digest: snapshot.digest,
                path: kept.path.clone(),
                chosen: None,
            });
            sources.push(source(input, live, &kept));
        }
        drop(session);
        let turn = self.data.walk().await.map_err(|error| Error::internal("no more walks").with_source(error))?;
        let (mut whole, mut sum) = (Vec::new(), Counts::default());
        for (input, source) in inputs.iter_mut().zip(sources) {
            let counted = match source {
                Ok(source) => {
                    let staged = self.staged_of(vec![source.clone()], turn.clone()).await?;
                    staged.map(|(_, counts)| (source, counts))
                }
                Err(refused) => Err(refused),
            };
            match counted {
                Ok((source, counts)) => {
                    input.chosen = Some(chosen(counts));
                    sum = counts;
                    whole.push(source);
                }
                Err(Refused { code, detail }) => refusals.push(refusal(code, format!("`{}`: {detail}", input.at))),
            }
        }
        if whole.len() != 1 {
            // Together they may be more than the sum: the directories on their ways count too.
            match self.staged_of(whole, turn).await? {
                Ok((_, counts)) => sum = counts,
                Err(Refused { code, detail }) => refusals.push(refusal(code, detail)),
            }
        }
        let needed_bytes = space_needed(&sum);
        if let Some(PlannedNode { name, free_bytes: Some(free), .. }) = &node
            && needed_bytes > *free
        {
            let detail = format!("{needed_bytes} bytes needed on `{name}`, {free} free when its agent started");
            refusals.push(refusal("no_space", detail));
        }
        let (files, bytes) = (sum.files, sum.bytes);
        Ok(StagingPlan { job: job.id.to_string(), inputs, files, bytes, needed_bytes, node, refusals })
    }

    /// Free bytes are what the agent said when it started, before what it has staged since.
    async fn planned_node(
        &self,
        tx: &mut Tx,
        job: &jobs::Job,
        name: &str,
        refusals: &mut Vec<Refusal>,
    ) -> Result<PlannedNode, Error> {
        let id = self.node_named(tx, job.team, name).await?;
        let lease = leases::newest(tx, job.id).await?;
        if !lease.is_some_and(|lease| lease.node == id && lease.tenure.is_live(self.clock.now())) {
            let detail = format!("the job holds no live lease on `{name}`; grant one with `dray lease grant`");
            refusals.push(refusal("no_lease", detail));
        }
        let row = nodes::by_name(tx, job.team, name).await?;
        let inventory = row.as_ref().and_then(|row| row.inventory.as_deref()).map(stored::<Inventory>).transpose()?;
        if inventory.is_none() {
            refusals.push(refusal("node_silent", format!("the agent of `{name}` was never heard; start it")));
        }
        Ok(PlannedNode {
            name: name.to_owned(),
            free_bytes: inventory.map(|inventory| inventory.free_bytes),
            seen_at: row.and_then(|row| row.seen_at).map(|at| at.to_string()),
        })
    }
}

/// What submit and the look into the inputs would say of it.
fn source(input: &InputSpec, live: Option<versions::Version>, kept: &jobs::Input) -> Result<Source, Refused> {
    let gone = || format!("the version of `{}` is gone", input.from.escape_debug());
    let version = live.ok_or_else(|| Refused { code: "version_gone", detail: gone() })?;
    if version.incomplete && !input.allow_incomplete {
        let detail =
            format!("`{}` is incomplete; push it again, or say `allow_incomplete = true`", version.reference());
        return Err(Refused { code: INCOMPLETE.code, detail });
    }
    Source::new(version, input, kept.path.as_bytes())
}

fn chosen(counts: Counts) -> Chosen {
    Chosen { files: counts.files, dirs: counts.dirs, symlinks: counts.symlinks, bytes: counts.bytes }
}

fn refusal(code: &str, detail: String) -> Refusal {
    Refusal { code: code.to_owned(), detail }
}
