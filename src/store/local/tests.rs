//! What a local store does when its disk fails, and what it leaves behind.

use futures::TryStreamExt;
use rustix::io::Errno;
use uuid::Uuid;

use super::*;

fn now() -> Timestamp {
    "2026-11-30T12:00:00Z".parse().unwrap()
}

async fn open(dir: &tempfile::TempDir) -> Arc<Local> {
    Arc::new(Local::open(dir.path().join("store"), now()).await.unwrap())
}

fn pack(n: u128) -> Key {
    Key::pack(Uuid::from_u128(1), Uuid::from_u128(n))
}

fn files(local: &Local) -> usize {
    fn count(folder: &Path) -> usize {
        std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| if path.is_dir() { count(&path) } else { 1 })
            .sum()
    }
    count(&local.root)
}

async fn write(local: &Arc<Local>, key: &Key, pieces: &[Bytes]) -> Result<Stored> {
    let length = pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
    let mut writer = local.writer(key, length.into()).await?;
    for piece in pieces {
        writer.write(piece.clone()).await?;
    }
    writer.finish().await
}

#[tokio::test]
async fn a_failure_at_any_step_is_no_ack_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let local = open(&dir).await;
    let pieces = vec![Bytes::from(vec![7; 700_000]); 5];
    for step in [Step::Create, Step::Write, Step::Sync, Step::Publish, Step::SyncFolder] {
        for errno in [Errno::NOSPC, Errno::IO, Errno::DQUOT] {
            *local.faults.lock().unwrap() = Some((step, errno));
            for error in [
                write(&local, &pack(1), &pieces).await.unwrap_err(),
                local.put_small(&pack(1), pieces[0].clone(), PutMode::Create).await.unwrap_err(),
            ] {
                match errno {
                    Errno::IO => assert!(matches!(error, Error::Disk { .. }), "{step:?}: {error:?}"),
                    _ => assert!(matches!(error, Error::NoSpace), "{step:?}: {error:?}"),
                }
                assert!(!error.is_retryable());
            }
            assert!(matches!(local.head(&pack(1)).await, Err(Error::NotFound { .. })), "{step:?}");
            assert_eq!(files(&local), 0, "{step:?} left a file");
        }
    }
    *local.faults.lock().unwrap() = None;
    assert_eq!(write(&local, &pack(1), &pieces).await.unwrap().bytes, 3_500_000);
}

#[tokio::test]
async fn a_writer_that_failed_stays_failed() {
    let dir = tempfile::tempdir().unwrap();
    let local = open(&dir).await;
    let mut writer = local.writer(&pack(1), Length::Unknown).await.unwrap();
    *local.faults.lock().unwrap() = Some((Step::Write, Errno::IO));
    let big = Bytes::from(vec![1; 3 << 20]);
    assert!(matches!(writer.write(big.clone()).await, Err(Error::Disk { .. })));
    *local.faults.lock().unwrap() = None;
    assert!(writer.write(big).await.is_err());
    assert!(writer.write(Bytes::from_static(b"x")).await.is_err(), "also one that would only be kept");
    assert!(writer.finish().await.is_err());
    assert_eq!(files(&local), 0);
}

/// A folder that somebody else has just made may not be synced yet: the object in it would be lost with it.
#[tokio::test]
async fn an_objects_folders_are_durable_whoever_made_them() {
    let dir = tempfile::tempdir().unwrap();
    let local = open(&dir).await;
    let team = local.root.join(format!("packs/{}", Uuid::from_u128(1)));
    fs::create_dir_all(&team).unwrap();
    let synced = || std::mem::take(&mut *lock(&local.synced));
    local.put_small(&pack(1), Bytes::from_static(b"x"), PutMode::Create).await.unwrap();
    assert_eq!(synced(), [team.clone(), local.root.join("packs"), local.root.clone()]);
    local.put_small(&pack(2), Bytes::from_static(b"x"), PutMode::Create).await.unwrap();
    assert_eq!(synced(), std::slice::from_ref(&team), "those above it are durable");
    fs::remove_dir_all(&team).unwrap();
    write(&local, &pack(3), &[Bytes::from_static(b"x")]).await.unwrap();
    assert_eq!(synced().len(), 3, "it is another folder now");
}

#[test]
fn where_names_are_linked_the_object_is_there_once_linked() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::write(&from, "x").unwrap();
    link(&from, &to).unwrap();
    assert!(to.exists() && !from.exists());
    fs::write(&from, "y").unwrap();
    assert_eq!(link(&from, &to).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&to).unwrap(), b"x");
}

#[tokio::test]
async fn nothing_is_visible_before_finish_nor_after_drop_or_abort() {
    let dir = tempfile::tempdir().unwrap();
    let local = open(&dir).await;
    let mut dropped = local.writer(&pack(1), Length::Unknown).await.unwrap();
    let mut aborted = local.writer(&pack(2), Length::Unknown).await.unwrap();
    for writer in [&mut dropped, &mut aborted] {
        writer.write(Bytes::from(vec![1; 5 << 20])).await.unwrap();
    }
    assert!(matches!(local.head(&pack(1)).await, Err(Error::NotFound { .. })));
    assert_eq!(local.list(Prefix::all(Kind::Pack)).try_collect::<Vec<_>>().await.unwrap(), vec![]);
    assert_eq!(files(&local), 2);
    drop(dropped);
    aborted.abort().await.unwrap();
    assert_eq!(files(&local), 0);
}

#[tokio::test]
async fn old_leftovers_are_removed_at_open_and_young_ones_kept() {
    let dir = tempfile::tempdir().unwrap();
    let local = open(&dir).await;
    let left = |name: &str, age: SignedDuration| {
        let path = local.temp().join(name);
        let file = std::fs::File::create(&path).unwrap();
        let at = now().checked_sub(age).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(at.as_second() as u64)).unwrap();
        path
    };
    let (old, young) = (left("7-1", SignedDuration::from_hours(25)), left("7-2", SignedDuration::from_hours(23)));
    let first = left(&format!("{}-0", std::process::id()), SignedDuration::from_hours(1));
    let again = open(&dir).await;
    assert_eq!((old.exists(), young.exists()), (false, true));
    // a leftover of an earlier process of the same number is stepped over
    write(&again, &pack(1), &[Bytes::from_static(b"x")]).await.unwrap();
    assert!(first.exists());
}

#[tokio::test]
async fn a_file_that_shrank_is_damage_not_a_short_answer() {
    let dir = tempfile::tempdir().unwrap();
    let local = open(&dir).await;
    write(&local, &pack(1), &[Bytes::from(vec![1; 4 << 20])]).await.unwrap();
    let (_, stream) = local.get(&pack(1), None).await.unwrap();
    std::fs::File::options().write(true).open(local.path(&pack(1))).unwrap().set_len(2 << 20).unwrap();
    assert!(matches!(stream.try_collect::<Vec<_>>().await, Err(Error::Corrupt { .. })));
}

#[tokio::test]
async fn a_listing_ends_with_its_reader() {
    let dir = tempfile::tempdir().unwrap();
    let local = open(&dir).await;
    let folder = local.root.join(format!("packs/{}", Uuid::from_u128(1)));
    fs::create_dir_all(&folder).unwrap();
    for n in 0..2_000 {
        fs::write(folder.join(Uuid::from_u128(n).to_string()), "x").unwrap();
    }
    fs::write(folder.join("README"), "not ours").unwrap();
    let mut listing = local.list(Prefix::all(Kind::Pack));
    assert!(listing.try_next().await.unwrap().is_some());
    drop(listing);
    let all: Vec<_> = local.list(Prefix::team(Kind::Pack, Uuid::from_u128(1))).try_collect().await.unwrap();
    assert_eq!(all.len(), 2_000);
}

#[tokio::test]
async fn only_the_service_reads_the_bytes_of_teams() {
    let dir = tempfile::tempdir().unwrap();
    let local = open(&dir).await;
    write(&local, &pack(1), &[Bytes::from_static(b"x")]).await.unwrap();
    let path = local.path(&pack(1));
    for (place, mode) in path.ancestors().zip([0o600, 0o700, 0o700, 0o700]) {
        assert_eq!(fs::metadata(place).unwrap().mode() & 0o777, mode, "{}", place.display());
    }
}
