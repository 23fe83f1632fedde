//! Packs on their way in: what is refused and leaves nothing, what is repeated, cut off, lost, or sent twice at once.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use dray::content::digest::digest;
use reqwest::Method;
use serde_json::{Value, json};

use crate::both_engines;
use crate::support::data::{Files, Pack, Upload, noise, pack};
use crate::support::fault_proxy::{Fault, FaultProxy, Rule};
use crate::support::service::{Answer, TestService};

const DATASET: &str = "warehouse/aisle-cams";

/// Files below a directory.
fn count(directory: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    entries.map(|entry| entry.unwrap()).map(|entry| if entry.path().is_dir() { count(&entry.path()) } else { 1 }).sum()
}

/// Pack objects in the store, and files still being written.
fn objects(service: &TestService) -> (usize, usize) {
    let store = service.data().join("store");
    (count(&store.join("packs")), count(&store.join("tmp")))
}

async fn rows(service: &TestService, state: &str) -> u64 {
    let mut session = service.app().db.read().await.unwrap();
    session.one("SELECT count(*) FROM packs WHERE state = $1", dray::params![state]).await.unwrap().get(0).unwrap()
}

fn sample(seed: u64, chunks: u64) -> Pack {
    let chunks: Vec<Vec<u8>> = (0..chunks).map(|i| noise(seed * 1000 + i, 40_000)).collect();
    pack(chunks.iter().map(Vec::as_slice))
}

/// The pack with one byte changed.
fn flipped(pack: &Pack, at: usize) -> Vec<u8> {
    let mut bytes = pack.bytes.clone();
    bytes[at] ^= 1;
    bytes
}

/// Header and index by hand, sealed with a right digest, so that only what is meant to be wrong is wrong.
fn handmade(count: u32, entries: &[u8], frames: &[u8]) -> (dray::content::digest::Digest, Vec<u8>) {
    let mut bytes = vec![0; 64];
    bytes[..7].copy_from_slice(b"DRAYPK\x01");
    bytes[10..14].copy_from_slice(&count.to_le_bytes());
    bytes[14..18].copy_from_slice(&u32::try_from(entries.len() + 32).unwrap().to_le_bytes());
    bytes.extend_from_slice(entries);
    let id = digest(&bytes);
    bytes.extend_from_slice(id.as_bytes());
    bytes.extend_from_slice(frames);
    (id, bytes)
}

fn entry(raw: &[u8], stored: usize, raw_length: u32) -> Vec<u8> {
    let mut entry = digest(raw).as_bytes().to_vec();
    entry.extend_from_slice(&u32::try_from(stored).unwrap().to_le_bytes());
    entry.extend_from_slice(&raw_length.to_le_bytes());
    entry.extend_from_slice(&dray::content::crc::Crc32::of(raw).0.to_le_bytes());
    entry.push(1); // zstd
    entry
}

async fn nothing_left(service: &TestService, upload: &Upload<'_>) {
    assert_eq!(objects(service), (0, 0), "nothing of it is in the store");
    assert_eq!(rows(service, "sealed").await, 0);
    let pinned = service.get(&format!("/v1/uploads/{}", upload.id)).await.expect(200).json();
    assert_eq!(pinned["offered_packs"], 0);
}

both_engines! {
    async fn a_pack_is_taken_once_and_known_after_that(service) {
        let upload = service.open(&service.admin, DATASET).await;
        let pack = sample(1, 30);
        let first = upload.put_pack(&pack).await.expect(201).json();
        assert_eq!((&first["id"], &first["bytes"]), (&json!(pack.id.to_string()), &json!(pack.bytes.len())));
        assert_eq!((&first["chunks"], &first["raw_bytes"]), (&json!(30), &json!(1_200_000)));
        assert_eq!(upload.put_pack(&pack).await.expect(200).json(), first);
        assert_eq!(objects(&service), (1, 0));
        let index = service.get(&format!("/v1/packs/{}/index", pack.id)).await.expect(200);
        assert_eq!(index.bytes, pack.index.encode());
    }

    async fn the_same_pack_sent_at_once_is_stored_once(service) {
        let upload = service.open(&service.admin, DATASET).await;
        let pack = sample(2, 60);
        let answers = tokio::join!(upload.put_pack(&pack), upload.put_pack(&pack), upload.put_pack(&pack));
        let mut statuses = [answers.0.status.as_u16(), answers.1.status.as_u16(), answers.2.status.as_u16()];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 200, 201]);
        assert_eq!((objects(&service), rows(&service, "sealed").await), ((1, 0), 1));
    }

    async fn a_chunk_that_is_not_its_id_is_refused_and_nothing_stays(service) {
        let upload = service.open(&service.admin, DATASET).await;
        let pack = sample(3, 40);
        let last = pack.bytes.len() - 1;
        for at in [usize::try_from(pack.index.frame(0).start).unwrap(), last / 2, last] {
            let problem = upload.put("packs", &pack.id, flipped(&pack, at)).await.problem(400, "chunk_mismatch");
            assert!(problem["data"]["chunk"].is_string());
        }
        for at in [0, 6, 8, 10, 20, 64, 100] {
            upload.put("packs", &pack.id, flipped(&pack, at)).await.problem(400, "bad_pack");
        }
        upload.put("packs", &digest(b"another"), pack.bytes.clone()).await.problem(400, "bad_pack");
        upload.put("packs", &pack.id, pack.bytes[..last].to_vec()).await.problem(400, "bad_pack");
        upload.put("packs", &pack.id, [&pack.bytes[..], b"x"].concat()).await.problem(400, "bad_pack");
        upload.put("packs", &pack.id, Vec::new()).await.problem(400, "length_required");
        nothing_left(&service, &upload).await;
        upload.put_pack(&pack).await.expect(201);
    }

    async fn frames_that_lie_about_what_they_hold_are_refused(service) {
        let upload = service.open(&service.admin, DATASET).await;
        let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 3).unwrap();
        let small = zstd::bulk::compress(&[7; 1024], 3).unwrap();
        let mut window = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        window.window_log(27).unwrap();
        std::io::Write::write_all(&mut window, &[7; 1024]).unwrap();
        let window = window.finish().unwrap();
        let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 0xff, 0xff, 0xff, 0x7f][..], &small].concat();
        let raw = [7; 1024];
        for (what, frame) in [
            ("declares 1 KiB, expands to 64 MiB", bomb),
            ("a window beyond 8 MiB", window),
            ("trailing garbage", [&small[..], b"garbage"].concat()),
            ("a second frame", [&small[..], &small[..]].concat()),
            ("a skippable frame", skippable),
        ] {
            let (id, bytes) = handmade(1, &entry(&raw, frame.len().min(1024), 1024), &frame[..frame.len().min(1024)]);
            let answer = upload.put("packs", &id, bytes).await;
            assert_eq!(answer.status, 400, "{what}: {answer}");
        }
        let right = pack([&raw[..]]);
        let (id, bytes) = handmade(1, &entry(&raw, small.len(), 1024), &small);
        assert_eq!(id, right.id, "what is made by hand is right but for what is meant to be wrong");
        upload.put("packs", &id, bytes).await.expect(201);
    }

    async fn headers_that_promise_too_much_allocate_nothing(service) {
        let upload = service.open(&service.admin, DATASET).await;
        for count in [0, 65_537, u32::MAX] {
            let (id, bytes) = handmade(count, &[0; 45], &[]);
            upload.put("packs", &id, bytes).await.problem(400, "bad_pack");
        }
        // lengths that wrap, and rows beyond what a chunk may be
        for (stored, raw) in [(u32::MAX, 1024), (0, 1024), (10, u32::MAX), (10, 0), (2000, 1024)] {
            let mut row = entry(b"x", 1, raw);
            row[32..36].copy_from_slice(&stored.to_le_bytes());
            let (id, bytes) = handmade(1, &row, b"0123456789");
            upload.put("packs", &id, bytes).await.problem(400, "bad_pack");
        }
        nothing_left(&service, &upload).await;
    }

    async fn what_is_announced_too_long_is_refused_before_it_is_read(service) {
        let upload = service.open(&service.admin, DATASET).await;
        let id = digest(b"any");
        for (what, length) in [("packs", 64 * 1024 * 1024 + 1_u64), ("packs", (4 << 30) + 1), ("tree", (4 << 30) + 1), ("layout", 1 << 50)] {
            let answer = announce(&service, &upload, &format!("{what}/{id}"), length).await;
            assert!(answer.contains(" 413 ") && answer.contains("body_too_large"), "{what}: {answer}");
        }
        let path = format!("/v1/uploads/{}/packs/{id}", upload.id);
        let pieces = futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"x"))]);
        let chunked = service.request(Method::PUT, &path, &upload.token).header("dray-upload-epoch", upload.epoch);
        Answer::of(chunked.body(reqwest::Body::wrap_stream(pieces)).send().await.unwrap()).await.problem(400, "length_required");
        let bare = service.request(Method::PUT, &path, &upload.token).body("x");
        Answer::of(bare.send().await.unwrap()).await.problem(422, "invalid");
        nothing_left(&service, &upload).await;
    }

    async fn a_body_that_is_cut_off_leaves_nothing_and_can_be_sent_again(service) {
        let upload = service.open(&service.admin, DATASET).await;
        let pack = sample(4, 60);
        let kept = sample(5, 3);
        upload.put_pack(&kept).await.expect(201);
        let mut connection = begin(&service, &upload, &pack, pack.bytes.len() * 3 / 10).await;
        tokio::io::AsyncWriteExt::shutdown(&mut connection).await.unwrap();
        drop(connection);
        // the same name can be sent straight away
        upload.put_pack(&pack).await.expect(201);
        settle(&service, (2, 0)).await;
        upload.put_pack(&kept).await.expect(200);
    }

    async fn a_pack_that_arrives_after_its_upload_was_taken_over_is_not_sealed(service) {
        let upload = service.open(&service.admin, DATASET).await;
        let pack = sample(20, 60);
        let half = pack.bytes.len() / 2;
        let mut connection = begin(&service, &upload, &pack, half).await;
        // it is being stored by now: a temporary file is there
        settle(&service, (0, 1)).await;
        upload.post("reopen", &Value::Null).await.expect(200);
        tokio::io::AsyncWriteExt::write_all(&mut connection, &pack.bytes[half..]).await.unwrap();
        let mut answer = vec![0; 4096];
        let length = tokio::io::AsyncReadExt::read(&mut connection, &mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
        assert!(answer.starts_with("HTTP/1.1 409 ") && answer.contains("fenced"), "{answer}");
        settle(&service, (0, 0)).await;
        assert_eq!(rows(&service, "sealed").await, 0);
    }

    async fn a_body_that_trickles_is_cut_and_what_was_sealed_stays(builder: Builder) {
        let service = builder.settings(|settings| settings.limits.body_idle = "1s".parse().unwrap()).start().await;
        let upload = service.open(&service.admin, DATASET).await;
        let (kept, slow) = (sample(6, 3), sample(7, 3));
        upload.put_pack(&kept).await.expect(201);
        let mut connection = begin(&service, &upload, &slow, 70).await;
        let mut answer = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut connection, &mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
        settle(&service, (1, 0)).await;
        upload.put_pack(&kept).await.expect(200);
        upload.put_pack(&slow).await.expect(201);
    }

    async fn a_lost_answer_leaves_one_live_pack(service) {
        let proxy = FaultProxy::start(service.url.trim_start_matches("http://")).await;
        let upload = service.open(&service.admin, DATASET).await;
        let pack = sample(8, 20);
        proxy.on(Rule::new("PUT", "/packs/").times(1).does(Fault::DropReply));
        let client = reqwest::Client::builder().timeout(Duration::from_secs(60)).build().unwrap();
        let send = || {
            let url = format!("{}/v1/uploads/{}/packs/{}", proxy.url(), upload.id, pack.id);
            let request = client.put(url).bearer_auth(&upload.token).header("dray-upload-epoch", upload.epoch);
            request.body(pack.bytes.clone()).send()
        };
        assert!(send().await.is_err(), "the answer is lost");
        assert_eq!(send().await.unwrap().status(), 200, "it had its effect");
        assert_eq!((objects(&service), rows(&service, "sealed").await), ((1, 0), 1));
    }

    async fn keys_are_written_down_before_their_objects(service) {
        let upload = service.open(&service.admin, DATASET).await;
        upload.put_pack(&sample(9, 2)).await.expect(201);
        upload.put("packs", &sample(10, 2).id, vec![0; 500]).await.problem(400, "bad_pack");
        // one block of 16 was reserved: one is sealed, the others wait or were given up, and all are known
        assert_eq!((rows(&service, "sealed").await, rows(&service, "writing").await), (1, 15));
    }

    async fn a_store_that_is_gone_is_said_and_acknowledges_nothing(service) {
        let upload = service.open(&service.admin, DATASET).await;
        let pack = sample(11, 3);
        let tmp = service.data().join("store/tmp");
        std::fs::remove_dir_all(&tmp).unwrap();
        let answer = upload.put_pack(&pack).await;
        assert!(answer.status.is_server_error(), "{answer}");
        assert_eq!(rows(&service, "sealed").await, 0);
        std::fs::create_dir(&tmp).unwrap();
        upload.put_pack(&pack).await.expect(201);
    }

    async fn another_teams_packs_do_not_exist(service) {
        let blue = service.team("blue").await;
        let push = Files::default().with("secret.bin", noise(12, 100_000)).push(9);
        let version = service.push(&service.admin, DATASET, &push).await;
        let theirs = service.open(&service.admin, DATASET).await;
        let ours = service.open(&blue, DATASET).await;
        assert_eq!(ours.document["offered_packs"], 0);
        assert_eq!(ours.document["parent"], Value::Null);
        let (id, layout) = (version["id"].as_str().unwrap(), version["layout"]["id"].as_str().unwrap());
        let pack = push.packs[0].id;
        let absent = uuid::Uuid::nil();
        let get = async |path: String| service.call(Method::GET, &path, &blue, &Value::Null).await.problem(404, "not_found");
        for (real, made_up) in [
            (format!("/v1/uploads/{}", theirs.id), format!("/v1/uploads/{absent}")),
            (format!("/v1/versions/{id}"), format!("/v1/versions/{absent}")),
            (format!("/v1/versions/{id}/tree"), format!("/v1/versions/{absent}/tree")),
            (format!("/v1/versions/{id}/layout"), format!("/v1/versions/{absent}/layout")),
            (format!("/v1/packs/{pack}/index"), format!("/v1/packs/{}/index", digest(b"none"))),
            (format!("/v1/resolve?ref={DATASET}"), "/v1/resolve?ref=warehouse/none".to_owned()),
            (format!("/v1/versions?dataset={DATASET}"), "/v1/versions?dataset=warehouse/none".to_owned()),
        ] {
            let (one, two) = (get(real.clone()).await, get(made_up).await);
            assert_eq!((&one["title"], &one["hint"]), (&two["title"], &two["hint"]), "{real}");
        }
        let grant = json!({ "version": id, "layout": layout, "packs": [pack.to_string()] });
        service.call(Method::POST, "/v1/grants", &blue, &grant).await.problem(404, "not_found");
        service.call(Method::DELETE, &format!("/v1/versions/{id}"), &blue, &Value::Null).await.problem(404, "not_found");
        service.call(Method::DELETE, &format!("/v1/datasets?name={DATASET}"), &blue, &Value::Null).await.problem(404, "not_found");
        service.call(Method::DELETE, &format!("/v1/uploads/{}", theirs.id), &blue, &Value::Null).await.problem(404, "not_found");
        let stolen = Upload { token: blue.clone(), ..theirs.clone() };
        stolen.put_pack(&push.packs[0]).await.problem(404, "not_found");
        stolen.known(&[]).await.problem(404, "not_found");
        // our own copy of the very same bytes is a pack of our own
        ours.put_pack(&push.packs[0]).await.expect(201);
        assert_eq!(rows(&service, "sealed").await, 2);
    }
}

/// Waits until the store holds so many objects and temporary files: what was cut off is cleaned up soon, not at once.
async fn settle(service: &TestService, expected: (usize, usize)) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while objects(service) != expected {
        assert!(tokio::time::Instant::now() < deadline, "{:?} is not {expected:?}", objects(service));
        tokio::task::yield_now().await;
    }
}

/// Sends a request's head and the first bytes of the pack; leaves the connection open.
async fn begin(service: &TestService, upload: &Upload<'_>, pack: &Pack, bytes: usize) -> tokio::net::TcpStream {
    let mut connection = tokio::net::TcpStream::connect(service.url.trim_start_matches("http://")).await.unwrap();
    let head = format!(
        "PUT /v1/uploads/{}/packs/{} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ndray-upload-epoch: {}\r\ncontent-length: {}\r\n\r\n",
        upload.id,
        pack.id,
        upload.token,
        upload.epoch,
        pack.bytes.len()
    );
    tokio::io::AsyncWriteExt::write_all(&mut connection, &[head.as_bytes(), &pack.bytes[..bytes]].concat())
        .await
        .unwrap();
    connection
}

/// Announces a body and sends none of it; answers what comes back.
async fn announce(service: &TestService, upload: &Upload<'_>, what: &str, length: u64) -> String {
    let mut connection = tokio::net::TcpStream::connect(service.url.trim_start_matches("http://")).await.unwrap();
    let head = format!(
        "PUT /v1/uploads/{}/{what} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {}\r\ndray-upload-epoch: {}\r\ncontent-length: {length}\r\n\r\n",
        upload.id, upload.token, upload.epoch
    );
    tokio::io::AsyncWriteExt::write_all(&mut connection, head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut connection, &mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}
