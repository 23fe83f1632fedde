//! What a staging would do, before anything is done.
//!
//! ```text
//! GET /v1/jobs/{id}/plan?node=      StagingPlan
//! ```

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct PlanQuery {
    /// The node whose room and lease are looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// What staging a job's inputs would bring where. Nothing is changed by asking, and nothing is promised.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StagingPlan {
    pub job: String,
    pub inputs: Vec<PlannedInput>,
    /// Of all inputs: regular files, and their sizes with each group of hard links once.
    pub files: u64,
    pub bytes: u64,
    /// Room that the node's disk must have, by the agent's own reckoning.
    pub needed_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<PlannedNode>,
    /// Why a staging would be refused or fail; none when nothing is known against it.
    pub refusals: Vec<Refusal>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlannedInput {
    /// Where it would lie in the job's directory.
    pub at: String,
    /// The version that the job keeps.
    #[serde(rename = "ref")]
    pub reference: String,
    pub digest: String,
    /// Subtree of the version, empty for all of it.
    pub path: String,
    /// What is chosen of the version; absent where that cannot be said, and a refusal says why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<Chosen>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Chosen {
    pub files: u64,
    pub dirs: u64,
    pub symlinks: u64,
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlannedNode {
    pub name: String,
    /// As its agent reported when it started; absent when none ever did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Last time its agent was heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_at: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Refusal {
    pub code: String,
    pub detail: String,
}
