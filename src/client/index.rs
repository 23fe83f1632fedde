//! Fetching the index of a pack: bounded, and proven against the pack's id.
//!
//! The index names the chunks and where their frames lie; nothing may be read from a pack, or reused of it, before its index is proven.

use super::api::{Api, route};
use super::context::TransferError;
use super::transfer::Target;
use crate::content::pack::{HEADER_BYTES, MAX_INDEX_BYTES, PackId, PackIndex};

/// The index of a pack of the caller's team.
/// By the bearer token, without a grant. A pack that is not there (any more) is a refusal of the service.
pub(super) async fn fetch(api: &Api, pack: PackId) -> Result<PackIndex, TransferError> {
    let path = route(&["v1", "packs", &pack.to_string(), "index"], &[]);
    let mut download = api.get_stream(Target::Service(&path), None).await?;
    let mut bytes = Vec::new();
    while let Some(part) = download.next().await? {
        if download.position() > HEADER_BYTES as u64 + MAX_INDEX_BYTES {
            return Err(TransferError::BadPack { pack, why: "its index is too long".to_owned() });
        }
        bytes.extend_from_slice(&part);
    }
    decode(pack, &bytes)
}

/// Reads an index and proves that it is this pack's.
/// [`TransferError::BadPack`] is damage at rest or on the way, or a service that answers for another pack; none of it is ever used.
pub(super) fn decode(pack: PackId, bytes: &[u8]) -> Result<PackIndex, TransferError> {
    let index = PackIndex::decode(bytes).map_err(|error| TransferError::BadPack { pack, why: error.to_string() })?;
    if index.id() != pack {
        return Err(TransferError::BadPack { pack, why: format!("its index is that of {}", index.id()) });
    }
    Ok(index)
}
