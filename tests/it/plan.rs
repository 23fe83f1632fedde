//! `dray stage --plan`: what would be staged, the room for it and what stands against it, told without changing anything.

use serde_json::{Value, json};

use crate::both_engines;
use crate::support::binary::{Ran, dray};
use crate::support::data::{Files, noise};
use crate::support::fake_agent::FakeAgent;
use crate::support::service::TestService;

const DATASET: &str = "warehouse/aisle-cams";

fn files() -> Files {
    let files = Files::default().with("aisle-1/a.mp4", noise(1, 150_000)).with("aisle-1/b.mp4", noise(2, 50_000));
    files.with("aisle-2/c.mp4", noise(3, 70_000)).with("readme", b"about".to_vec())
}

async fn plan(service: &TestService, job: &str, node: &str) -> Value {
    let node = if node.is_empty() { String::new() } else { format!("?node={node}") };
    service.get(&format!("/v1/jobs/{job}/plan{node}")).await.expect(200).json()
}

fn codes(plan: &Value) -> Vec<&str> {
    plan["refusals"].as_array().unwrap().iter().map(|refusal| refusal["code"].as_str().unwrap()).collect()
}

both_engines! {
    async fn a_plan_tells_what_a_staging_brings_and_changes_nothing(builder: Builder) {
        let service = builder.quiet().start().await;
        let version = service.push_by_hand(DATASET, &files().push(2)).await;
        service.push_by_hand("models/picker", &Files::default().with("model.bin", noise(4, 10_000)).push(2)).await;
        FakeAgent::start(&service, "n1").await;
        service.node("n2").await;
        let footage = json!({ "from": DATASET, "at": "in/footage", "include": ["aisle-*"], "exclude": ["**/b.mp4"] });
        let model = json!({ "from": "models/picker:model.bin", "at": "model.bin" });
        let job = service.job(DATASET, json!({ "data": [footage], "work": model })).await;
        let before = (service.events().await, service.get("/v1/nodes").await.json());
        let told = plan(&service, &job, "").await;
        assert_eq!((&told["node"], codes(&told)), (&Value::Null, vec![]));
        assert_eq!((&told["files"], &told["bytes"]), (&json!(3), &json!(230_000)));
        // in, in/footage, aisle-1 and aisle-2 are directories; model.bin lies at the top
        assert_eq!(told["needed_bytes"], 230_000 + (3 + 4) * 4096);
        let [work, data] = told["inputs"].as_array().unwrap().as_slice() else { panic!("{told}") };
        assert_eq!((&work["at"], &work["path"], &work["chosen"]["files"]), (&json!("model.bin"), &json!("model.bin"), &json!(1)));
        assert_eq!((&data["ref"], &data["digest"]), (&version["ref"], &version["digest"]));
        assert_eq!((&data["chosen"]["files"], &data["chosen"]["bytes"], &data["chosen"]["symlinks"]), (&json!(2), &json!(220_000), &json!(0)));
        let told = plan(&service, &job, "n1").await;
        assert_eq!((&told["node"]["name"], &told["node"]["free_bytes"]), (&json!("n1"), &json!(1)));
        assert_eq!(codes(&told), ["no_lease", "no_space"]);
        let words = told["refusals"][1]["detail"].as_str().unwrap();
        assert!(words.contains(&told["needed_bytes"].to_string()) && words.contains("1 free"), "{words}");
        assert_eq!(codes(&plan(&service, &job, "n2").await), ["no_lease", "node_silent"]);
        service.get(&format!("/v1/jobs/{job}/plan?node=n3")).await.problem(404, "node_not_found");
        service.get(&format!("/v1/jobs/{}/plan", uuid::Uuid::nil())).await.problem(404, "not_found");
        let other = service.team("other").await;
        let path = format!("/v1/jobs/{job}/plan");
        service.call(reqwest::Method::GET, &path, &other, &Value::Null).await.expect(404);
        service.post("/v1/teams", &json!({ "name": "third" })).await.expect(201);
        assert_eq!((service.events().await, service.get("/v1/nodes").await.json()), before, "nothing has changed");
        assert_eq!(service.get(&format!("/v1/stagings?job={job}")).await.json()["items"], json!([]));
        // a staging then brings what was told
        let staging = service.stage(&job, "").await.expect(201).json();
        service.run("look-into-stagings").await;
        assert_eq!(service.staging(&staging["id"]).await["bytes_total"], told["bytes"]);
        service.grant_lease(&job, "n1").await.expect(201);
        assert_eq!(codes(&plan(&service, &job, "n1").await), ["no_space"]);
    }

    async fn what_stands_against_an_input_is_told_beside_the_others(builder: Builder) {
        let service = builder.quiet().start().await;
        service.push_by_hand("links", &Files::default().with("a.txt", noise(5, 100)).push_with_symlink("b", "/etc/passwd")).await;
        service.push_by_hand(DATASET, &files().push(2)).await;
        let input = |from: &str, at: &str| json!({ "from": from, "at": at });
        let job = service.job(DATASET, json!({ "data": [input("links", "l"), input(DATASET, "f")] })).await;
        let told = plan(&service, &job, "").await;
        assert_eq!((codes(&told), &told["inputs"][0]["chosen"], &told["bytes"]), (vec!["outside_links"], &Value::Null, &json!(270_005)));
        let words = told["refusals"][0]["detail"].as_str().unwrap();
        assert!(words.contains("`l`") && words.contains("allow_outside_links"), "{words}");
        let shell = |more: &'static [&'static str]| {
            let mut command = dray();
            command.env("DRAY_URL", &service.url).env("DRAY_TOKEN", &service.admin).args(["stage", "--plan", "--job", &job]).args(more);
            tokio::task::spawn_blocking(move || Ran::of(&mut command))
        };
        let ran = shell(&["--json"]).await.unwrap();
        assert_eq!((ran.code, ran.document()), (1, told), "{ran:?}");
        let ran = shell(&[]).await.unwrap();
        assert!(ran.code == 1 && ran.stdout.contains("refused: `l`") && ran.stdout.contains("room needed"), "{ran:?}");
        service.delete(&format!("/v1/jobs/{job}")).await.expect(200);
        assert_eq!(codes(&plan(&service, &job, "").await), ["job_over", "outside_links"]);
    }
}
