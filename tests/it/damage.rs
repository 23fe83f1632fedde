//! Stored bytes that are not what was stored: found before a byte of them leaves, taken out of service, mended by a push.

use std::path::PathBuf;
use std::sync::Arc;

use dray::app::{Error, Kind};
use dray::content::path::RelPath;
use dray::db::versions;
use futures::TryStreamExt;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::both_engines;
use crate::support::data::{CHUNK, Files, Pack, noise};
use crate::support::service::TestService;

const DATASET: &str = "warehouse/aisle-cams";

/// The object of the sealed pack.
async fn object(service: &TestService, pack: &Pack) -> PathBuf {
    let mut session = service.app().db.read().await.unwrap();
    let values = dray::params![pack.id.as_bytes()];
    let row = session.one("SELECT key FROM packs WHERE digest = $1 AND state <> 'condemned'", values).await.unwrap();
    service.data().join("store").join(row.get::<String>(0).unwrap())
}

fn damage(path: &PathBuf, change: impl Fn(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    let mut permissions = std::fs::metadata(path).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o600);
    std::fs::set_permissions(path, permissions).unwrap();
    std::fs::write(path, bytes).unwrap();
}

async fn read(
    service: &TestService,
    version: &Value,
    path: &str,
    range: std::ops::Range<u64>,
) -> Result<Vec<u8>, Error> {
    let app: &Arc<_> = service.app();
    let id = Uuid::parse_str(version["id"].as_str().unwrap()).unwrap();
    let row = versions::get(&mut app.db.read().await.unwrap(), id).await.unwrap().unwrap();
    let found = app.find_file(&row, &RelPath::parse(path.as_bytes()).unwrap()).await?;
    let pieces: Vec<bytes::Bytes> = app.read_file(&found.source, found.place.unwrap(), range).try_collect().await?;
    Ok(pieces.concat())
}

async fn grant(service: &TestService, version: &Value, pack: &Pack) -> crate::support::service::Answer {
    let said = json!({ "version": version["id"], "layout": version["layout"]["id"], "packs": [pack.id.to_string()] });
    service.post("/v1/grants", &said).await
}

both_engines! {
    async fn any_range_of_a_file_is_read_back(service) {
        let bytes = noise(1, 5 << 20);
        let mixed = [noise(2, 3 * CHUNK + 17), vec![b'x'; 2 * CHUNK]].concat();
        let files = Files::default().with("big.bin", bytes.clone()).with("mixed.bin", mixed.clone());
        let version = service.push(&service.admin, DATASET, &files.push(40)).await;
        let length = bytes.len() as u64;
        for range in [0..length, 0..1, length - 1..length, 48_000..200_000, 2_000_000..4_900_001] {
            let expected = &bytes[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()];
            assert!(read(&service, &version, "big.bin", range.clone()).await.unwrap() == expected, "{range:?}");
        }
        assert_eq!(read(&service, &version, "mixed.bin", 0..mixed.len() as u64).await.unwrap(), mixed);
        assert_eq!(read(&service, &version, "absent", 0..1).await.unwrap_err().kind(), Kind::NotFound);
    }

    async fn a_flipped_bit_is_never_served_and_a_push_mends_it(service) {
        let files = Files::default().with("a.bin", noise(3, 200_000)).with("b.bin", noise(4, 200_000));
        let push = files.push(4);
        let version = service.push(&service.admin, DATASET, &push).await;
        let elsewhere = service.push(&service.admin, "other/set", &push).await;
        let broken = &push.packs[0];
        damage(&object(&service, broken).await, |bytes| *bytes.last_mut().unwrap() ^= 1);
        let error = read(&service, &version, "a.bin", 0..200_000).await.unwrap_err();
        assert_eq!((error.kind(), error.code.code), (Kind::Corrupt, "pack_quarantined"));
        let problem = grant(&service, &version, broken).await.problem(500, "pack_quarantined");
        assert_eq!(problem["data"]["packs"], json!([broken.id.to_string()]));
        service.get(&format!("/v1/packs/{}/index", broken.id)).await.problem(404, "not_found");
        grant(&service, &version, &push.packs[1]).await.expect(200);
        // who relies on it is told what to send, and sending it mends every version that needs it
        let upload = service.open(&service.admin, "third/set").await;
        upload.describe(&push).await;
        let gone = upload.commit_refused(&push, 409, "chunks_gone").await;
        assert_eq!(gone["data"]["packs"], json!([broken.id.to_string()]));
        upload.put_pack(broken).await.expect(201);
        upload.commit(&push).await;
        for version in [&version, &elsewhere] {
            assert_eq!(read(&service, version, "a.bin", 0..200_000).await.unwrap(), files.0["a.bin"]);
            grant(&service, version, broken).await.expect(200);
        }
    }

    async fn the_same_files_packed_otherwise_mend_their_version(service) {
        let files = Files::default().with("a.bin", noise(5, 200_000)).with("b.bin", noise(6, 100_000));
        let push = files.push(100);
        let version = service.push(&service.admin, DATASET, &push).await;
        damage(&object(&service, &push.packs[0]).await, |bytes| bytes.truncate(bytes.len() / 2));
        assert_eq!(read(&service, &version, "a.bin", 0..200_000).await.unwrap_err().kind(), Kind::Corrupt);
        let mended = service.push(&service.admin, DATASET, &files.push(2)).await;
        assert_eq!((&mended["id"], &mended["version"]), (&version["id"], &json!("v1")), "the version is the same");
        assert_eq!(mended["layout"]["generation"], 1);
        assert_eq!(read(&service, &mended, "b.bin", 0..100_000).await.unwrap(), files.0["b.bin"]);
        let old = grant(&service, &version, &push.packs[0]).await;
        old.problem(409, "layout_gone");
    }

    async fn a_damaged_index_or_a_lost_object_is_found_at_commit(builder: Builder) {
        let service = builder.start().await;
        let (first, second) = (Files::default().with("a.bin", noise(7, 90_000)).push(9), Files::default().with("b.bin", noise(8, 90_000)).push(9));
        let upload = service.open(&service.admin, DATASET).await;
        upload.send(&first).await;
        upload.send(&second).await;
        damage(&object(&service, &first.packs[0]).await, |bytes| bytes[70] ^= 1);
        std::fs::remove_file(object(&service, &second.packs[0]).await).unwrap();
        // a new process has no index in its cache
        let (token, id, epoch) = (upload.token.clone(), upload.id.clone(), upload.epoch);
        let service = service.restart().await;
        let upload = crate::support::data::Upload { service: &service, token, id, epoch, document: Value::Null };
        for push in [&first, &second] {
            let gone = upload.commit_refused(push, 409, "chunks_gone").await;
            assert_eq!(gone["data"]["packs"], json!([push.packs[0].id.to_string()]));
            upload.put_pack(&push.packs[0]).await.expect(201);
        }
        upload.commit(&first).await;
    }

    async fn a_damaged_tree_is_sent_again(builder: Builder) {
        let service = builder.quiet().start().await;
        let push = Files::default().with("a.bin", noise(9, 90_000)).push(9);
        let upload = service.open(&service.admin, DATASET).await;
        upload.send(&push).await;
        let trees = service.data().join("store/trees");
        let team = std::fs::read_dir(trees).unwrap().next().unwrap().unwrap().path();
        let tree = std::fs::read_dir(team).unwrap().next().unwrap().unwrap().path();
        damage(&tree, |bytes| bytes.truncate(bytes.len() - 3));
        let operation = upload.post("commit", &upload.commit_body(&push)).await.expect(202).text("id");
        service.run("commit-uploads").await;
        let failed = upload.operation(&operation).await;
        assert_eq!(failed["error"]["code"], "corrupt");
        let given_up = "SELECT count(*) FROM upload_objects WHERE bytes IS NULL";
        let known: u64 = service.app().db.read().await.unwrap().one(given_up, Vec::new()).await.unwrap().get(0).unwrap();
        assert_eq!(known, 2, "their keys stay known");
        upload.describe(&push).await;
        let operation = upload.post("commit", &upload.commit_body(&push)).await.expect(202).text("id");
        service.run("commit-uploads").await;
        assert_eq!(upload.operation(&operation).await["version"]["version"], "v1");
    }

    async fn a_staging_of_a_damaged_tree_fails(builder: Builder) {
        let service = builder.quiet().start().await;
        service.push_by_hand("d", &Files::default().with("a.bin", noise(10, 90_000)).push(9)).await;
        let trees = service.data().join("store/trees");
        let team = std::fs::read_dir(trees).unwrap().next().unwrap().unwrap().path();
        let tree = std::fs::read_dir(team).unwrap().next().unwrap().unwrap().path();
        let staged = async |service: &TestService| {
            let job = service.job("d", json!({})).await;
            let staging = service.stage(&job, "").await.expect(201).json();
            service.run("look-into-stagings").await;
            service.staging(&staging["id"]).await
        };
        let aside = tree.with_extension("aside");
        std::fs::rename(&tree, &aside).unwrap();
        let lost = staged(&service).await;
        assert_eq!((&lost["state"], &lost["error"]["code"]), (&json!("failed"), &json!("corrupt")), "{lost}");
        std::fs::rename(&aside, &tree).unwrap();
        assert_eq!(staged(&service).await["state"], "near");
        damage(&tree, |bytes| bytes.truncate(bytes.len() - 3));
        let cut = staged(&service).await;
        assert_eq!((&cut["state"], &cut["error"]["code"]), (&json!("failed"), &json!("corrupt")), "{cut}");
    }
}
