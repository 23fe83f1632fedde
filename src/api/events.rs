//! Events: structured CloudEvents, the same to a callback and to a poll; and the service's public keys.
//!
//! ```text
//! GET /v1/events?after=&wait=30&limit=    Page<Event>, oldest first; `cursor` = id of the last one seen
//! GET /v1/webhooks/deliveries?job=        Page<Delivery>
//! POST /v1/webhooks/deliveries/{id}/replay   202
//! GET /v1/keys                            PublicKeys (no token)
//! ```

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Media type of a delivered event.
pub const CLOUDEVENTS_JSON: &str = "application/cloudevents+json; charset=UTF-8";

/// One fact, one id, for ever. `webhook-id` of every delivery is `id`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    pub specversion: String,
    pub id: String,
    /// The service's public URL.
    pub source: String,
    /// `dray.staging.ready.v1`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The job's id.
    pub subject: String,
    pub time: String,
    pub datacontenttype: String,
    #[schema(value_type = Object)]
    pub data: serde_json::Value,
}

/// Query of events.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct AskEvents {
    /// Id of the last event seen; from the oldest on when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Seconds to wait when there is none; the service may answer earlier, with an empty page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<u32>,
    /// At most 1,000; 100 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

impl AskEvents {
    /// The paging part.
    pub fn page(&self) -> super::teams::PageQuery {
        super::teams::PageQuery { cursor: None, limit: self.limit }
    }
}

/// Query of deliveries.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct AskDeliveries {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// At most 1,000; 100 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

impl AskDeliveries {
    /// The paging part.
    pub fn page(&self) -> super::teams::PageQuery {
        super::teams::PageQuery { cursor: self.cursor.clone(), limit: self.limit }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    Pending,
    Delivered,
    /// Given up; `replay` sends it again.
    Dead,
}

/// How one event fares on its way to a callback.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Delivery {
    pub event: String,
    pub job: String,
    pub url: String,
    pub state: DeliveryState,
    pub attempts: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<String>,
}

/// Public keys that verify receipts; retired ones stay, with the end of their validity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PublicKeys {
    pub keys: Vec<PublicKey>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PublicKey {
    pub key_id: String,
    /// `service` or `node`.
    pub owner: String,
    /// Node name with `node`, in lists that whoever keeps them has completed; the service tells none, as anybody may ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// `ed25519`.
    pub algorithm: String,
    /// Base64 of the 32 bytes.
    pub public_key: String,
    pub valid_from: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_until: Option<String>,
}
