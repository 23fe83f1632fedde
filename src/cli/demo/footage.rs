//! Sample data for who has none at hand: a camera card and a model, made up, the same every time.
//!
//! What a video encoder writes cannot be told from noise, so noise stands for it; the rest has what real data has: text
//! beside it, a re-cut film, a copy, a hole, an empty directory, a link.

use crate::cli::error::Error;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use tokio_util::sync::CancellationToken;

/// Bytes of noise from a name: the same for the same name.
struct Noise(blake3::OutputReader);

impl Noise {
    fn new(name: &str) -> Self {
        Self(blake3::Hasher::new().update(name.as_bytes()).finalize_xof())
    }

    fn write(&mut self, to: &mut File, mut bytes: u64, cancel: &CancellationToken) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 20];
        while bytes > 0 && !cancel.is_cancelled() {
            let step = usize::try_from(bytes).map_or(buffer.len(), |bytes| bytes.min(buffer.len()));
            self.0.fill(&mut buffer[..step]);
            to.write_all(&buffer[..step])?;
            bytes -= step as u64;
        }
        Ok(())
    }
}

/// Makes about `size` bytes under `root`. The text says what it is.
pub async fn generate(cancel: &CancellationToken, root: &Path, size: u64) -> Result<(String, ()), Error> {
    let (to, cancel) = (root.to_owned(), cancel.clone());
    let made = tokio::task::spawn_blocking(move || make(&to, size, &cancel)).await;
    made.unwrap_or_else(|_| Err(io::Error::other("the generator ended"))).map_err(Error::local(root))?;
    Ok(("generated, since no PATH was given: made-up camera files, a re-cut, a model".to_owned(), ()))
}

/// A cancelled run leaves files cut short; the caller ends there.
fn make(root: &Path, size: u64, cancel: &CancellationToken) -> io::Result<()> {
    let card = root.join("DCIM/100DRAY");
    fs_err::create_dir_all(&card)?;
    fs_err::create_dir_all(root.join("DCIM/empty"))?;
    // Seven tenths film, one tenth a re-cut of the first, one a copy, one a model with a hole.
    let films = 7;
    let film = size / 10;
    for number in 1..=films {
        let name = format!("CAM_{number:04}");
        let mut file = File::create(card.join(format!("{name}.MP4")))?;
        file.write_all(b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom")?;
        Noise::new(&name).write(&mut file, film, cancel)?;
        fs_err::write(card.join(format!("{name}.SRT")), subtitles(number))?;
    }
    let mut recut = File::create(card.join("CAM_0001-cut.MP4"))?;
    recut.write_all(b"\0\0\0\x1cftypmp42\0\0\0\0mp42isomavc1")?;
    Noise::new("CAM_0001").write(&mut recut, film, cancel)?;
    fs_err::copy(card.join("CAM_0002.MP4"), root.join("best-take.mp4"))?;
    let mut model = File::create(root.join("picker.weights"))?;
    Noise::new("weights").write(&mut model, film / 2, cancel)?;
    model.seek(SeekFrom::Current(i64::try_from(film / 4).unwrap_or_default()))?;
    Noise::new("head").write(&mut model, film / 4, cancel)?;
    std::os::unix::fs::symlink("DCIM/100DRAY/CAM_0001.MP4", root.join("latest.mp4"))?;
    fs_err::write(root.join("notes.txt"), "Sample data of `dray demo`: not from any camera.\n")
}

/// A side file as drones write them: text that compresses well.
fn subtitles(number: u32) -> String {
    (0..1_500)
        .map(|frame| {
            let (minute, second) = (frame / 60, frame % 60);
            format!(
                "{frame}\n00:{minute:02}:{second:02},000 --> 00:{minute:02}:{second:02},999\n[iso: 100] [shutter: 1/50] \
                 [latitude: 48.{frame:04}] [longitude: 11.{number:04}] [rel_alt: 12.{second}00]\n\n"
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_every_time_and_about_the_size() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        for dir in &dirs {
            make(dir.path(), 10 << 20, &CancellationToken::new()).unwrap();
        }
        let read = |dir: &tempfile::TempDir, name: &str| fs_err::read(dir.path().join(name)).unwrap();
        for name in ["picker.weights", "DCIM/100DRAY/CAM_0003.MP4", "best-take.mp4"] {
            assert!(read(&dirs[0], name) == read(&dirs[1], name), "{name}");
        }
        assert_eq!(read(&dirs[0], "picker.weights").len(), 1 << 20);
    }
}
