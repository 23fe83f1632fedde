//! Jobs, leases, stagings, outputs; and what an agent hears and says.
//!
//! ```text
//! POST   /v1/jobs                     JobSpec -> 201 Job (callback_secret shown this once)      (Idempotency-Key)
//! GET    /v1/jobs?cursor=&limit=      Page<Job>          GET /v1/jobs/{id}    DELETE /v1/jobs/{id} (cancel)
//! POST   /v1/leases                   GrantLease -> 201 Lease                                   (Idempotency-Key)
//! GET    /v1/leases?job=              Page<Lease>
//! POST   /v1/leases/{id}/renew        RenewLease -> Lease
//! POST   /v1/leases/{id}/release      ReleaseLease -> Lease
//! POST   /v1/stagings                 RequestStaging -> 201 Staging                             (Idempotency-Key)
//! GET    /v1/stagings/{id}?wait=30&state_seq=4   Staging; waits until its `state_seq` is above the given one
//! GET    /v1/stagings?job=            Page<Staging>
//! DELETE /v1/stagings/{id}            Staging, cancelled
//! GET    /v1/jobs/{id}/outputs        Outputs
//! -- node tokens
//! POST   /v1/agent/hello              Hello -> Welcome
//! GET    /v1/agent/work?wait=30&seen= Work; waits until its `seq` differs from `seen`
//! POST   /v1/agent/stagings/{id}/report    StagingReport -> Staging
//! POST   /v1/agent/outputs/report          OutputReport -> 204
//! ```

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A job file, as JSON. TOML and JSON have the same keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<InputSpec>,
    #[serde(default)]
    pub data: Vec<InputSpec>,
    #[serde(default)]
    pub request: RequestSpec,
    #[serde(default)]
    pub output: Vec<OutputSpec>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointSpec>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<CallbackSpec>,
    /// Owner of `out/`, a numeric uid; by default the agent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as: Option<u32>,
}

/// One input: a version (or a subtree of it, `D@V:PATH`) under `at` in the job's directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InputSpec {
    pub from: String,
    pub at: String,
    #[serde(default)]
    pub include: Vec<String>,
    #[serde(default)]
    pub exclude: Vec<String>,
    /// `i/n`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<String>,
    #[serde(default)]
    pub allow_incomplete: bool,
    /// Stage symlinks that point out of their tree, as text, instead of refusing.
    #[serde(default)]
    pub allow_outside_links: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hours: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_by: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputSpec {
    pub name: String,
    /// Globs under `out/`; a single string is allowed.
    #[serde(deserialize_with = "one_or_many")]
    pub path: Vec<String>,
    /// Dataset that gets the version.
    pub to: String,
    #[serde(default)]
    pub when: OutputWhen,
    #[serde(default)]
    pub required: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputWhen {
    Success,
    #[default]
    Always,
    Evicted,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckpointSpec {
    pub path: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CallbackSpec {
    pub url: String,
}

fn one_or_many<'de, D: serde::Deserializer<'de>>(de: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }
    Ok(match OneOrMany::deserialize(de)? {
        OneOrMany::One(one) => vec![one],
        OneOrMany::Many(many) => many,
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Declared; no live lease.
    Submitted,
    /// Holds a lease.
    Leased,
    /// Lease released; outputs on their way.
    Returning,
    Finished,
    Failed,
    Cancelled,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    pub id: String,
    pub name: String,
    pub team: String,
    pub state: JobState,
    pub spec: JobSpec,
    /// `work` first (when declared), then `data` in order.
    pub inputs: Vec<JobInput>,
    pub created_at: String,
    /// `whsec_...`, shown once at submit when a callback is declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback_secret: Option<String>,
}

/// An input resolved at submit: the job keeps this version, whatever `@latest` becomes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobInput {
    pub spec: InputSpec,
    /// Subtree of the version, empty for all of it.
    pub path: String,
    pub version: super::datasets::Version,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantLease {
    pub job: String,
    pub node: String,
    /// RFC 3339 instant with an offset.
    pub until: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewLease {
    pub until: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReleaseReason {
    Finished,
    Failed,
    Preempted,
    Expired,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseLease {
    pub reason: ReleaseReason,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    pub id: String,
    pub job: String,
    pub node: String,
    /// Fencing token: rises with every lease of the job.
    pub epoch: u64,
    pub expires_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<ReleaseReason>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestStaging {
    pub job: String,
    /// Needs a live lease of the job on this node; without it the staging ends at `near`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_by: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StagingState {
    Accepted,
    Pulling,
    Verifying,
    /// Without a lease: every input is proven present in the store.
    Near,
    Ready,
    Unready,
    Failed,
    Cancelled,
    Released,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Staging {
    pub id: String,
    pub job: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    pub state: StagingState,
    /// Rises with every change of `state`.
    pub state_seq: u64,
    /// How often it has been `ready` so far; the next readiness receipt carries this plus one.
    #[serde(default)]
    pub ready_seq: u64,
    /// The lease's epoch; 0 without one.
    pub epoch: u64,
    pub bytes_total: u64,
    pub bytes_done: u64,
    pub bytes_reused: u64,
    pub sources: Sources,
    pub eta: Eta,
    /// The job's directory on the node, once known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// DSSE envelope of the readiness receipt, once ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub receipt: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<StagingError>,
    pub created_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<String>,
}

/// Bytes by where they came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Sources {
    pub cache: u64,
    pub peer: u64,
    pub store: u64,
}

/// When it will be ready; absent while nothing has been measured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Eta {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p90: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StagingError {
    pub code: String,
    pub detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputState {
    Declared,
    Sealing,
    Sealed,
    Storing,
    Stored,
    Missing,
    Failed,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Outputs {
    pub job: String,
    pub outputs: Vec<Output>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Output {
    pub name: String,
    pub state: OutputState,
    #[serde(rename = "ref", default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    pub files: u64,
    pub bytes: u64,
    /// Nothing matched its globs.
    pub missing: bool,
    pub links: Vec<super::links::Link>,
    /// Entries refused (links, special files), by name.
    #[serde(default)]
    pub skipped: Vec<SkippedEntry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<StagingError>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SkippedEntry {
    pub path: String,
    pub reason: String,
}

/// Query of a job's leases or stagings.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct OfJob {
    pub job: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// At most 1,000; 100 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

impl OfJob {
    /// The paging part.
    pub fn page(&self) -> super::teams::PageQuery {
        super::teams::PageQuery { cursor: self.cursor.clone(), limit: self.limit }
    }
}

/// Query of one staging.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct WatchStaging {
    /// Seconds to wait for a change; the service may answer earlier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<u32>,
    /// The `state_seq` known: the answer comes once it is above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_seq: Option<u64>,
}

/// Query of a node's work.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct AskWork {
    /// Seconds to wait for a change; the service may answer earlier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<u32>,
    /// The `seq` known: the answer comes once it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<String>,
}

/// An agent says hello at start; a second live agent of the same node with another `instance` is refused (`409 node_in_use`) until the first was silent for 60 s.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// Random for each process.
    pub instance: String,
    /// Ed25519 public key, base64; enrolled on the token's first use, fixed afterwards.
    pub public_key: String,
    pub inventory: super::nodes::Inventory,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Welcome {
    pub node: String,
    pub team: String,
    /// Key id under which receipts of this node verify.
    pub key_id: String,
}

/// All that this node should be doing now. The agent makes it so; it may be told the same again.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct Work {
    pub seq: String,
    pub stagings: Vec<WorkStaging>,
    /// Stagings that ended (lease released, or cancelled): outputs to bring back, then the directory goes, then a report of
    /// state `released`, which takes it off this list. Outputs still due by then count as missing.
    pub returns: Vec<WorkReturn>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WorkStaging {
    pub staging: Staging,
    pub job: Job,
    pub lease: Lease,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WorkReturn {
    pub staging: Staging,
    pub job: Job,
    pub lease: Lease,
    /// Names of outputs due by the release's reason that are not yet stored.
    pub outputs: Vec<String>,
}

/// Where the node stands. Fenced by `epoch`: a report of an older lease is `409 fenced`. May be said again, and may skip states. A node is
/// `unready` before it may be anything else after `ready`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StagingReport {
    pub instance: String,
    pub epoch: u64,
    pub state: StagingState,
    pub bytes_total: u64,
    pub bytes_done: u64,
    pub bytes_reused: u64,
    #[serde(default)]
    pub sources: Sources,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// With `ready`: DSSE envelope (`domain::receipt`) signed by the agent's key, `ready_seq` one above the staging's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub receipt: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<StagingError>,
}

/// Where one declared output stands. Fenced by its own (job, lease epoch, output) row; a late one is a further version marked `late`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OutputReport {
    pub job: String,
    pub lease_epoch: u64,
    pub name: String,
    pub state: OutputState,
    pub files: u64,
    pub bytes: u64,
    /// With `stored`: the version's UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(default)]
    pub skipped: Vec<SkippedEntry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<StagingError>,
}
