//! The demonstration's job: a process of its own that reads every staged file and writes what it found.
//!
//! It knows nothing of Dray: a directory in, a directory out, as any job.

use crate::cli::error::Error;
use crate::content::digest::{Digest, Hasher};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The list of digests, as `b3sum --check` reads it.
pub const SUMS: &str = "b3sums.txt";
/// How much there was.
pub const SUMMARY: &str = "summary.json";

#[derive(Debug, clap::Args)]
pub struct JobArgs {
    #[arg(long, value_name = "DIR")]
    input: PathBuf,
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
}

/// Hashes every regular file under `input` and follows no link.
///
/// A directory's own files come in order of their names, those of its directories after them, so the same files give the
/// same list. The first that cannot be read ends it: a job over inputs that are not whole has nothing to say.
pub fn run(args: JobArgs) -> Result<(), Error> {
    fs_err::create_dir_all(&args.output).map_err(Error::local(&args.output))?;
    let path = args.output.join(SUMS);
    let mut sums = BufWriter::new(File::create(&path).map_err(Error::local(&path))?);
    let (mut files, mut bytes) = (0_u64, 0_u64);
    let mut open = vec![args.input.clone()];
    while let Some(dir) = open.pop() {
        let mut names = fs_err::read_dir(&dir)
            .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>())
            .map_err(Error::local(&dir))?;
        names.sort();
        for path in names {
            let kind = fs_err::symlink_metadata(&path).map_err(Error::local(&path))?.file_type();
            if kind.is_dir() {
                open.push(path);
            } else if kind.is_file() {
                let (digest, size) = hash(&path).map_err(Error::local(&path))?;
                line(&mut sums, digest, path.strip_prefix(&args.input).unwrap_or(&path).as_os_str())?;
                files += 1;
                bytes += size;
            }
        }
    }
    sums.flush()?;
    let summary = serde_json::json!({ "files": files, "bytes": bytes });
    let path = args.output.join(SUMMARY);
    fs_err::write(&path, format!("{summary}\n")).map_err(Error::local(path))
}

/// Memory: one MiB, whatever the file's size.
fn hash(path: &Path) -> io::Result<(Digest, u64)> {
    let mut file = File::open(path)?;
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    let mut size = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((hasher.finalize(), size)),
            read => {
                hasher.update(&buffer[..read]);
                size += read as u64;
            }
        }
    }
}

/// A name with a line feed or a backslash is escaped, and the line says so by a backslash in front: as b3sum does it.
fn line(out: &mut impl Write, digest: Digest, name: &OsStr) -> io::Result<()> {
    let bytes = name.as_bytes();
    if !bytes.contains(&b'\n') && !bytes.contains(&b'\\') {
        write!(out, "{digest}  ")?;
        out.write_all(bytes)?;
        return out.write_all(b"\n");
    }
    write!(out, "\\{digest}  ")?;
    for byte in bytes {
        match byte {
            b'\n' => out.write_all(b"\\n")?,
            b'\\' => out.write_all(b"\\\\")?,
            byte => out.write_all(&[*byte])?,
        }
    }
    out.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_listed_and_no_link_followed() {
        let dir = tempfile::tempdir().unwrap();
        let input = dir.path().join("in");
        fs_err::create_dir_all(input.join("a")).unwrap();
        fs_err::write(input.join("a/x"), "hello").unwrap();
        fs_err::write(input.join("b\\n"), "").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", input.join("link")).unwrap();
        let output = dir.path().join("out");
        run(JobArgs { input, output: output.clone() }).unwrap();
        let sums = fs_err::read_to_string(output.join(SUMS)).unwrap();
        insta::assert_snapshot!(sums, @r"
        \af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262  b\\n
        ea8f163db38682925e4491c5e58d4bb3506ef8c14eb78a86e908c5624a67200f  a/x
        ");
        assert_eq!(fs_err::read_to_string(output.join(SUMMARY)).unwrap(), "{\"bytes\":5,\"files\":2}\n");
    }
}
