//! Holds the house to its plan: floors, no cycles between siblings, small files, a head in each.
//!
//! Reads `src/**` as text. Test modules are left out: they may look anywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Who may use whom; `lib.rs` draws it. What is not listed is forbidden.
const FLOORS: &[(&str, &[&str])] = &[
    ("content", &[]),
    ("domain", &["content"]),
    ("api", &[]),
    ("clock", &[]),
    ("direct", &["content"]),
    ("config", &["content", "domain", "api"]),
    ("store", &["content", "domain", "api", "clock", "config", "direct"]),
    ("db", &["content", "domain", "api", "clock", "config"]),
    ("webhook", &["content", "domain", "api", "clock", "config"]),
    ("app", &["content", "domain", "api", "clock", "config", "store", "db", "webhook"]),
    ("server", &["content", "domain", "api", "clock", "config", "app"]),
    ("client", &["content", "domain", "api", "clock", "config", "direct"]),
    ("agent", &["content", "domain", "api", "clock", "config", "client"]),
    ("cli", &["content", "domain", "api", "clock", "config", "client", "agent"]),
];

/// Words that a pure room has no use for.
const IMPURE: &[&str] = &[
    "std::fs",
    "fs_err",
    "std::net",
    "std::env",
    "std::process",
    "std::thread",
    "SystemTime",
    "Instant::",
    "Timestamp::now",
    "tokio",
    "tracing::",
    "async fn",
    "async move",
    "reqwest",
    "sqlx",
    "object_store",
    "println!",
    "uuid::Uuid::new",
    "rand::",
];

const LONGEST: usize = 500;

/// Circles that are still to be cut. Nothing may be added.
const KNOWN_CIRCLES: &[&str] = &[];

/// One file of `src`.
#[derive(Debug)]
struct Source {
    path: PathBuf,
    /// `["app", "keys"]` for `src/app/keys.rs`.
    module: Vec<String>,
    text: String,
    /// Without comments and test modules.
    code: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(source(&root, path));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 50, "only {} files: is this `src`?", found.len());
    found
}

fn source(root: &Path, path: PathBuf) -> Source {
    let relative = path.strip_prefix(root).unwrap().with_extension("");
    let mut module: Vec<_> = relative.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main" | "ground" | "service" | "outside")) {
        module.pop();
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let code = code_of(&text);
    Source { path: path.strip_prefix(root).unwrap().to_owned(), module, text, code }
}

fn code_of(text: &str) -> String {
    // by our custom the inline test module is the last thing in a file
    let cut = text.find("\n#[cfg(test)]\nmod ").unwrap_or(text.len());
    let lines = text[..cut].lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// Files that only tests see: `tests.rs`, `tests/...`, and modules declared under `#[cfg(test)]`.
fn is_test(source: &Source, all: &[Source]) -> bool {
    if source.module.iter().any(|part| part == "tests") {
        return true;
    }
    let Some((name, parent)) = source.module.split_last() else { return false };
    let parent = all.iter().find(|other| other.module == parent);
    let declared = [
        format!("#[cfg(test)]\nmod {name};"),
        format!("#[cfg(test)]\npub mod {name};"),
        format!("#[cfg(test)]\npub(crate) mod {name};"),
    ];
    parent.is_some_and(|parent| declared.iter().any(|line| parent.text.contains(line)))
}

/// Every path that the code names, `use` trees spread out: `["crate", "db", "Tx"]`.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let line = code[..at].rsplit('\n').next().unwrap_or_default().trim();
        let begins = line.is_empty() || (line.starts_with("pub") && !line.contains(' '));
        if begins && let Some(end) = code[at..].find(';') {
            spread(&[], &code[at + 4..at + end], &mut found);
        }
    }
    for root in ["crate::", "super::"] {
        let mut rest = code;
        while let Some(at) = rest.find(root) {
            let tail = &rest[at..];
            let end = tail.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(tail.len());
            found.push(tail[..end].split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect());
            rest = &tail[end.max(1)..];
        }
    }
    found
}

fn spread(prefix: &[String], tree: &str, found: &mut Vec<Vec<String>>) {
    let tree = tree.trim();
    if let Some(open) = tree.find('{') {
        let mut prefix = prefix.to_vec();
        prefix.extend(tree[..open].split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned));
        let inner = &tree[open + 1..tree.rfind('}').unwrap_or(tree.len())];
        let (mut depth, mut start) = (0, 0);
        for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    if !inner[start..at].trim().is_empty() {
                        spread(&prefix, &inner[start..at], found);
                    }
                    start = at + 1;
                }
                _ => {}
            }
        }
    } else {
        let name = tree.split(" as ").next().unwrap_or(tree);
        let mut path = prefix.to_vec();
        path.extend(
            name.split("::").map(|part| part.trim().to_owned()).filter(|part| !part.is_empty() && part != "self"),
        );
        found.push(path);
    }
}

/// From the crate's root, as seen from `module`; `None` for other crates.
fn absolute(module: &[String], path: &[String], children: &BTreeSet<Vec<String>>) -> Option<Vec<String>> {
    let supers = path.iter().take_while(|part| *part == "super").count();
    if supers > 0 {
        let base = module.len().checked_sub(supers)?;
        return Some([&module[..base], &path[supers..]].concat());
    }
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        _ => {
            let inside = [module, path].concat();
            children.contains(&inside[..=module.len()]).then_some(inside)
        }
    }
}

#[test]
fn rooms_use_only_what_lies_below_them() {
    let sources = sources();
    let rooms: BTreeSet<_> = FLOORS.iter().map(|(room, _)| *room).collect();
    // macros live at the crate's root; this room's they are
    let macros: BTreeMap<_, _> = ["params", "statements", "for_update", "transaction"].map(|name| (name, "db")).into();
    let mut faults = Vec::new();
    for source in sources.iter().filter(|source| !source.module.is_empty() && !is_test(source, &sources)) {
        let room = source.module[0].as_str();
        let Some((_, allowed)) = FLOORS.iter().find(|(name, _)| *name == room) else {
            faults.push(format!("{}: `{room}` is no room of the plan", source.path.display()));
            continue;
        };
        for path in paths(&source.code) {
            let Some(target) = absolute(&source.module, &path, &BTreeSet::new()) else { continue };
            let Some(first) = target.first() else { continue };
            let used = macros.get(first.as_str()).copied().unwrap_or(first);
            let known = rooms.contains(used) || macros.contains_key(first.as_str());
            if known && used != room && !allowed.contains(&used) {
                faults.push(format!("{}: `{room}` may not use `{used}` ({})", source.path.display(), path.join("::")));
            }
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// The crates within, the rooms in each, and the crates of ours that each may name. The compiler holds this; here it is held that the manifests stay so.
const CRATES: &[(&str, &[&str], &[&str])] = &[
    ("ground", &["api", "clock", "config", "content", "direct", "domain"], &[]),
    ("service", &["app", "db", "server", "store", "webhook"], &["dray-ground"]),
    ("outside", &["agent", "cli", "client"], &["dray-ground"]),
];

#[test]
fn the_two_houses_meet_in_the_composition_root_only() {
    let sources = sources();
    let code = |path: &str| &sources.iter().find(|source| source.path == Path::new(path)).unwrap().code;
    let (main, lib) = (code("main.rs"), code("lib.rs"));
    for (name, rooms, ours) in CRATES {
        for room in *rooms {
            assert!(code(&format!("{name}.rs")).contains(&format!("pub mod {room};")), "{name}.rs lacks `{room}`");
        }
        assert!(
            lib.contains(&format!("pub use dray_{name}::{{{}}};", rooms.join(", "))),
            "lib.rs lacks a room of `{name}`"
        );
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(name).join("Cargo.toml");
        let manifest = std::fs::read_to_string(manifest).unwrap();
        let named: Vec<_> = manifest.lines().filter_map(|line| line.strip_suffix(".workspace = true")).collect();
        let named: Vec<_> = named.into_iter().filter(|dependency| dependency.starts_with("dray")).collect();
        assert_eq!(named, *ours, "what `{name}` may name of ours");
    }
    assert_eq!(CRATES.iter().map(|(_, rooms, _)| rooms.len()).sum::<usize>(), FLOORS.len());
    assert!(!main.contains("mod "), "main.rs declares modules: they belong to a house");
}

#[test]
fn the_pure_rooms_are_pure() {
    let sources = sources();
    let mut faults = Vec::new();
    for source in sources.iter().filter(|source| !is_test(source, &sources)) {
        if !matches!(source.module.first().map(String::as_str), Some("content" | "domain")) {
            continue;
        }
        for word in IMPURE {
            if source.code.contains(word) {
                faults.push(format!("{}: `{word}`", source.path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn siblings_do_not_import_each_other_in_circles() {
    let sources: Vec<_> = sources();
    let modules: BTreeSet<Vec<String>> = sources.iter().map(|source| source.module.clone()).collect();
    let reexports = reexports(&sources, &modules);
    let mut edges: BTreeMap<Vec<String>, BTreeSet<Vec<String>>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.module.is_empty() && !is_test(source, &sources)) {
        for path in paths(&source.code) {
            let Some(mut target) = absolute(&source.module, &path, &modules) else { continue };
            // `super::Name` that the parent takes from another child is that child's
            while let Some(origin) = reexports.get(&target) {
                target.clone_from(origin);
            }
            // the sibling on the way to the target, if both have the same parent
            let level = source.module.iter().zip(&target).take_while(|(a, b)| a == b).count();
            if level >= source.module.len() || level >= target.len() {
                continue;
            }
            let (from, to) = (source.module[..=level].to_vec(), target[..=level].to_vec());
            if level > 0 && modules.contains(&to) {
                edges.entry(from).or_default().insert(to);
            }
        }
    }
    let mut faults = Vec::new();
    for from in edges.keys() {
        if let Some(circle) = circle(from, &edges)
            && circle.iter().min() == Some(from)
        {
            faults.push(circle.iter().chain([from]).map(|module| module.join("::")).collect::<Vec<_>>().join(" -> "));
        }
    }
    faults.retain(|circle| !KNOWN_CIRCLES.contains(&circle.as_str()));
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// `(parent, Name)` to `(parent, child, Name)`, for every `pub use child::Name`.
fn reexports(sources: &[Source], modules: &BTreeSet<Vec<String>>) -> BTreeMap<Vec<String>, Vec<String>> {
    let mut found = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.module.is_empty()) {
        for path in paths(&source.code) {
            let Some(target) = absolute(&source.module, &path, modules) else { continue };
            let (Some(name), true) = (target.last(), target.len() > source.module.len() + 1) else { continue };
            if target.starts_with(&source.module) {
                found.insert([source.module.as_slice(), std::slice::from_ref(name)].concat(), target);
            }
        }
    }
    found
}

/// The shortest way from a module back to itself, without its end.
fn circle(start: &[String], edges: &BTreeMap<Vec<String>, BTreeSet<Vec<String>>>) -> Option<Vec<Vec<String>>> {
    let mut ways = std::collections::VecDeque::from([vec![start.to_vec()]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        for next in edges.get(way.last()?).into_iter().flatten() {
            if next == start {
                return Some(way);
            }
            if seen.insert(next.clone()) {
                ways.push_back(way.iter().cloned().chain([next.clone()]).collect());
            }
        }
    }
    None
}

#[test]
fn files_are_small_and_say_what_they_are_for() {
    let mut faults = Vec::new();
    for source in sources() {
        let lines = source.text.lines().count();
        if lines > LONGEST {
            faults.push(format!("{}: {lines} lines, more than {LONGEST}", source.path.display()));
        }
        if !source.text.starts_with("//! ") {
            faults.push(format!("{}: no `//!` head", source.path.display()));
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn every_aggregate_is_in_the_list_of_statements() {
    let sources = sources();
    let list = &sources.iter().find(|source| source.path == Path::new("db/statements.rs")).unwrap().code;
    let mut count = 0;
    for source in &sources {
        let aggregate = source.module.get(1).filter(|_| source.module.first().is_some_and(|room| room == "db"));
        if let Some(name) = aggregate
            && source.code.contains("crate::statements! {")
        {
            assert!(list.contains(&format!("super::{name}::q::ALL")), "db/statements.rs lacks `{name}`");
            count += 1;
        }
    }
    assert!(count >= 6, "only {count} aggregates");
}

#[test]
fn this_test_sees_what_it_should() {
    let code = code_of(
        "use crate::{db::{self, Tx as T}, api::x};\nfn f() { super::super::g::h(1); } // use crate::no;\n#[cfg(test)]\nmod tests { use crate::never; }\n",
    );
    let found: BTreeSet<_> = paths(&code).into_iter().map(|path| path.join("::")).collect();
    let expected = ["crate::db", "crate::db::Tx", "crate::api::x", "super::super::g::h"];
    assert!(expected.iter().all(|path| found.contains(*path)), "{found:?}");
    assert!(!found.iter().any(|path| path.contains("no") || path.contains("never")), "{found:?}");
    let module: Vec<_> = ["app", "keys"].map(str::to_owned).to_vec();
    let of = |text: &str| absolute(&module, &text.split("::").map(str::to_owned).collect::<Vec<_>>(), &BTreeSet::new());
    assert_eq!(of("crate::db::Tx").unwrap(), ["db", "Tx"]);
    assert_eq!(of("super::super::db").unwrap(), ["db"]);
    assert_eq!(of("super::error").unwrap(), ["app", "error"]);
    assert_eq!(of("serde::Serialize"), None);
    let edge = |from: &str, to: &str| (vec![from.to_owned()], BTreeSet::from([vec![to.to_owned()]]));
    let edges = BTreeMap::from([edge("a", "b"), edge("b", "c"), edge("c", "a"), edge("d", "a")]);
    assert_eq!(circle(&["a".to_owned()], &edges).unwrap().len(), 3);
    assert_eq!(circle(&["d".to_owned()], &edges), None);
}
