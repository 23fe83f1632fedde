//! Links: what their holder gets, byte for byte; when they stop; what no file name can do to a header.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use dray::store::{Kind, Prefix};
use futures::TryStreamExt;
use reqwest::Method;
use serde_json::{Value, json};

use crate::both_engines;
use crate::support::data::{Files, noise};
use crate::support::fault_proxy::{Fault, FaultProxy, Rule};
use crate::support::service::{Answer, Builder, TestService};

fn files() -> Files {
    Files::default()
        .with("day-1/a.mp4", noise(1, 200_000))
        .with("day-1/b c.mp4", noise(2, 70_000))
        .with("day-2/empty", Vec::new())
        .with("notes.txt", b"seen".to_vec())
}

async fn pushed(service: &TestService) -> Files {
    let files = files();
    service.push_by_hand("w/cams", &files.push(2)).await;
    files
}

async fn link(service: &TestService, path: &str, more: Value) -> Answer {
    let mut wish = json!({ "ref": "w/cams", "path": path });
    for (key, value) in more.as_object().unwrap() {
        wish[key] = value.clone();
    }
    service.post("/v1/links", &wish).await
}

/// Follows a link as a stranger does: no token.
async fn open(service: &TestService, link: &Value, headers: &[(&str, &str)]) -> Answer {
    open_by(service, Method::GET, link, headers).await
}

async fn open_by(service: &TestService, method: Method, link: &Value, headers: &[(&str, &str)]) -> Answer {
    let path = link["url"].as_str().unwrap().strip_prefix(&service.url).unwrap().to_owned();
    let mut request = service.request(method, &path, "");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Answer::of(request.send().await.unwrap()).await
}

fn unpack(archive: &[u8], kind: &str, into: &Path) {
    let file = into.with_extension(kind);
    std::fs::create_dir_all(into).unwrap();
    std::fs::write(&file, archive).unwrap();
    let mut command = match kind {
        "tar" => Command::new("tar"),
        _ => Command::new("python3"),
    };
    match kind {
        "tar" => command.arg("-xf").arg(&file).arg("-C").arg(into),
        _ => command.args(["-m", "zipfile", "-e"]).arg(&file).arg(into),
    };
    assert!(command.status().unwrap().success());
}

both_engines! {
    async fn a_file_is_downloaded_whole_and_by_ranges(builder: Builder) {
        let service = builder.quiet().start().await;
        let files = pushed(&service).await;
        let wanted = &files.0["day-1/b c.mp4"];
        let link = link(&service, "day-1/b c.mp4", json!({})).await.expect(201).json();
        assert_eq!((&link["bytes"], &link["kind"], &link["expires_at"]), (&json!(70_000), &json!("service"), &json!("2026-01-08T00:00:00Z")));
        assert!(link["url"].as_str().unwrap().contains("/b%20c.mp4?exp="), "{link}");
        let whole = open(&service, &link, &[]).await.expect(200);
        assert_eq!(&whole.bytes, wanted);
        assert_eq!(whole.headers["content-length"], "70000");
        assert_eq!(whole.headers["content-disposition"], "attachment; filename=\"b c.mp4\"; filename*=UTF-8''b%20c.mp4");
        for (name, value) in [("x-content-type-options", "nosniff"), ("referrer-policy", "no-referrer"), ("accept-ranges", "bytes"), ("content-type", "application/octet-stream")] {
            assert_eq!(whole.headers[name], value);
        }
        let tag = whole.headers["etag"].to_str().unwrap().to_owned();
        let rest = open(&service, &link, &[("range", "bytes=65000-"), ("if-range", &tag)]).await.expect(206);
        assert_eq!((rest.bytes.as_slice(), &rest.headers["content-range"]), (&wanted[65_000..], &"bytes 65000-69999/70000".parse().unwrap()));
        let stale = open(&service, &link, &[("range", "bytes=3-"), ("if-range", "\"other\"")]).await.expect(200);
        assert_eq!(&stale.bytes, wanted, "another version is never joined");
        open(&service, &link, &[("if-none-match", &tag)]).await.expect(304);
        open(&service, &link, &[("range", "bytes=70000-")]).await.expect(416);
        let head = open_by(&service, Method::HEAD, &link, &[]).await.expect(200);
        assert_eq!((head.bytes.len(), &head.headers["content-length"]), (0, &"70000".parse().unwrap()));
    }

    async fn archives_are_exact_and_resume(builder: Builder) {
        let service = builder.quiet().start().await;
        let files = pushed(&service).await;
        for kind in ["zip", "tar"] {
            let link = link(&service, "", json!({ "archive": kind })).await.expect(201).json();
            let whole = open(&service, &link, &[]).await.expect(200);
            assert_eq!(link["bytes"], whole.bytes.len());
            assert_eq!(whole.headers["content-length"], whole.bytes.len().to_string());
            assert!(whole.headers["content-disposition"].to_str().unwrap().contains(&format!("cams-v1.{kind}")));
            let into = service.scratch().join(kind);
            unpack(&whole.bytes, kind, &into);
            for (path, bytes) in &files.0 {
                assert_eq!(&std::fs::read(into.join(path)).unwrap(), bytes, "{path}");
            }
            let tag = whole.headers["etag"].to_str().unwrap();
            for at in [1, 511, 100_000, whole.bytes.len() - 1] {
                let rest = open(&service, &link, &[("range", &format!("bytes={at}-")), ("if-range", tag)]).await.expect(206);
                assert_eq!(rest.bytes, whole.bytes[at..], "{kind} from {at}");
            }
            let part = link_part(&service, kind).await;
            let into = service.scratch().join(format!("part-{kind}"));
            unpack(&part, kind, &into);
            assert_eq!(std::fs::read(into.join("a.mp4")).unwrap(), files.0["day-1/a.mp4"]);
            assert!(!into.join("notes.txt").exists());
        }
    }

    async fn a_link_ends_when_it_says_and_when_it_is_revoked(builder: Builder) {
        let service = builder.quiet().start().await;
        pushed(&service).await;
        link(&service, "notes.txt", json!({ "expires_in": 691_200 })).await.problem(422, "expires_too_far");
        link(&service, "notes.txt", json!({ "expires_in": 0 })).await.problem(422, "invalid");
        let short = link(&service, "notes.txt", json!({ "expires_in": 60 })).await.expect(201).json();
        assert_eq!(short["expires_at"], "2026-01-01T00:01:00Z");
        open(&service, &short, &[]).await.expect(200);
        let revoked = link(&service, "notes.txt", json!({})).await.expect(201).json();
        let path = format!("/v1/links/{}", revoked["id"].as_str().unwrap());
        let other = service.team("other").await;
        service.call(Method::DELETE, &path, &other, &Value::Null).await.expect(404);
        open(&service, &revoked, &[]).await.expect(200);
        service.delete(&path).await.expect(204);
        open(&service, &revoked, &[]).await.problem(410, "link_revoked");
        service.clock.advance(Duration::from_secs(60));
        let problem = open(&service, &short, &[]).await.problem(410, "link_expired");
        assert!(problem["detail"].as_str().unwrap().contains("2026-01-01T00:01:00Z"));
        let kept = link(&service, "notes.txt", json!({})).await.expect(201).json();
        let url = kept["url"].as_str().unwrap();
        let exp = url.split("exp=").nth(1).unwrap().split('&').next().unwrap();
        let longer = url.replace(exp, &(exp.parse::<i64>().unwrap() + 1).to_string());
        let elsewhere = url.replace(kept["id"].as_str().unwrap(), revoked["id"].as_str().unwrap());
        for bad in [longer, elsewhere, format!("{url}x"), url.split("sig=").next().unwrap().to_owned() + "sig="] {
            open(&service, &json!({ "url": bad }), &[]).await.problem(403, "link_denied");
        }
        service.delete("/v1/datasets?name=w/cams").await.expect(204);
        open(&service, &kept, &[]).await.problem(410, "link_gone");
    }

    async fn what_cannot_be_linked_is_refused_in_words(builder: Builder) {
        let service = builder.quiet().start().await;
        pushed(&service).await;
        link(&service, "none", json!({})).await.problem(404, "path_not_found");
        link(&service, "../x", json!({})).await.expect(422);
        link(&service, "notes.txt", json!({ "archive": "zip" })).await.problem(422, "invalid");
        link(&service, "notes.txt", json!({ "direct": true })).await.problem(409, "direct_unsupported");
        let other = service.team("other").await;
        let wish = json!({ "ref": "w/cams", "path": "notes.txt" });
        service.call(Method::POST, "/v1/links", &other, &wish).await.expect(404);
        let reader = service.token("default", "team-read").await;
        service.call(Method::POST, "/v1/links", &reader, &wish).await.expect(403);
    }

    async fn no_name_breaks_a_header(builder: Builder) {
        let service = builder.quiet().start().await;
        let long = "ä".repeat(120);
        let hostile = ["a\"\r\nX-Evil: y.mov", "🎬 film.mp4", &long, "%2e%2e", "a;b=c"];
        let mut files = Files::default();
        for name in hostile {
            files = files.with(name, name.as_bytes().to_vec());
        }
        service.push_by_hand("w/cams", &files.push(1)).await;
        for name in hostile {
            let link = link(&service, name, json!({})).await.expect(201).json();
            let answer = open(&service, &link, &[]).await.expect(200);
            assert_eq!(answer.bytes, name.as_bytes(), "{name:?}");
            assert!(answer.headers.get("x-evil").is_none());
            let value = answer.headers["content-disposition"].to_str().unwrap();
            assert!(value.starts_with("attachment; filename=\"") && value.bytes().all(|byte| (0x20..0x7f).contains(&byte)), "{value}");
        }
    }

    async fn a_direct_link_is_signed_by_the_store(builder: Builder) {
        let Some(s3) = crate::support::s3() else { return };
        let store = crate::support::stores::s3_settings(&s3, &s3.endpoint);
        let builder = builder.quiet().settings(|settings| settings.store = store);
        let service = builder.start().await;
        crate::support::client::set_clock(&service); // stores look at their own clock
        let files = pushed(&service).await;
        let link = link(&service, "day-1/a.mp4", json!({ "direct": true, "expires_in": 600 })).await.expect(201).json();
        assert_eq!(link["kind"], "direct");
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let url = link["url"].as_str().unwrap();
        let got = client.get(url).send().await.unwrap();
        assert_eq!(got.status(), 200);
        assert!(got.headers()["content-disposition"].to_str().unwrap().contains("a.mp4"));
        assert_eq!(got.bytes().await.unwrap(), files.0["day-1/a.mp4"]);
        service.delete(&format!("/v1/links/{}", link["id"].as_str().unwrap())).await.expect(204);
        assert!(client.get(url).send().await.unwrap().status().is_client_error(), "gone with its export object");
    }

    async fn a_direct_link_goes_with_its_version(builder: Builder) {
        let Some(s3) = crate::support::s3() else { return };
        let store = crate::support::stores::s3_settings(&s3, &s3.endpoint);
        let service = builder.quiet().settings(|settings| settings.store = store).start().await;
        crate::support::client::set_clock(&service);
        pushed(&service).await;
        let link = link(&service, "day-1/a.mp4", json!({ "direct": true })).await.expect(201).json();
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let url = link["url"].as_str().unwrap();
        assert_eq!(client.get(url).send().await.unwrap().status(), 200);
        service.delete("/v1/datasets?name=w/cams").await.expect(204);
        service.run("delete-exports").await;
        assert!(client.get(url).send().await.unwrap().status().is_client_error(), "its object is a copy of the version");
        assert_eq!(exports(&service).await, (0, 0));
    }

    async fn direct_links_asked_for_together_are_one(builder: Builder) {
        let Some((service, proxy)) = proxied(builder).await else { return };
        pushed(&service).await;
        proxy.on(Rule::new("PUT", "/exports/").times(1).does(Fault::Delay(Duration::from_secs(1))));
        let ask = || async {
            let wish = json!({ "ref": "w/cams", "path": "day-1/a.mp4", "direct": true });
            let request = service.request(Method::POST, "/v1/links", &service.admin).header("idempotency-key", "one");
            Answer::of(request.json(&wish).send().await.unwrap()).await.expect(201).json()
        };
        let repeat = async {
            proxy.wait(|seen| seen.method == "PUT" && seen.target.contains("/exports/"), 1).await;
            ask().await
        };
        let (first, second) = tokio::join!(ask(), repeat);
        assert_eq!(first, second, "one answer");
        assert_eq!(first, ask().await);
        assert_eq!(exports(&service).await, (1, 1), "and one object");
    }

    async fn an_export_whose_link_ends_while_it_is_written_is_not_kept(builder: Builder) {
        let Some((service, proxy)) = proxied(builder).await else { return };
        pushed(&service).await;
        proxy.on(Rule::new("PUT", "/exports/").times(1).does(Fault::Delay(Duration::from_secs(3))));
        let ends = async {
            proxy.wait(|seen| seen.method == "PUT" && seen.target.contains("/exports/"), 1).await;
            service.clock.advance(Duration::from_secs(61));
            service.run("delete-exports").await; // nothing is there yet, and the row is cleared
        };
        let (answer, ()) = tokio::join!(link(&service, "day-1/a.mp4", json!({ "direct": true, "expires_in": 60 })), ends);
        answer.problem(410, "link_expired");
        assert_eq!(exports(&service).await, (0, 0));
    }

    async fn a_repeat_is_answered_whatever_has_become_of_the_version(builder: Builder) {
        let service = builder.quiet().start().await;
        pushed(&service).await;
        let ask = || async {
            let wish = json!({ "ref": "w/cams", "path": "notes.txt" });
            let request = service.request(Method::POST, "/v1/links", &service.admin).header("idempotency-key", "one");
            Answer::of(request.json(&wish).send().await.unwrap()).await.expect(201).json()
        };
        let first = ask().await;
        service.delete("/v1/datasets?name=w/cams").await.expect(204);
        assert_eq!(ask().await, first);
    }
}

/// A quiet service whose bucket is reached through a proxy.
async fn proxied(builder: Builder) -> Option<(TestService, FaultProxy)> {
    let s3 = crate::support::s3()?;
    let proxy = FaultProxy::start(s3.endpoint.trim_start_matches("http://")).await;
    let store = crate::support::stores::s3_settings(&s3, &proxy.url());
    let service = builder.quiet().settings(|settings| settings.store = store).start().await;
    crate::support::client::set_clock(&service);
    Some((service, proxy))
}

/// Export objects that rows name, and that are in the store.
async fn exports(service: &TestService) -> (u64, usize) {
    let app = service.app();
    let named = "SELECT count(*) FROM links WHERE export IS NOT NULL";
    let named = app.db.read().await.unwrap().one(named, Vec::new()).await.unwrap().get(0).unwrap();
    let stored: Vec<_> = app.store.list(Prefix::all(Kind::Export)).try_collect().await.unwrap();
    (named, stored.len())
}

async fn link_part(service: &TestService, kind: &str) -> Vec<u8> {
    let link = link(service, "day-1", json!({ "archive": kind })).await.expect(201).json();
    open(service, &link, &[]).await.expect(200).bytes
}
