//! Errors on the wire: RFC 9457 problem documents with a stable `code`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Media type of [`Problem`].
pub const PROBLEM_JSON: &str = "application/problem+json";

/// One refusal or failure. `code` is stable and meant for programs; `detail` and `hint` are for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Always `about:blank`: the code carries the meaning.
    #[serde(rename = "type", default = "about_blank")]
    pub kind: String,
    /// Stable code, for example `chunks_gone`.
    pub code: String,
    /// What kind of thing went wrong, the same for every occurrence of the code.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// What went wrong this time.
    pub detail: String,
    /// What to do next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Names this request in the service's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Further facts by code, for example `{"packs": [...]}` with `chunks_gone`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub data: Option<serde_json::Value>,
}

fn about_blank() -> String {
    "about:blank".to_owned()
}
