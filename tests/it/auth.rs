//! Who may call what: tokens, roles, teams that do not see each other; every route has its row.

use std::collections::BTreeSet;
use std::time::Duration;

use dray::server::{Needs, TABLE, document};
use reqwest::Method;
use serde_json::{Value, json};

use crate::both_engines;

/// `GET /v1/teams` of every operation in the OpenAPI document, and the document itself.
fn routes() -> BTreeSet<String> {
    let document = document();
    let mut routes = BTreeSet::from(["GET /openapi.json".to_owned()]);
    for (path, item) in document["paths"].as_object().unwrap() {
        let methods = ["get", "put", "post", "delete", "patch", "head", "options"];
        let named = item.as_object().unwrap().keys().filter(|key| methods.contains(&key.as_str()));
        routes.extend(named.map(|method| format!("{} {path}", method.to_uppercase())));
    }
    routes
}

#[test]
fn every_route_has_exactly_one_row_in_the_auth_table() {
    let rows: Vec<_> = TABLE.iter().map(|(method, path, _)| format!("{method} {path}")).collect();
    let unique: BTreeSet<_> = rows.iter().cloned().collect();
    assert_eq!(rows.len(), unique.len(), "a route has two rows");
    assert_eq!(unique, routes());
}

#[test]
fn what_needs_no_token_is_a_short_known_list() {
    let open: Vec<_> = TABLE.iter().filter(|row| row.2 == Needs::Nothing).map(|row| row.1).collect();
    assert_eq!(open, ["/healthz", "/openapi.json", "/v1/keys"]);
}

both_engines! {
    async fn no_route_answers_a_caller_without_its_right(service) {
        let reader = service.token("default", "team-read").await;
        let node = service.node("gpu-1").await;
        for (method, path, needs) in TABLE {
            let concrete = path.replace(['{', '}'], "");
            let call = |token: String| {
                let (service, concrete) = (&service, &concrete);
                async move { service.call(method.clone(), concrete, &token, &Value::Null).await }
            };
            match needs {
                Needs::Nothing => drop(call(String::new()).await.expect(200)),
                Needs::Signature => {
                    let status = call(String::new()).await.status.as_u16();
                    assert!(matches!(status, 403 | 404 | 410 | 422), "{method} {path}: {status}");
                }
                Needs::Roles(roles) => {
                    call(String::new()).await.problem(401, "unauthenticated");
                    call("dray_unknown".to_owned()).await.problem(401, "unauthenticated");
                    for (token, role) in [(&reader, dray::api::teams::Role::TeamRead), (&node, dray::api::teams::Role::Node)] {
                        if !roles.contains(&role) {
                            call(token.clone()).await.problem(403, "denied");
                        }
                    }
                }
                Needs::Operator => drop(call(reader.clone()).await.problem(403, "denied")),
            }
        }
    }

    async fn a_token_works_until_it_is_revoked_or_over(service) {
        let made = service.post("/v1/tokens", &json!({"role": "team", "label": "ci", "expires_at": "2026-01-01T01:00:00Z"})).await.expect(201);
        let (id, token) = (made.text("id"), made.text("token"));
        let who = service.call(Method::GET, "/v1/whoami", &token, &Value::Null).await.expect(200).json();
        assert_eq!((who["role"].as_str(), who["token_id"].as_str(), who["team"]["name"].as_str()), (Some("team"), Some(id.as_str()), Some("default")));

        service.clock.advance(Duration::from_secs(3_600));
        service.call(Method::GET, "/v1/whoami", &token, &Value::Null).await.problem(401, "unauthenticated");

        let made = service.post("/v1/tokens", &json!({"role": "team"})).await.expect(201);
        let token = made.text("token");
        service.delete(&format!("/v1/tokens/{}", made.text("id"))).await.expect(204);
        service.delete(&format!("/v1/tokens/{}", made.text("id"))).await.expect(204);
        service.call(Method::GET, "/v1/whoami", &token, &Value::Null).await.problem(401, "unauthenticated");

        let listed = service.get("/v1/tokens").await.expect(200);
        assert!(!String::from_utf8_lossy(&listed.bytes).contains(&token), "a secret is listed");
        let tokens = listed.json()["items"].as_array().unwrap().clone();
        assert_eq!(tokens.iter().filter(|token| token["revoked_at"].is_string()).count(), 1, "{tokens:?}");
    }

    async fn teams_do_not_see_each_other(service) {
        let blue = service.team("blue").await;
        let red = service.team("red").await;
        let made = service.call(Method::POST, "/v1/tokens", &blue, &json!({"role": "team"})).await.expect(201);
        service.call(Method::POST, "/v1/nodes", &blue, &json!({"name": "gpu-1"})).await.expect(201);

        // the same answers as for what does not exist
        service.call(Method::DELETE, &format!("/v1/tokens/{}", made.text("id")), &red, &Value::Null).await.problem(404, "not_found");
        service.call(Method::DELETE, "/v1/nodes/gpu-1", &red, &Value::Null).await.problem(404, "not_found");
        let nodes = service.call(Method::GET, "/v1/nodes", &red, &Value::Null).await.expect(200).json();
        assert_eq!(nodes, json!({"items": []}));
        let teams = service.call(Method::GET, "/v1/teams", &red, &Value::Null).await.expect(200).json();
        assert_eq!(teams["items"].as_array().unwrap().len(), 1);
        assert_eq!(teams["items"][0]["name"], "red");
        // names of nodes are each team's own
        service.call(Method::POST, "/v1/nodes", &red, &json!({"name": "gpu-1"})).await.expect(201);
        // an admin of a team is no operator
        service.call(Method::POST, "/v1/teams", &red, &json!({"name": "green"})).await.problem(403, "denied");
        service.call(Method::POST, "/v1/tokens", &red, &json!({"role": "admin", "team": "blue"})).await.problem(403, "denied");
        let teams = service.get("/v1/teams").await.expect(200).json();
        assert_eq!(teams["items"].as_array().unwrap().len(), 3);
    }

    async fn a_removed_node_is_gone_with_its_token_and_its_name_is_free(service) {
        let token = service.node("gpu-1").await;
        let who = service.call(Method::GET, "/v1/whoami", &token, &Value::Null).await.expect(200).json();
        assert_eq!((who["role"].as_str(), who["node"].as_str()), (Some("node"), Some("gpu-1")));
        service.post("/v1/nodes", &json!({"name": "gpu-1"})).await.problem(409, "node_exists");
        service.delete("/v1/nodes/gpu-1").await.expect(204);
        service.call(Method::GET, "/v1/whoami", &token, &Value::Null).await.problem(401, "unauthenticated");
        service.delete("/v1/nodes/gpu-1").await.problem(404, "not_found");
        service.node("gpu-1").await;
        assert_eq!(service.get("/v1/nodes").await.json()["items"].as_array().unwrap().len(), 1);
    }

    async fn admin_token_is_private_and_stays_valid_over_restarts(service) {
        use std::os::unix::fs::PermissionsExt;
        let path = service.data().join("admin.token");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let admin = service.admin.clone();
        let service = service.restart().await;
        assert_eq!(service.admin, admin);
        service.get("/v1/whoami").await.expect(200);
        // a lost or foreign file is replaced
        std::fs::write(&path, "dray_something_else\n").unwrap();
        let service = service.restart().await;
        assert_ne!(service.admin, admin);
        service.get("/v1/whoami").await.expect(200);
    }

    async fn one_busy_token_is_held_back_and_others_are_not(builder: Builder) {
        let service = builder.settings(|settings| settings.limits.requests_per_second = 1).start().await;
        let busy = service.token("default", "team").await;
        let mut held_back = false;
        for _ in 0..8 {
            let answer = service.call(Method::GET, "/v1/whoami", &busy, &Value::Null).await;
            if answer.status == 429 {
                assert_eq!(answer.headers["retry-after"], "1");
                answer.problem(429, "too_many_requests");
                held_back = true;
            }
        }
        assert!(held_back);
        service.call(Method::GET, "/v1/whoami", &service.admin, &Value::Null).await.expect(200);
    }
}
