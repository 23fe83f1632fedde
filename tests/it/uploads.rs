//! The push road inside the service, and an upload's life: opened, fed, fenced, expired, committed; found, listed, deleted.

use std::time::Duration;

use dray::content::digest::Digest;
use reqwest::Method;
use serde_json::{Value, json};

use crate::both_engines;
use crate::support::data::{Files, noise, pack, sampled_chunk};
use crate::support::service::TestService;

const DATASET: &str = "warehouse/aisle-cams";

fn files(seed: u64) -> Files {
    Files::default()
        .with("a/one.bin", noise(seed, 300_000))
        .with("a/two.bin", noise(seed + 1, 20_000))
        .with("empty", Vec::new())
}

async fn names(service: &TestService, token: &str) -> Vec<String> {
    let page = service.call(Method::GET, "/v1/datasets", token, &Value::Null).await.expect(200).json();
    page["items"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
}

async fn resolve(service: &TestService, reference: &str) -> Value {
    service.get(&format!("/v1/resolve?ref={reference}")).await.expect(200).json()
}

both_engines! {
    async fn what_is_pushed_is_found_listed_and_read_back(service) {
        let push = files(1).push(4);
        assert_eq!(push.packs.len(), 2);
        let version = service.push(&service.admin, DATASET, &push).await;
        assert_eq!(version["ref"], format!("{DATASET}@v1"));
        assert_eq!(version["digest"], push.tree.digest.to_string());
        assert_eq!((&version["files"], &version["dirs"], &version["bytes"]), (&json!(3), &json!(1), &json!(320_000)));
        assert_eq!((&version["chunks"], &version["layout"]["packs"]), (&json!(8), &json!(2)));
        let hex = push.tree.digest.to_string();
        for reference in [DATASET.to_owned(), format!("{DATASET}@latest"), format!("{DATASET}@v1"), format!("{DATASET}@{}", &hex[..8])] {
            assert_eq!(resolve(&service, &reference).await, version, "{reference}");
        }
        let id = version["id"].as_str().unwrap();
        assert_eq!(service.get(&format!("/v1/versions/{id}")).await.expect(200).json(), version);
        let tree = service.get(&format!("/v1/versions/{id}/tree")).await.expect(200);
        assert_eq!(tree.headers["etag"], format!("\"{hex}\""));
        assert_eq!(tree.bytes, push.tree.stored);
        let layout = service.get(&format!("/v1/versions/{id}/layout")).await.expect(200);
        assert_eq!(layout.bytes, push.layout.stored);
        assert_eq!(names(&service, &service.admin).await, [DATASET]);
        let list = service.get("/v1/datasets?prefix=ware").await.expect(200).json();
        assert_eq!((&list["items"][0]["latest"], &list["items"][0]["bytes"]), (&json!("v1"), &json!(320_000)));
        assert_eq!(service.get("/v1/datasets?prefix=other").await.expect(200).json()["items"], json!([]));
        assert_eq!(service.get("/v1/whoami").await.expect(200).json()["team"]["used_bytes"], 320_000);
    }

    async fn a_tree_resumes_by_range(service) {
        let push = files(2).push(100);
        let version = service.push(&service.admin, DATASET, &push).await;
        let path = format!("/v1/versions/{}/tree", version["id"].as_str().unwrap());
        let part = service.request(Method::GET, &path, &service.admin).header("range", "bytes=5-9").send().await.unwrap();
        assert_eq!(part.status(), 206);
        assert_eq!(part.headers()["content-range"], format!("bytes 5-9/{}", push.tree.stored.len()));
        assert_eq!(part.bytes().await.unwrap(), push.tree.stored[5..10]);
        let beyond = service.request(Method::GET, &path, &service.admin).header("range", "bytes=99999999-").send().await.unwrap();
        assert_eq!(beyond.status(), 416);
        let tag = format!("\"{}\"", push.tree.digest);
        let known = service.request(Method::GET, &path, &service.admin).header("if-none-match", tag).send().await.unwrap();
        assert_eq!(known.status(), 304);
    }

    async fn an_unchanged_push_makes_no_version_and_numbers_are_never_reused(service) {
        let first = service.push(&service.admin, DATASET, &files(3).push(4)).await;
        // the same files in other packs are the same tree
        let again = service.push(&service.admin, DATASET, &files(3).push(2)).await;
        assert_eq!((&again["ref"], &again["id"]), (&first["ref"], &first["id"]));
        let second = service.push(&service.admin, DATASET, &files(4).push(4)).await;
        assert_eq!(second["version"], "v2");
        // an older tree that comes back is a new version
        let third = service.push(&service.admin, DATASET, &files(3).push(4)).await;
        assert_eq!((&third["version"], &third["digest"]), (&json!("v3"), &first["digest"]));
        service.delete(&format!("/v1/versions/{}", third["id"].as_str().unwrap())).await.expect(204);
        service.get(&format!("/v1/versions/{}", third["id"].as_str().unwrap())).await.problem(404, "not_found");
        assert_eq!(resolve(&service, DATASET).await["version"], "v2");
        service.delete(&format!("/v1/datasets?name={DATASET}")).await.expect(204);
        service.get(&format!("/v1/resolve?ref={DATASET}")).await.problem(404, "not_found");
        service.delete(&format!("/v1/datasets?name={DATASET}")).await.problem(404, "not_found");
        assert!(names(&service, &service.admin).await.is_empty());
        assert_eq!(service.get("/v1/whoami").await.expect(200).json()["team"]["used_bytes"], 0);
        let fourth = service.push(&service.admin, DATASET, &files(3).push(4)).await;
        assert_eq!(fourth["version"], "v4");
    }

    async fn listings_are_paged(service) {
        for name in ["b/x", "a/y", "a/x"] {
            service.push(&service.admin, name, &files(5).push(9)).await;
        }
        for seed in 6..9 {
            service.push(&service.admin, "a/x", &files(seed).push(9)).await;
        }
        let mut seen = Vec::new();
        let mut next = String::new();
        loop {
            let page = service.get(&format!("/v1/datasets?limit=1{next}")).await.expect(200).json();
            seen.push(page["items"][0]["name"].as_str().unwrap().to_owned());
            match page["next"].as_str() {
                Some(cursor) => next = format!("&cursor={cursor}"),
                None => break,
            }
        }
        assert_eq!(seen, ["a/x", "a/y", "b/x"]);
        let page = service.get("/v1/versions?dataset=a/x&limit=3").await.expect(200).json();
        let versions: Vec<_> = page["items"].as_array().unwrap().iter().map(|version| version["version"].clone()).collect();
        assert_eq!(versions, ["v4", "v3", "v2"]);
        let cursor = page["next"].as_str().unwrap();
        let rest = service.get(&format!("/v1/versions?dataset=a/x&limit=3&cursor={cursor}")).await.expect(200).json();
        assert_eq!((&rest["items"][0]["version"], &rest["next"]), (&json!("v1"), &Value::Null));
        service.get("/v1/versions?dataset=no/such").await.problem(404, "not_found");
        service.get("/v1/versions?dataset=No").await.problem(422, "invalid");
        service.get("/v1/resolve?ref=a/x@v0").await.problem(422, "invalid");
        service.get("/v1/resolve?ref=a/x:path").await.problem(422, "invalid");
        service.get("/v1/resolve?ref=a/x@v99").await.problem(404, "not_found");
    }

    async fn latest_is_the_newest_complete_version(service) {
        let push = files(10).push(9);
        let upload = service.open(&service.admin, DATASET).await;
        upload.send(&push).await;
        let mut commit = upload.commit_body(&push);
        commit["incomplete"] = json!(true);
        let operation = upload.post("commit", &commit).await.expect(202).text("id");
        let version = upload.operation(&operation).await["version"].clone();
        assert_eq!((&version["incomplete"], &version["version"]), (&json!(true), &json!("v1")));
        service.get(&format!("/v1/resolve?ref={DATASET}")).await.problem(404, "only_incomplete");
        assert_eq!(resolve(&service, &format!("{DATASET}@v1")).await["id"], version["id"]);
        // complete now: the same tree, and yet a version of its own
        let complete = service.push(&service.admin, DATASET, &push).await;
        assert_eq!((&complete["incomplete"], &complete["version"]), (&json!(false), &json!("v2")));
        assert_eq!(resolve(&service, DATASET).await["version"], "v2");
    }

    async fn opening_twice_with_one_key_opens_once(service) {
        let open = |key: &'static str| {
            let request = service.request(Method::POST, "/v1/uploads", &service.admin).json(&json!({ "dataset": DATASET }));
            async move { request.header("idempotency-key", key).send().await.unwrap().json::<Value>().await.unwrap()["id"].clone() }
        };
        let first = open("one").await;
        assert_eq!(open("one").await, first);
        assert_ne!(open("two").await, first);
        service.post("/v1/uploads", &json!({ "dataset": "Not/A/Name" })).await.problem(422, "invalid");
        service.post("/v1/uploads", &json!({ "dataset": DATASET, "colour": 1 })).await.problem(422, "malformed");
    }

    async fn a_commit_said_again_is_the_same_operation(service) {
        let push = files(11).push(4);
        let upload = service.open(&service.admin, DATASET).await;
        upload.post("commit", &upload.commit_body(&push)).await.problem(409, "object_missing");
        upload.send(&push).await;
        let body = upload.commit_body(&push);
        let (one, two) = tokio::join!(upload.post("commit", &body), upload.post("commit", &body));
        let operation = one.expect(202).text("id");
        assert_eq!(two.expect(202).text("id"), operation);
        let done = upload.operation(&operation).await;
        assert_eq!(done["version"]["version"], "v1");
        assert_eq!(upload.post("commit", &body).await.expect(202).json(), done);
        assert_eq!(upload.state().await, "committed");
        // ended: nothing else is taken
        upload.put_pack(&push.packs[0]).await.problem(409, "upload_ended");
        upload.known(&[]).await.problem(409, "upload_ended");
        let mut other = body.clone();
        other["incomplete"] = json!(true);
        upload.post("commit", &other).await.problem(409, "upload_ended");
        assert_eq!(resolve(&service, DATASET).await["version"], "v1");
    }

    async fn whoever_reopens_fences_the_other(service) {
        let push = files(12).push(4);
        let old = service.open(&service.admin, DATASET).await;
        old.put_pack(&push.packs[0]).await.expect(201);
        let epoch = old.post("reopen", &Value::Null).await.expect(200).json()["epoch"].as_u64().unwrap();
        assert_eq!(epoch, old.epoch + 1);
        let problem = old.put_pack(&push.packs[1]).await.problem(409, "fenced");
        assert_eq!(problem["data"]["epoch"], epoch);
        old.put_pack(&push.packs[0]).await.problem(409, "fenced");
        old.put("tree", &push.tree.digest, push.tree.stored.clone()).await.problem(409, "fenced");
        old.known(&[]).await.problem(409, "fenced");
        old.post("commit", &old.commit_body(&push)).await.problem(409, "fenced");
        let mut new = old.clone();
        new.epoch = epoch;
        new.put_pack(&push.packs[0]).await.expect(200);
        new.send(&push).await;
        assert_eq!(new.commit(&push).await["version"], "v1");
    }

    async fn an_aborted_upload_leaves_nothing_to_be_seen(service) {
        let push = files(13).push(4);
        let upload = service.open(&service.admin, DATASET).await;
        upload.send(&push).await;
        assert!(names(&service, &service.admin).await.is_empty(), "nothing is visible before the commit");
        let path = format!("/v1/uploads/{}", upload.id);
        service.delete(&path).await.expect(204);
        service.delete(&path).await.expect(204);
        upload.put_pack(&push.packs[0]).await.problem(409, "fenced");
        let mut knowing = upload.clone();
        knowing.epoch += 1;
        knowing.put_pack(&push.packs[0]).await.problem(409, "upload_ended");
        knowing.post("reopen", &Value::Null).await.problem(409, "upload_ended");
        assert!(names(&service, &service.admin).await.is_empty());
        service.get(&format!("/v1/versions?dataset={DATASET}")).await.problem(404, "not_found");
        assert_eq!(service.push(&service.admin, DATASET, &push).await["version"], "v1", "the name is free at once");
    }

    async fn uploads_expire_by_themselves_and_committed_ones_never(service) {
        let push = files(14).push(4);
        let done = service.open(&service.admin, DATASET).await;
        done.send(&push).await;
        done.commit(&push).await;
        let idle = service.open(&service.admin, "other/set").await;
        idle.put_pack(&files(15).push(9).packs[0]).await.expect(201);
        let ttl = service.app().settings.limits.upload_ttl.0;
        service.clock.advance(ttl / 2);
        let busy = service.open(&service.admin, "third/set").await;
        service.clock.advance(ttl / 2);
        service.run("expire-uploads").await;
        assert_eq!((idle.state().await, busy.state().await, done.state().await), ("expired".into(), "open".into(), "committed".into()));
        idle.put_pack(&push.packs[0]).await.problem(409, "fenced");
        let reopened = idle.post("reopen", &Value::Null).await.expect(200).json();
        assert_eq!((&reopened["state"], reopened["epoch"].as_u64()), (&json!("open"), Some(idle.epoch + 2)));
        assert_eq!(resolve(&service, DATASET).await["version"], "v1");
        // a sign of life puts the end off
        service.clock.advance(ttl / 2 - Duration::from_secs(1));
        busy.put_pack(&push.packs[0]).await.expect(200);
        service.clock.advance(ttl / 2 + Duration::from_secs(2));
        service.run("expire-uploads").await;
        assert_eq!(busy.state().await, "open");
    }

    async fn another_machine_goes_on_where_one_stopped(service) {
        let push = files(16).push(1);
        let stopped = service.open(&service.admin, DATASET).await;
        for pack in &push.packs {
            stopped.put_pack(pack).await.expect(201);
        }
        let elsewhere = service.open(&service.admin, "some/thing").await;
        assert_eq!(elsewhere.document["offered_packs"], 0, "another dataset is offered nothing");
        let resumed = service.open(&service.admin, DATASET).await;
        assert_eq!(resumed.document["offered_packs"], push.packs.len());
        // the one that stopped may end: what it brought stays pinned for the other
        service.delete(&format!("/v1/uploads/{}", stopped.id)).await.expect(204);
        resumed.describe(&push).await;
        assert_eq!(resumed.commit(&push).await["version"], "v1");
    }

    async fn two_pushes_to_one_dataset_both_become_versions(service) {
        let (one, two) = (files(17).push(4), files(18).push(4));
        let (first, second) = tokio::join!(
            service.push(&service.admin, DATASET, &one),
            service.push(&service.admin, DATASET, &two)
        );
        let mut versions = [first["version"].as_str().unwrap(), second["version"].as_str().unwrap()];
        versions.sort_unstable();
        assert_eq!(versions, ["v1", "v2"]);
    }

    async fn many_pushes_at_once_end_well(service) {
        let blue = service.team("blue").await;
        // all share most of their bytes, within their team and across
        let push = |seed: u64| files(30).with(&format!("own/{seed}"), noise(1000 + seed, 70_000)).push(3);
        let pushes = (0..8).map(|seed| {
            let token = if seed % 2 == 0 { service.admin.clone() } else { blue.clone() };
            let service = &service;
            async move { (token.clone(), service.push(&token, "shared/set", &push(seed)).await) }
        });
        let done = futures::future::join_all(pushes).await;
        for (token, version) in &done {
            let mine = done.iter().filter(|(other, _)| other == token).map(|(_, version)| version["version"].as_str().unwrap());
            let mut numbers: Vec<_> = mine.collect();
            numbers.sort_unstable();
            assert_eq!(numbers, ["v1", "v2", "v3", "v4"]);
            let path = format!("/v1/versions/{}/tree", version["id"].as_str().unwrap());
            service.call(Method::GET, &path, token, &Value::Null).await.expect(200);
        }
    }

    async fn known_packs_come_with_their_neighbours(service) {
        let upload = service.open(&service.admin, DATASET).await;
        let sample = sampled_chunk(1);
        let packs: Vec<_> = (0..9).map(|i| if i == 4 { pack([&sample[..]]) } else { pack([&noise(100 + i, 900)[..]]) }).collect();
        for pack in &packs {
            upload.put_pack(pack).await.expect(201);
        }
        let asking = service.open(&service.admin, "some/other").await;
        let known = asking.known(&[packs[4].index.entries()[0].id]).await.expect(200).json();
        let mut named: Vec<String> = known["packs"].as_array().unwrap().iter().map(|pack| pack["id"].as_str().unwrap().to_owned()).collect();
        let mut sent: Vec<String> = packs.iter().map(|pack| pack.id.to_string()).collect();
        named.sort_unstable();
        sent.sort_unstable();
        assert_eq!(named, sent, "small packs without a sampled chunk are found beside one that has it");
        let pinned = service.get(&format!("/v1/uploads/{}", asking.id)).await.expect(200).json();
        assert_eq!(pinned["offered_packs"], 9, "what is named is pinned");
        let unknown = asking.known(&[sampled_digest(9_000)]).await.expect(200).json();
        assert_eq!(unknown["packs"], json!([]));
    }

    async fn a_full_quota_says_what_is_needed_and_what_is_left(service) {
        service.post("/v1/teams", &json!({ "name": "small", "quota_bytes": 400_000 })).await.expect(201);
        let token = service.token("small", "team").await;
        let open = json!({ "dataset": DATASET, "bytes": 400_001 });
        let problem = service.call(Method::POST, "/v1/uploads", &token, &open).await.problem(413, "quota_exceeded");
        assert_eq!(problem["data"], json!({ "needed_bytes": 400_001, "left_bytes": 400_000 }));
        // who announces nothing is held to it all the same: by what it sends, and at commit
        let (first, second) = (files(19).push(9), files(20).push(9));
        service.push(&token, DATASET, &first).await;
        let upload = service.open(&token, DATASET).await;
        upload.put_pack(&second.packs[0]).await.problem(413, "quota_exceeded");
        let linked = Files(files(19).0.into_iter().chain([("copy.bin".to_owned(), noise(19, 300_000))]).collect()).push(9);
        upload.send(&linked).await;
        let problem = upload.commit_refused(&linked, 413, "quota_exceeded").await;
        assert_eq!(problem["data"], json!({ "needed_bytes": 620_000, "left_bytes": 80_000 }));
        assert_eq!(upload.state().await, "open", "a refused commit can be mended");
        let announced = json!({ "dataset": DATASET, "bytes": 80_000 });
        service.call(Method::POST, "/v1/uploads", &token, &announced).await.expect(201);
        service.call(Method::POST, "/v1/uploads", &token, &json!({ "dataset": DATASET, "bytes": 1 })).await.problem(413, "quota_exceeded");
        assert_eq!(service.push(&service.admin, DATASET, &second).await["version"], "v1", "another team is not touched");
    }

    async fn open_uploads_of_a_team_are_bounded(builder: Builder) {
        let service = builder.settings(|settings| settings.limits.open_uploads_per_team = 3).start().await;
        let blue = service.team("blue").await;
        for _ in 0..3 {
            service.open(&blue, DATASET).await;
        }
        let refused = service.call(Method::POST, "/v1/uploads", &blue, &json!({ "dataset": DATASET })).await;
        assert!(refused.headers.contains_key("retry-after"));
        refused.problem(429, "too_many_uploads");
        service.open(&service.admin, DATASET).await;
    }
}

fn sampled_digest(seed: u64) -> Digest {
    dray::content::digest::digest(&sampled_chunk(seed))
}
