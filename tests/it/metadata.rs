//! How much the database grows with what is stored: a row a pack, a sample of the chunks, a row for each pack of a layout.

use dray::clock::{Ids, RandomIds};
use dray::content::digest::digest;
use dray::content::tree::Counts;
use dray::db::packs::{self, Sealing, sample_key};
use dray::db::versions::{self, Layout, Version};
use dray::domain::id::{DatasetName, VersionNumber};
use jiff::Timestamp;
use uuid::Uuid;

use crate::both_engines;
use crate::support::service::{Engine, TestService};

/// Packs of 64 MiB: 64 GiB in all.
const PACKS: u64 = 1024;
/// Chunks in each, of 64 KiB; every 64th is in the sample.
const CHUNKS: u64 = 1024;

async fn size(service: &TestService) -> u64 {
    let mut session = service.app().db.read().await.unwrap();
    let sql = match service.engine {
        Engine::Sqlite => "SELECT p.page_count * s.page_size FROM pragma_page_count() p, pragma_page_size() s",
        Engine::Postgres => "SELECT pg_database_size(current_database())",
    };
    session.one(sql, Vec::new()).await.unwrap().get(0).unwrap()
}

async fn seal(service: &TestService, team: Uuid, upload: Uuid, first: u64) {
    let now = Timestamp::UNIX_EPOCH;
    let mut tx = service.app().db.begin().await.unwrap();
    let keys: Vec<String> = (0..16).map(|_| format!("packs/{team}/{}", RandomIds.uuid())).collect();
    let number = packs::reserve(&mut tx, team, &keys, now).await.unwrap();
    for i in 0..16 {
        let pack = first + i;
        let sample = (0..CHUNKS / 64).map(|chunk| sample_key(team, &digest(format!("{pack} {chunk}").as_bytes())));
        let sealing = Sealing {
            number: number + i,
            team,
            upload,
            id: digest(&pack.to_le_bytes()),
            bytes: 64 << 20,
            index_bytes: CHUNKS * 45 + 32,
            chunks: u32::try_from(CHUNKS).unwrap(),
            raw_bytes: CHUNKS << 16,
            sample: sample.collect(),
        };
        assert!(packs::seal(&mut tx, &sealing, now).await.unwrap());
    }
    tx.commit().await.unwrap();
}

both_engines! {
    async fn a_tebibyte_of_data_needs_some_tens_of_mebibytes_of_rows(service) {
        let upload = service.open(&service.admin, "big/set").await;
        let upload = Uuid::parse_str(&upload.id).unwrap();
        let team = service.app().authenticate(&service.admin).await.unwrap().team;
        let before = size(&service).await;
        for first in (0..PACKS).step_by(16) {
            seal(&service, team, upload, first).await;
        }
        let now = Timestamp::UNIX_EPOCH;
        let mut tx = service.app().db.begin().await.unwrap();
        let numbers: Vec<u64> = tx.all("SELECT number FROM packs WHERE state = 'sealed' ORDER BY number", Vec::new()).await.unwrap()
            .iter().map(|row| row.get(0).unwrap()).collect();
        assert_eq!(numbers.len() as u64, PACKS);
        packs::pin(&mut tx, upload, &numbers).await.unwrap();
        let dataset = versions::ensure_dataset(&mut tx, team, &DatasetName::parse("big/set").unwrap(), RandomIds.uuid(), now).await.unwrap();
        let version = Version {
            id: RandomIds.uuid(),
            team,
            dataset,
            name: "big/set".into(),
            number: VersionNumber::FIRST,
            digest: digest(b"tree"),
            counts: Counts::default(),
            chunks: PACKS * CHUNKS,
            incomplete: false,
            late: false,
            tree_key: "trees/t".into(),
            tree_bytes: 1,
            created_at: now,
            layout: Layout {
                id: RandomIds.uuid(),
                generation: 0,
                digest: digest(b"layout"),
                key: "layouts/l".into(),
                bytes: 1,
                packs: PACKS,
                read_until: now,
            },
        };
        versions::insert(&mut tx, &version, &numbers).await.unwrap();
        packs::unpin(&mut tx, upload).await.unwrap();
        tx.commit().await.unwrap();
        let grown = size(&service).await - before;
        let a_tebibyte = grown * ((1 << 40) / (PACKS * (64 << 20)));
        println!("{:?}: {} KiB of rows for a TiB in packs of 64 MiB and one version of it", service.engine, a_tebibyte >> 10);
        assert!(a_tebibyte < 96 << 20, "{a_tebibyte} bytes of rows for a TiB");
    }
}
