//! Grants: URLs for packs, whom they are given to, what they open and when they stop.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::both_engines;
use crate::support::data::{Files, Push, noise};
use crate::support::service::{Answer, TestService};

const DATASET: &str = "warehouse/aisle-cams";

async fn pushed(service: &TestService) -> (Push, Value) {
    let push = Files::default().with("a.bin", noise(1, 300_000)).push(3);
    let version = service.push(&service.admin, DATASET, &push).await;
    (push, version)
}

fn request(version: &Value, push: &Push) -> Value {
    let packs: Vec<String> = push.packs.iter().map(|pack| pack.id.to_string()).collect();
    json!({ "version": version["id"], "layout": version["layout"]["id"], "packs": packs })
}

async fn open(service: &TestService, url: &str) -> Answer {
    service.call(Method::GET, url, "", &Value::Null).await
}

both_engines! {
    async fn a_grant_opens_one_pack_without_a_token(service) {
        let (push, version) = pushed(&service).await;
        let grants = service.post("/v1/grants", &request(&version, &push)).await.expect(200).json();
        for (grant, pack) in grants["grants"].as_array().unwrap().iter().zip(&push.packs) {
            assert_eq!(grant["pack"]["id"], pack.id.to_string());
            let url = grant["url"].as_str().unwrap();
            assert!(url.starts_with("/v1/packs/"), "a path on the service's own origin: {url}");
            assert_eq!(open(&service, url).await.expect(200).bytes, pack.bytes);
            let index = pack.index.index_bytes() + 64;
            let range = format!("bytes={}-", index);
            let part = service.request(Method::GET, url, "").header("range", range).send().await.unwrap();
            assert_eq!(part.status(), 206);
            assert_eq!(part.bytes().await.unwrap(), pack.bytes[usize::try_from(index).unwrap()..]);
        }
    }

    async fn a_grant_opens_nothing_else_and_not_for_ever(service) {
        let (push, version) = pushed(&service).await;
        let grants = service.post("/v1/grants", &request(&version, &push)).await.expect(200).json();
        let url = grants["grants"][0]["url"].as_str().unwrap();
        let exp: i64 = url.split("exp=").nth(1).unwrap().split('&').next().unwrap().parse().unwrap();
        let other_pack = url.replace(&push.packs[0].id.to_string(), &push.packs[1].id.to_string());
        let other_team = url.replace(url.split("team=").nth(1).unwrap().split('&').next().unwrap(), &uuid::Uuid::nil().to_string());
        for bad in [
            other_pack,
            other_team,
            url.replace(&exp.to_string(), &(exp + 1).to_string()),
            format!("{url}x"),
            url.split("&sig=").next().unwrap().to_owned() + "&sig=",
        ] {
            open(&service, &bad).await.problem(403, "link_dead");
        }
        open(&service, url).await.expect(200);
        service.clock.advance(service.app().settings.limits.grant_ttl.0 + Duration::from_secs(1));
        open(&service, url).await.problem(403, "link_dead");
    }

    async fn a_grant_names_the_layout_and_its_own_packs_only(service) {
        let (push, version) = pushed(&service).await;
        let stranger = Files::default().with("b.bin", noise(2, 90_000)).push(9);
        service.push(&service.admin, "other/set", &stranger).await;
        service.post("/v1/grants", &request(&version, &stranger)).await.problem(404, "not_found");
        let mut gone = request(&version, &push);
        gone["layout"] = json!(uuid::Uuid::nil());
        service.post("/v1/grants", &gone).await.problem(409, "layout_gone");
        let mut many = request(&version, &push);
        many["packs"] = json!(vec![push.packs[0].id.to_string(); 257]);
        service.post("/v1/grants", &many).await.problem(422, "invalid");
        let reader = service.token("default", "team-read").await;
        service.call(Method::POST, "/v1/grants", &reader, &request(&version, &push)).await.expect(200);
    }

    async fn a_nodes_token_reads_and_sends_nothing_that_is_not_staged_on_it(service) {
        let (push, version) = pushed(&service).await;
        let node = service.node("gpu-1").await;
        let call = async |method: Method, path: String, body: Value| service.call(method, &path, &node, &body).await;
        call(Method::POST, "/v1/grants".into(), request(&version, &push)).await.problem(404, "not_found");
        let id = version["id"].as_str().unwrap();
        for path in [format!("/v1/versions/{id}"), format!("/v1/versions/{id}/tree"), format!("/v1/packs/{}/index", push.packs[0].id)] {
            call(Method::GET, path, Value::Null).await.problem(404, "not_found");
        }
        call(Method::POST, "/v1/uploads".into(), json!({ "dataset": DATASET })).await.problem(403, "denied");
        let output = json!({ "dataset": DATASET, "output": { "job": uuid::Uuid::nil(), "lease_epoch": 1, "name": "x" } });
        call(Method::POST, "/v1/uploads".into(), output).await.problem(404, "output_not_found");
        call(Method::DELETE, format!("/v1/versions/{id}"), Value::Null).await.problem(403, "denied");
        let upload = service.open(&service.admin, DATASET).await;
        call(Method::GET, format!("/v1/uploads/{}", upload.id), Value::Null).await.problem(404, "not_found");
    }
}
