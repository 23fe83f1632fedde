//! Zip and tar read back by readers that are not ours: Python's zipfile and tarfile, unzip, tar.
//!
//! Large archives are sparse files: only their headers take space.

use dray::content::archive::{Archive, Format, Part, Source};
use dray::content::crc::Crc32;
use dray::content::digest::digest;
use dray::content::layout::{FileLayout, Line, Segment};
use dray::content::merge::{Error, Pair};
use dray::content::path::RelPath;
use dray::content::tree::{Entry, Kind, Time};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;

const TIME: Time = Time { seconds: 1_772_323_201, nanos: 123_456_789 };

fn pair(path: &[u8], kind: Kind, line: Option<Line>) -> Pair {
    (Entry { path: RelPath::parse(path).unwrap(), kind }, line)
}

fn dir(path: &[u8], mode: u32) -> Pair {
    pair(path, Kind::Dir { mode }, Some(Line::Dir { mtime: TIME }))
}

/// A file whose whole content its layout's one segment stands for: chunk `text.len()` of pack 0 in these tests' world.
fn file(path: &[u8], mode: u32, text: &[u8]) -> Pair {
    let digest = digest(text);
    let line = (!text.is_empty()).then(|| {
        let segments = vec![Segment { pack: Some(0), first: text[0].into(), count: 1, raw: text.len() as u64 }];
        let (size, crc) = (text.len() as u64, Crc32::of(text));
        Line::File(FileLayout { digest, size, crc, profile: 1, segments, sha256: None })
    });
    pair(path, Kind::File { size: text.len() as u64, mode, mtime: TIME, digest, hardlink: None }, line)
}

fn zeros(path: &[u8], blocks: u64) -> Pair {
    let (size, digest) = (blocks * 65_536, digest(path));
    let segments = vec![Segment { pack: None, first: 0, count: 0, raw: size }];
    let line = Line::File(FileLayout { digest, size, crc: Crc32::zeros(size), profile: 1, segments, sha256: None });
    pair(path, Kind::File { size, mode: 0o644, mtime: TIME, digest, hardlink: None }, Some(line))
}

fn hard(path: &[u8], first: &Pair) -> Pair {
    let mut kind = first.0.kind.clone();
    if let Kind::File { hardlink, .. } = &mut kind {
        *hardlink = Some(first.0.path.clone());
    }
    pair(path, kind, None)
}

fn link(path: &[u8], target: &[u8]) -> Pair {
    pair(path, Kind::Symlink { mtime: TIME, target: target.to_vec() }, None)
}

/// Writes the archive; a run of one letter is what a chunk of that number holds, a hole stays one.
fn save(format: Format, source: impl Source, to: &Path) {
    let archive = Archive::measure(format, source).unwrap();
    let mut out = File::create(to).unwrap();
    out.set_len(archive.length()).unwrap();
    for part in archive.parts(0..archive.length()).unwrap() {
        match part.unwrap() {
            Part::Bytes(bytes) => out.write_all(&bytes).unwrap(),
            Part::File { layout, range } => match layout.segments[0].pack {
                None => {
                    out.seek(SeekFrom::Current((range.end - range.start) as i64)).unwrap();
                }
                Some(_) => {
                    out.write_all(&vec![layout.segments[0].first as u8; (range.end - range.start) as usize]).unwrap()
                }
            },
        }
    }
    assert_eq!(out.stream_position().unwrap(), archive.length());
}

fn source(pairs: Vec<Pair>) -> impl Source {
    move || Ok(pairs.clone().into_iter().map(Ok::<Pair, Error>))
}

/// Runs a program; it must end well and say nothing on stderr. Answers its stdout.
fn ask(program: &str, arguments: &[&str], directory: &Path) -> String {
    let output = Command::new(program).args(arguments).current_dir(directory).output();
    let output = output.unwrap_or_else(|error| panic!("`{program}` is needed, `tests/run` installs it: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && err.is_empty(), "{program} {arguments:?}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}

fn mixed() -> Vec<Pair> {
    let long = [b"long/".as_slice(), &[b'n'; 200]].concat();
    let run = file(b"bin/run.sh", 0o755, b"rrrrrrrrrr");
    let mut old = file(b"old", 0o600, b"oo");
    if let Kind::File { mtime, .. } = &mut old.0.kind {
        *mtime = Time { seconds: 86_400, nanos: 500_000_000 };
    }
    vec![
        dir(b"bin", 0o755),
        run.clone(),
        hard(b"bin/same", &run),
        link(b"bin/to", b"../caf\xc3\xa9"),
        file(b"caf\xc3\xa9", 0o644, &[b'c'; 513]),
        file(b"cafe\xcc\x81", 0o644, &[b'e'; 512]),
        dir(b"empty", 0o700),
        dir(b"long", 0o755),
        file(&long, 0o644, b"l"),
        file(b"nothing", 0o444, b""),
        old,
        link(b"to nowhere", &[b't'; 150]),
        file(b"trail ", 0o644, b"t"),
        file(b"trail.", 0o644, b"d"),
        file(b"weird\\na\nme", 0o644, b"w"),
        file(b"\xffraw", 0o644, b"x"),
    ]
}

const COMPARE: &str = r#"
import os, stat, sys
root, kind = os.fsencode(sys.argv[1]), sys.argv[2]
def is_file(name, mode, content, seconds=1772323201):
    at = os.path.join(root, name); s = os.lstat(at)
    assert stat.S_ISREG(s.st_mode), name
    assert stat.S_IMODE(s.st_mode) == mode, (name, oct(s.st_mode))
    assert open(at, 'rb').read() == content, name
    assert int(s.st_mtime_ns // 10**9) == seconds, (name, s.st_mtime_ns)
    if kind == 'tar': assert s.st_mtime_ns % 10**9 == (500000000 if seconds == 86400 else 123456789), (name, s.st_mtime_ns)
is_file(b'bin/run.sh', 0o755, b'r'*10)
is_file(b'bin/same', 0o755, b'r'*10)
assert os.readlink(os.path.join(root, b'bin/to')) == b'../caf\xc3\xa9'
is_file(b'caf\xc3\xa9', 0o644, b'c'*513)
is_file(b'cafe\xcc\x81', 0o644, b'e'*512)
assert stat.S_IMODE(os.stat(os.path.join(root, b'empty')).st_mode) == 0o700
is_file(b'long/' + b'n'*200, 0o644, b'l')
is_file(b'nothing', 0o444, b'')
is_file(b'old', 0o600, b'oo', 86400)
assert os.readlink(os.path.join(root, b'to nowhere')) == b't'*150
is_file(b'trail ', 0o644, b't')
is_file(b'trail.', 0o644, b'd')
if kind == 'tar':
    is_file(b'weird\\na\nme', 0o644, b'w'); is_file(b'\xffraw', 0o644, b'x')
    assert os.lstat(os.path.join(root, b'bin/same')).st_ino == os.lstat(os.path.join(root, b'bin/run.sh')).st_ino
else:
    is_file(b'weird%5Cna%0Ame', 0o644, b'w'); is_file(b'%FFraw', 0o644, b'x')
assert sum(len(files) for _, _, files in os.walk(root)) == 13, list(os.walk(root))
"#;

#[test]
fn unzip_restores_a_zip() {
    let at = tempfile::tempdir().unwrap();
    save(Format::Zip, source(mixed()), &at.path().join("a.zip"));
    ask("unzip", &["-q", "-d", "out", "a.zip"], at.path());
    ask("python3", &["-c", COMPARE, "out", "zip"], at.path());
}

#[test]
fn tar_restores_a_tar() {
    let at = tempfile::tempdir().unwrap();
    save(Format::Tar, source(mixed()), &at.path().join("a.tar"));
    std::fs::create_dir(at.path().join("out")).unwrap();
    ask("tar", &["-x", "-p", "-f", "a.tar", "-C", "out"], at.path());
    ask("python3", &["-c", COMPARE, "out", "tar"], at.path());
}

#[test]
fn python_reads_both() {
    let at = tempfile::tempdir().unwrap();
    save(Format::Zip, source(mixed()), &at.path().join("a.zip"));
    save(Format::Tar, source(mixed()), &at.path().join("a.tar"));
    let script = r#"
import zipfile, tarfile, base64, os
z = zipfile.ZipFile('a.zip')
assert z.testzip() is None
names = z.namelist()
assert len(names) == 16 and 'bin/' in names and 'empty/' in names, names
assert z.read('bin/same') == b'r'*10
assert z.getinfo('bin/to').external_attr >> 16 == 0o120777
assert z.getinfo('caf\u00e9').flag_bits == 0x800 and z.getinfo('old').flag_bits == 0
assert z.getinfo('old').date_time == (1980, 1, 1, 0, 0, 0)
assert z.getinfo('nothing').date_time == (2026, 3, 1, 0, 0, 0), z.getinfo('nothing').date_time
raw = z.getinfo('%FFraw').comment
assert base64.b64decode(raw.removeprefix(b'path, base64: ')) == b'\xffraw', raw
assert all(not info.comment for info in z.infolist() if '%' not in info.filename)
t = tarfile.open('a.tar')
members = {os.fsencode(m.name): m for m in t.getmembers()}
assert len(members) == 16
assert members[b'bin/same'].islnk() and members[b'bin/same'].linkname == 'bin/run.sh'
assert members[b'old'].mtime == 86400.5, members[b'old'].mtime
assert members[b'\xffraw'].size == 1 and members[b'weird\\na\nme'].size == 1
assert t.extractfile('caf\u00e9').read() == b'c'*513
"#;
    ask("python3", &["-c", script], at.path());
}

/// GNU tar grumbles about such times and unzip holds them to 1980; Python tells what stands there.
#[test]
fn times_before_1970_and_after_2038() {
    let at = tempfile::tempdir().unwrap();
    let times = [Time { seconds: -86_400, nanos: 500_000_000 }, Time { seconds: 4_102_444_800, nanos: 0 }, Time::MAX];
    let pairs: Vec<Pair> = (0..)
        .zip(times)
        .map(|(number, time)| {
            let mut pair = file(format!("{number}").as_bytes(), 0o644, b"t");
            if let Kind::File { mtime, .. } = &mut pair.0.kind {
                *mtime = time;
            }
            pair
        })
        .collect();
    save(Format::Zip, source(pairs.clone()), &at.path().join("a.zip"));
    save(Format::Tar, source(pairs), &at.path().join("a.tar"));
    let script = r#"
import zipfile, tarfile
times = [m.mtime for m in tarfile.open('a.tar').getmembers()]
assert times == [-86399.5, 4102444800, 253402207199.999999999], times
z = zipfile.ZipFile('a.zip')
assert z.testzip() is None
assert [i.date_time[0] for i in z.infolist()] == [1980, 2100, 2107]
assert [len(i.extra) for i in z.infolist()] == [9, 0, 0]
"#;
    ask("python3", &["-c", script], at.path());
}

#[test]
fn more_entries_than_sixteen_bits() {
    let at = tempfile::tempdir().unwrap();
    let many = || Ok((0..70_000).map(|number| Ok::<Pair, Error>(file(format!("{number:05}").as_bytes(), 0o644, b""))));
    save(Format::Zip, many, &at.path().join("a.zip"));
    save(Format::Tar, many, &at.path().join("a.tar"));
    ask("unzip", &["-tqq", "a.zip"], at.path());
    let script =
        "import zipfile; z = zipfile.ZipFile('a.zip'); assert len(z.namelist()) == 70000 and z.testzip() is None";
    ask("python3", &["-c", script], at.path());
    assert_eq!(ask("tar", &["-tf", "a.tar"], at.path()).lines().count(), 70_000);
}

#[test]
fn one_entry_below_sixteen_bits_needs_no_zip64() {
    let at = tempfile::tempdir().unwrap();
    for (count, zip64) in [(65_534, "False"), (65_535, "True")] {
        let many =
            || Ok((0..count).map(|number| Ok::<Pair, Error>(file(format!("{number:05}").as_bytes(), 0o644, b""))));
        save(Format::Zip, many, &at.path().join("a.zip"));
        let script = format!(
            "import zipfile; assert len(zipfile.ZipFile('a.zip').namelist()) == {count}; \
             assert (b'PK\\x06\\x06' in open('a.zip', 'rb').read()) == {zip64}"
        );
        ask("python3", &["-c", &script], at.path());
    }
}

#[test]
fn sizes_and_offsets_beyond_four_gib() {
    let at = tempfile::tempdir().unwrap();
    let limit = 65_536;
    let pairs = vec![
        file(b"a first", 0o644, b"aaa"),
        zeros(b"b just below", limit - 1),
        zeros(b"c just at", limit),
        file(b"d far out", 0o755, b"ddd"),
    ];
    save(Format::Zip, source(pairs.clone()), &at.path().join("a.zip"));
    save(Format::Tar, source(pairs), &at.path().join("a.tar"));
    let script = r#"
import zipfile, tarfile
z = zipfile.ZipFile('a.zip')
assert [i.file_size for i in z.infolist()] == [3, (1 << 32) - 65536, 1 << 32, 3]
assert z.infolist()[3].header_offset > (1 << 33) - 65536
assert z.testzip() is None
assert z.read('d far out') == b'ddd'
t = tarfile.open('a.tar')
assert [m.size for m in t.getmembers()] == [3, (1 << 32) - 65536, 1 << 32, 3]
"#;
    ask("python3", &["-c", script], at.path());
    assert_eq!(ask("unzip", &["-p", "a.zip", "d far out"], at.path()), "ddd");
}

#[test]
fn a_tar_member_beyond_eight_gib() {
    let at = tempfile::tempdir().unwrap();
    save(Format::Tar, source(vec![zeros(b"a", 9 << 14), file(b"b", 0o644, b"bbb")]), &at.path().join("a.tar"));
    let listed = ask("tar", &["-tvf", "a.tar"], at.path());
    assert!(listed.contains(" 9663676416 ") && listed.lines().count() == 2, "{listed}");
    let script = "import tarfile; t = tarfile.open('a.tar'); assert t.getmember('a').size == 9 << 30; assert t.extractfile('b').read() == b'bbb'";
    ask("python3", &["-c", script], at.path());
}
