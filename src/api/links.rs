//! Links: signed URLs for people without an account.
//!
//! ```text
//! POST   /v1/links          CreateLink -> 201 Link
//! DELETE /v1/links/{id}     204; the URL stops working at once
//! GET    /l/{id}/{name}?exp=&sig=    the file or archive; Range, If-Range, ETag, Content-Length; no token
//! ```

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateLink {
    /// `DATASET[@V]`.
    #[serde(rename = "ref")]
    pub reference: String,
    /// File or subtree; empty means the whole version (an archive).
    #[serde(default)]
    pub path: String,
    /// A subtree or version needs one; `zip` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<ArchiveKind>,
    /// Seconds from now; 7 days (604,800) at most and by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<u64>,
    /// Presigned by the store, on an export object.
    #[serde(default)]
    pub direct: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ArchiveKind {
    Zip,
    Tar,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LinkKind {
    Service,
    Direct,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Link {
    pub id: String,
    pub url: String,
    pub kind: LinkKind,
    /// Length of the download.
    pub bytes: u64,
    /// The true end, also where it is earlier than asked.
    pub expires_at: String,
}

/// What a link's URL is signed with.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct LinkSignature {
    /// End, in seconds since 1970.
    pub exp: i64,
    pub sig: String,
}
