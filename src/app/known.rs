//! "Which of these do you have?": packs that hold sampled chunks, pinned before they are named.
//!
//! Only sealed packs of the caller's own team are ever looked at; for chunks that another team has, the answer and the work are
//! those for chunks that nobody has. The packs are locked in the order of their numbers, found to be sealed, and pinned, in the
//! transaction whose success lets them be named.
//!
//! ```text
//! sampled chunk ids (1 of 64) -> packs that hold most of them -> their neighbours in upload order, up to 64 MiB raw
//! -> locked, still sealed, pinned -> named
//! ```
//!
//! What is named is a hint where to look: the client fetches the packs' indexes and compares every chunk itself, so a wrong
//! guess costs a fetch and never a byte.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::error::Error;
use super::{App, Caller};
use crate::api::datasets::PackInfo;
use crate::api::uploads::{Known, KnownPacks};
use crate::content::digest::Digest;
use crate::content::pack::HEADER_BYTES;
use crate::db::Tx;
use crate::db::packs::{self, Pack, SampleKey, Side, sample_key};
use crate::db::uploads::{self, Holder};
use crate::transaction;

/// Chunks asked for in one call: about 16 GiB of data.
pub const MAX_ASKED: usize = 4096;
/// Packs named in one answer: so many rows are locked at once, and so many indexes the client fetches.
pub const MAX_NAMED: usize = 64;
/// Neighbours are added until so many raw bytes are covered: small packs of slow links may hold no sampled chunk at all.
const COVERED: u64 = 64 << 20;
/// Hits whose neighbours are looked for.
const CENTRES: usize = 16;

impl App {
    /// Packs worth looking into, pinned for the upload until it ends; a sign of life, too. Named in the order of their
    /// numbers. Refused like any addition when the upload is not open or the epoch is not its own. Ids that are not in the
    /// sample are refused, since nothing could be known of them.
    pub async fn known_packs(&self, caller: &Caller, upload: Uuid, request: &Known) -> Result<KnownPacks, Error> {
        let keys = sample_keys(caller.team, &request.chunks)?;
        let holder = Holder { upload, team: caller.team, epoch: request.epoch };
        let seen = uploads::get(&mut self.db.read().await?, upload).await?;
        super::upload::visible(seen, caller, upload)?;
        let packs = transaction!(self.db, |tx| {
            if !uploads::extend(tx, holder, self.upload_life(), 0).await? {
                return Err(self.why_not(tx, caller, holder).await);
            }
            let numbers = worth_looking_into(tx, caller.team, &keys).await?;
            let packs = packs::lock_shared(tx, &numbers).await?;
            let numbers: Vec<u64> = packs.iter().map(|pack| pack.number).collect();
            packs::pin(tx, upload, &numbers).await?;
            Ok::<_, Error>(packs)
        })?;
        Ok(KnownPacks { packs: packs.iter().map(pack_document).collect() })
    }
}

fn sample_keys(team: Uuid, chunks: &[String]) -> Result<Vec<SampleKey>, Error> {
    if chunks.len() > MAX_ASKED {
        let what = format!("names {} chunks", chunks.len());
        return Err(Error::invalid("chunks", what, format!("ask for {MAX_ASKED} at most, then again")));
    }
    let key = |hex: &String| {
        let id: Digest = hex
            .parse()
            .map_err(|error| Error::invalid("chunks", error, "send chunk ids as 64 lower-case hex digits"))?;
        if !id.is_sample() {
            return Err(Error::invalid(
                "chunks",
                format!("`{id}` is not in the sample"),
                "send ids whose last byte's low 6 bits are 0",
            ));
        }
        Ok(sample_key(team, &id))
    };
    chunks.iter().map(key).collect()
}

/// Numbers of packs, rising: those that hold most of the chunks, and their neighbours where they cover little. Not locked.
async fn worth_looking_into(tx: &mut Tx, team: Uuid, keys: &[SampleKey]) -> Result<Vec<u64>, Error> {
    let hits = packs::sampled(tx, keys).await?;
    let mut ranked: Vec<(u64, u64)> = hits.into_iter().collect();
    ranked.sort_by_key(|(number, count)| std::cmp::Reverse((*count, *number)));
    ranked.truncate(MAX_NAMED);
    let numbers: Vec<u64> = ranked.iter().map(|(number, _)| *number).collect();
    let found = by_rank(&numbers, packs::by_numbers(tx, &numbers).await?);
    let mut chosen: BTreeMap<u64, u64> = found.iter().map(|pack| (pack.number, pack.raw_bytes)).collect();
    for centre in found.iter().take(CENTRES) {
        let room = MAX_NAMED.saturating_sub(chosen.len());
        if room == 0 || chosen.values().sum::<u64>() >= COVERED {
            break;
        }
        let after = packs::neighbours(tx, team, centre, Side::After, room).await?;
        let before = packs::neighbours(tx, team, centre, Side::Before, room).await?;
        add_nearest(&mut chosen, &after, &before);
    }
    Ok(chosen.into_keys().collect())
}

/// Puts packs into the order of their numbers in `ranked`: rows come in none.
fn by_rank(ranked: &[u64], mut found: Vec<Pack>) -> Vec<Pack> {
    let rank: BTreeMap<u64, usize> = ranked.iter().enumerate().map(|(rank, number)| (*number, rank)).collect();
    found.sort_by_key(|pack| rank.get(&pack.number).copied());
    found
}

/// Adds neighbours in turn, nearest first, until enough is covered or named.
fn add_nearest(chosen: &mut BTreeMap<u64, u64>, after: &[Pack], before: &[Pack]) {
    let mut covered: u64 = chosen.values().sum();
    let turns = after.len().max(before.len());
    for pack in (0..turns).flat_map(|i| [after.get(i), before.get(i)]).flatten() {
        if covered >= COVERED || chosen.len() >= MAX_NAMED {
            return;
        }
        if chosen.insert(pack.number, pack.raw_bytes).is_none() {
            covered += pack.raw_bytes;
        }
    }
}

pub(super) fn pack_document(pack: &Pack) -> PackInfo {
    PackInfo {
        id: pack.id.to_string(),
        bytes: pack.bytes,
        // On the wire: where the frames begin.
        index_bytes: HEADER_BYTES as u64 + pack.index_bytes,
        chunks: pack.chunks,
        raw_bytes: pack.raw_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::digest::digest;

    fn pack(number: u64, raw_bytes: u64) -> Pack {
        Pack {
            number,
            id: digest(&number.to_le_bytes()),
            key: String::new(),
            bytes: raw_bytes,
            index_bytes: 141,
            chunks: 1,
            raw_bytes,
            upload: Uuid::nil(),
        }
    }

    #[test]
    fn neighbours_are_added_from_both_sides_until_enough_is_covered() {
        let small = |numbers: &[u64]| numbers.iter().map(|number| pack(*number, 20 << 20)).collect::<Vec<_>>();
        let mut chosen = BTreeMap::from([(10, 20 << 20)]);
        add_nearest(&mut chosen, &small(&[11, 12, 13]), &small(&[9, 8]));
        assert_eq!(chosen.into_keys().collect::<Vec<_>>(), [9, 10, 11, 12], "80 MiB are enough");
    }

    #[test]
    fn the_best_hits_come_first() {
        let found = by_rank(&[7, 2, 9], vec![pack(2, 1), pack(9, 1), pack(7, 1)]);
        assert_eq!(found.iter().map(|pack| pack.number).collect::<Vec<_>>(), [7, 2, 9]);
    }

    #[test]
    fn an_answer_never_names_more_than_it_may() {
        let tiny: Vec<Pack> = (101..400).map(|number| pack(number, 1)).collect();
        let mut chosen = BTreeMap::from([(100, 1)]);
        add_nearest(&mut chosen, &tiny, &[]);
        assert_eq!(chosen.len(), MAX_NAMED);
        assert_eq!(chosen.into_keys().last(), Some(163), "the nearest ones");
    }

    #[test]
    fn only_ids_of_the_sample_are_looked_up() {
        let sampled = (0_u32..).map(|i| digest(&i.to_le_bytes())).find(Digest::is_sample).unwrap();
        let other = (0_u32..).map(|i| digest(&i.to_le_bytes())).find(|id| !id.is_sample()).unwrap();
        let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let keys = sample_keys(one, &[sampled.to_string()]).unwrap();
        assert_ne!(keys, sample_keys(two, &[sampled.to_string()]).unwrap(), "teams never share an entry");
        for bad in [other.to_string(), sampled.to_string().to_uppercase(), String::new()] {
            assert!(sample_keys(one, &[bad]).is_err());
        }
        assert!(sample_keys(one, &vec![sampled.to_string(); MAX_ASKED + 1]).is_err());
    }
}
