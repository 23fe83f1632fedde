//! Commits: trees and layouts that must not become a version, and commits that outlive their process.

use std::time::Duration;

use dray::content::digest::digest;
use dray::content::layout::{FileLayout, Line, Segment};
use dray::content::path::RelPath;
use dray::content::tree::{Entry, Kind};
use reqwest::Method;
use serde_json::{Value, json};

use crate::both_engines;
use crate::support::data::{Document, Files, Push, TIME, Upload, layout, noise, tree};
use crate::support::service::TestService;

const DATASET: &str = "warehouse/aisle-cams";

fn files() -> Files {
    Files::default().with("a/one.bin", noise(1, 200_000)).with("b.bin", noise(2, 90_000))
}

fn plain(document: &Document) -> String {
    String::from_utf8(zstd::stream::decode_all(&document.stored[..]).unwrap()).unwrap()
}

/// The push with its tree's text changed.
fn with_tree(push: &Push, change: impl Fn(String) -> String) -> Push {
    Push { tree: Document::of(change(plain(&push.tree)).as_bytes()), ..push.clone() }
}

fn with_layout(push: &Push, change: impl Fn(String) -> String) -> Push {
    Push { layout: Document::of(change(plain(&push.layout)).as_bytes()), ..push.clone() }
}

/// The lines of the push, to be changed one by one.
fn lines(push: &Push) -> Vec<(Entry, Option<Line>)> {
    let tree = zstd::stream::decode_all(&push.tree.stored[..]).unwrap();
    let layout = zstd::stream::decode_all(&push.layout.stored[..]).unwrap();
    dray::content::merge::Merged::open(&tree[..], &layout[..]).unwrap().map(Result::unwrap).collect()
}

/// The push with the first file's line changed.
fn with_line(push: &Push, change: impl Fn(&mut FileLayout)) -> Push {
    let mut lines = lines(push);
    let file = lines.iter_mut().find_map(|(_, line)| if let Some(Line::File(file)) = line { Some(file) } else { None });
    change(file.unwrap());
    let ids: Vec<_> = push.packs.iter().map(|pack| pack.id).collect();
    Push { layout: layout(&lines, &ids), ..push.clone() }
}

async fn refused(upload: &Upload<'_>, push: &Push, status: u16, code: &str) -> Value {
    upload.describe(push).await;
    upload.commit_refused(push, status, code).await
}

async fn ready<'a>(service: &'a TestService, push: &Push) -> Upload<'a> {
    let upload = service.open(&service.admin, DATASET).await;
    for pack in &push.packs {
        upload.put_pack(pack).await.expect(201);
    }
    upload
}

both_engines! {
    async fn trees_with_paths_that_lead_astray_are_refused(service) {
        let push = files().push(9);
        let upload = ready(&service, &push).await;
        for path in ["a/../../etc/passwd", "/abs", "//srv/share", "", ".", "..", "a/", "a//b", "a/./b", &"n".repeat(256), &"d/".repeat(300)] {
            let bad = with_tree(&push, |text| text.replace("a/one.bin", path));
            let problem = refused(&upload, &bad, 422, "bad_path").await;
            assert!(problem["detail"].as_str().unwrap().contains("line 3"), "{problem}");
        }
        let escape = with_tree(&push, |text| text.replace("a/one.bin", "a\\u0000b"));
        refused(&upload, &escape, 422, "bad_path").await;
        let twice = with_tree(&push, |text| text.replace("b.bin", "a/one.bin"));
        refused(&upload, &twice, 422, "duplicate_path").await;
        let below_a_file = with_tree(&push, |text| text.replace("b.bin", "a/one.bin/x"));
        refused(&upload, &below_a_file, 422, "prefix_conflict").await;
        let orphan = with_tree(&push, |text| text.replace("b.bin", "z/y"));
        refused(&upload, &orphan, 422, "missing_parent").await;
        let setuid = with_tree(&push, |text| text.replace("\"0644\"", "\"4755\""));
        upload.describe(&setuid).await;
        assert_eq!(upload.try_commit(&setuid).await["state"], "failed");
        for text in ["", "{}\n", "not json\n", "{\"format\":\"dray-tree\",\"version\":9}\n"] {
            let bad = Push { tree: Document::of(text.as_bytes()), ..push.clone() };
            refused(&upload, &bad, 422, "bad_tree").await;
        }
        let cut = with_tree(&push, |text| text[..text.len() - 10].to_owned());
        refused(&upload, &cut, 422, "bad_tree").await;
        assert_eq!(service.get("/v1/datasets").await.expect(200).json()["items"], json!([]), "nothing became a version");
        upload.describe(&push).await;
        assert_eq!(upload.commit(&push).await["version"], "v1", "the upload can still be mended");
    }

    async fn a_symlink_is_no_parent(service) {
        let push = files().push(9);
        let upload = ready(&service, &push).await;
        let mut all = lines(&push);
        let path = |text: &str| RelPath::parse(text.as_bytes()).unwrap();
        all.push((Entry { path: path("d"), kind: Kind::Symlink { mtime: TIME, target: b"/etc".to_vec() } }, None));
        let ids: Vec<_> = push.packs.iter().map(|pack| pack.id).collect();
        let good = Push { tree: tree(&all), layout: layout(&all, &ids), ..push.clone() };
        let planted = with_tree(&good, |text| {
            let file = text.lines().find(|line| line.contains("b.bin")).unwrap().replace("b.bin", "d/passwd");
            format!("{text}{file}\n")
        });
        refused(&upload, &planted, 422, "prefix_conflict").await;
        upload.describe(&good).await;
        let version = upload.commit(&good).await;
        assert_eq!(version["symlinks"], 1, "as text it is kept");
    }

    async fn hard_links_must_lead_to_what_they_say(service) {
        let push = files().push(9);
        let upload = ready(&service, &push).await;
        let mut all = lines(&push);
        let (entry, _) = all.iter().find(|(entry, _)| entry.path.as_bytes() == b"b.bin").unwrap().clone();
        let Kind::File { size, mode, mtime, digest: right, .. } = entry.kind else { panic!("a file") };
        let link = |digest, to: &str| Entry {
            path: RelPath::parse(b"c.bin").unwrap(),
            kind: Kind::File { size, mode, mtime, digest, hardlink: Some(RelPath::parse(to.as_bytes()).unwrap()) },
        };
        let ids: Vec<_> = push.packs.iter().map(|pack| pack.id).collect();
        for bad in [link(digest(b"other"), "b.bin"), link(right, "a/one.bin"), link(right, "absent")] {
            let all: Vec<_> = all.iter().cloned().chain([(bad, None)]).collect();
            let bad = Push { tree: tree(&all), layout: layout(&all, &ids), ..push.clone() };
            refused(&upload, &bad, 422, "bad_hardlink").await;
        }
        all.push((link(right, "b.bin"), None));
        let good = Push { tree: tree(&all), layout: layout(&all, &ids), ..push.clone() };
        upload.describe(&good).await;
        assert_eq!(upload.commit(&good).await["files"], 3);
    }

    async fn a_layout_that_does_not_come_to_the_file_is_refused(service) {
        let push = files().push(9);
        let upload = ready(&service, &push).await;
        let wrong_crc = with_line(&push, |file| file.crc.0 ^= 1);
        let problem = refused(&upload, &wrong_crc, 422, "bad_layout").await;
        assert_eq!(problem["data"]["path"], "a/one.bin");
        let beyond = with_line(&push, |file| file.segments[0].first = 60_000);
        refused(&upload, &beyond, 422, "bad_layout").await;
        let other_chunks = with_line(&push, |file| file.segments[0].first = 1);
        refused(&upload, &other_chunks, 422, "bad_layout").await;
        let wrong_size = with_line(&push, |file| {
            file.size += 65_536;
            file.segments.push(Segment { pack: None, first: 0, count: 0, raw: 65_536 });
            file.segments.rotate_right(1);
        });
        refused(&upload, &wrong_size, 422, "layout_mismatch").await;
        let other_digest = with_line(&push, |file| file.digest = digest(b"other"));
        refused(&upload, &other_digest, 422, "layout_mismatch").await;
        let short = with_layout(&push, |text| text.lines().take(4).map(|line| format!("{line}\n")).collect());
        refused(&upload, &short, 422, "layout_mismatch").await;
        let long = with_layout(&push, |text| format!("{text}{}\n", text.lines().last().unwrap()));
        refused(&upload, &long, 422, "layout_mismatch").await;
        upload.describe(&push).await;
        upload.commit(&push).await;
    }

    async fn a_layout_that_names_absent_packs_is_told_which(service) {
        let blue = service.team("blue").await;
        let theirs = Files::default().with("a/one.bin", noise(50, 150_000)).push(2);
        service.push(&blue, DATASET, &theirs).await;
        let push = files().push(2);
        let upload = service.open(&service.admin, DATASET).await;
        for pack in &push.packs[1..] {
            upload.put_pack(pack).await.expect(201);
        }
        let problem = refused(&upload, &push, 409, "chunks_gone").await;
        assert_eq!(problem["data"]["packs"], json!([push.packs[0].id.to_string()]));
        // what another team has is as absent as what nobody has, to the letter
        let unknown = Files::default().with("a/one.bin", noise(51, 150_000)).push(2);
        let one = refused(&upload, &theirs, 409, "chunks_gone").await.to_string();
        let two = refused(&upload, &unknown, 409, "chunks_gone").await.to_string();
        let ids = |push: &Push, text: &str| push.packs.iter().fold(text.to_owned(), |text, pack| text.replace(&pack.id.to_string(), "PACK"));
        assert_eq!(ids(&theirs, &one), ids(&unknown, &two));
        assert_eq!(service.get("/v1/datasets").await.expect(200).json()["items"], json!([]));
        upload.put_pack(&push.packs[0]).await.expect(201);
        assert_eq!(upload.commit(&push).await["version"], "v1");
    }

    async fn documents_are_what_they_were_announced_as(service) {
        let push = files().push(9);
        let upload = ready(&service, &push).await;
        let Document { digest: right, stored } = push.tree.clone();
        upload.put("tree", &digest(b"other"), stored.clone()).await.problem(400, "digest_mismatch");
        for bad in [
            stored[..stored.len() - 1].to_vec(),
            [&stored[..], b"x"].concat(),
            [&stored[..], &stored[..]].concat(),
            b"no frame".to_vec(),
            vec![0x50, 0x2a, 0x4d, 0x18, 0xff, 0xff, 0xff, 0x7f],
        ] {
            let answer = upload.put("tree", &right, bad).await;
            assert_eq!(answer.status, 400, "{answer}");
        }
        upload.put("tree", &right, stored.clone()).await.expect(204);
        upload.put("tree", &right, stored).await.expect(204);
        upload.post("commit", &upload.commit_body(&push)).await.problem(409, "object_missing");
        upload.describe(&push).await;
        upload.commit(&push).await;
    }

    async fn a_portable_team_takes_portable_trees_only(service) {
        let push = files().push(9);
        let upload = ready(&service, &push).await;
        let mut tx = service.app().db.begin().await.unwrap();
        tx.execute("UPDATE teams SET profile = 'portable'", Vec::new()).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(service.open(&service.admin, DATASET).await.document["portable_names"], true);
        upload.describe(&push).await;
        upload.commit_refused(&push, 422, "not_portable").await;
    }

    async fn lines_of_the_parent_are_taken_as_they_are(service) {
        let first = files();
        service.push(&service.admin, DATASET, &first.push(3)).await;
        // one file new, the others where they were: only the new pack is sent
        let all = first.clone().with("c.bin", noise(60, 70_000));
        let (old, new) = (first.push(3), Files::default().with("c.bin", noise(60, 70_000)).push(9));
        let mut merged = lines(&old);
        let shift = u32::try_from(old.packs.len()).unwrap();
        merged.extend(lines(&new).into_iter().map(|(entry, mut line)| {
            if let Some(Line::File(file)) = &mut line {
                file.segments.iter_mut().for_each(|segment| segment.pack = segment.pack.map(|pack| pack + shift));
            }
            (entry, line)
        }));
        let ids: Vec<_> = old.packs.iter().chain(&new.packs).map(|pack| pack.id).collect();
        let push = Push { packs: new.packs.clone(), tree: tree(&merged), layout: layout(&merged, &ids), bytes: 0 };
        assert_eq!(push.tree.digest, all.push(3).tree.digest);
        let version = service.push(&service.admin, DATASET, &push).await;
        assert_eq!((&version["version"], &version["files"]), (&json!("v2"), &json!(3)));
        assert_eq!(version["layout"]["packs"], ids.len());
    }

    async fn a_commit_waits_for_whoever_can_work_on_it(builder: Builder) {
        let service = builder.quiet().start().await;
        let push = files().push(9);
        let upload = ready(&service, &push).await;
        upload.describe(&push).await;
        let operation = upload.post("commit", &upload.commit_body(&push)).await.expect(202);
        assert_eq!((operation.text("state"), upload.state().await), ("running".to_owned(), "committing".to_owned()));
        upload.put_pack(&push.packs[0]).await.problem(409, "committing");
        let path = format!("/v1/uploads/{}", upload.id);
        service.delete(&path).await.problem(409, "committing");
        // time passes, the process ends: neither expires nor loses it
        service.clock.advance(service.app().settings.limits.upload_ttl.0 * 2);
        service.run("expire-uploads").await;
        let (admin, id) = (service.admin.clone(), operation.text("id"));
        let service = service.restart().await;
        service.run("commit-uploads").await;
        let done = service.call(Method::GET, &format!("/v1/operations/{id}"), &admin, &Value::Null).await.expect(200).json();
        assert_eq!((&done["state"], &done["version"]["version"]), (&json!("done"), &json!("v1")));
    }

    async fn a_commit_whose_worker_died_is_taken_over(builder: Builder) {
        let service = builder.quiet().start().await;
        let push = files().push(9);
        let upload = ready(&service, &push).await;
        upload.describe(&push).await;
        let id = upload.post("commit", &upload.commit_body(&push)).await.expect(202).text("id");
        let app = service.app();
        let (now, token) = (app.clock.now(), uuid::Uuid::max());
        let mut tx = app.db.begin().await.unwrap();
        let until = now.saturating_add(Duration::from_secs(20)).unwrap();
        let claimed = dray::db::operations::claim(&mut tx, token, until, now).await.unwrap().unwrap();
        assert_eq!(claimed.id.to_string(), id);
        tx.commit().await.unwrap();
        service.run("commit-uploads").await;
        assert_eq!(upload.state().await, "committing", "it is somebody's");
        service.clock.advance(Duration::from_secs(21));
        service.run("commit-uploads").await;
        assert_eq!(upload.operation(&id).await["version"]["version"], "v1");
        // whoever was thought dead changes nothing any more
        let mut tx = app.db.begin().await.unwrap();
        let claim = dray::db::operations::Claim { operation: claimed.id, token };
        assert!(!dray::db::operations::finish(&mut tx, claim, Some("{}"), now).await.unwrap());
        tx.rollback().await.unwrap();
    }

    async fn a_commit_that_kills_whoever_works_on_it_is_given_up(builder: Builder) {
        let service = builder.quiet().start().await;
        let push = files().push(9);
        let upload = ready(&service, &push).await;
        upload.describe(&push).await;
        let id = upload.post("commit", &upload.commit_body(&push)).await.expect(202).text("id");
        // as many processes have claimed it and were never heard of again
        for attempts in 1..=30_u64 {
            let mut tx = service.app().db.begin().await.unwrap();
            let now = dray::clock::Clock::now(&*service.clock);
            let until = now.saturating_add(Duration::from_secs(20)).unwrap();
            let claimed = dray::db::operations::claim(&mut tx, uuid::Uuid::max(), until, now).await.unwrap().unwrap();
            assert_eq!(claimed.attempts, attempts);
            tx.commit().await.unwrap();
            service.clock.advance(Duration::from_secs(21));
        }
        service.run("commit-uploads").await;
        let failed = upload.operation(&id).await;
        assert_eq!((&failed["state"], &failed["error"]["code"]), (&json!("failed"), &json!("internal")));
        assert!(failed["error"]["detail"].as_str().unwrap().contains("30 times"), "{failed}");
        assert_eq!(upload.state().await, "open", "it may be committed anew");
    }

    async fn a_commit_that_has_made_its_version_never_fails(builder: Builder) {
        let service = builder.quiet().start().await;
        let push = files().push(9);
        let upload = ready(&service, &push).await;
        upload.describe(&push).await;
        let id = upload.post("commit", &upload.commit_body(&push)).await.expect(202).text("id");
        service.run("commit-uploads").await;
        let version = upload.operation(&id).await["version"]["id"].as_str().unwrap().to_owned();
        // as if the store had been away since the version was made: its mark was never written
        let mut tx = service.app().db.begin().await.unwrap();
        tx.execute("UPDATE operations SET state = 'running', claimed_until = 0, attempts = 29", Vec::new()).await.unwrap();
        tx.commit().await.unwrap();
        let refs = service.data().join("store/refs");
        let folder = std::fs::read_dir(&refs).unwrap().next().unwrap().unwrap().path().join(&version);
        std::fs::remove_dir_all(&folder).unwrap();
        std::fs::write(&folder, "in the way").unwrap();
        for _ in 0..3 {
            service.run("commit-uploads").await;
            let path = format!("/v1/operations/{id}");
            assert_eq!(service.get(&path).await.expect(200).text("state"), "running");
            service.clock.advance(Duration::from_secs(65));
        }
        std::fs::remove_file(&folder).unwrap();
        service.run("commit-uploads").await;
        let done = upload.operation(&id).await;
        assert_eq!((&done["state"], &done["version"]["id"]), (&json!("done"), &json!(version)));
        assert!(folder.join("0.committed").exists());
    }

    async fn a_version_has_its_documents_in_the_store(service) {
        let push = files().push(9);
        let version = service.push(&service.admin, DATASET, &push).await;
        let refs = service.data().join("store/refs");
        let team = std::fs::read_dir(&refs).unwrap().next().unwrap().unwrap().path();
        let folder = team.join(version["id"].as_str().unwrap());
        let prepared: Value = serde_json::from_slice(&std::fs::read(folder.join("0.json")).unwrap()).unwrap();
        assert_eq!((&prepared["dataset"], &prepared["tree"]["digest"]), (&json!(DATASET), &version["digest"]));
        assert_eq!((&prepared["files"], &prepared["layout_id"]), (&version["files"], &version["layout"]["id"]));
        let store = service.data().join("store");
        assert_eq!(std::fs::read(store.join(prepared["tree"]["key"].as_str().unwrap())).unwrap(), push.tree.stored);
        assert_eq!(std::fs::read(store.join(prepared["layout"]["key"].as_str().unwrap())).unwrap(), push.layout.stored);
        let committed: Value = serde_json::from_slice(&std::fs::read(folder.join("0.committed")).unwrap()).unwrap();
        assert_eq!(committed["number"], 1);
    }
}
