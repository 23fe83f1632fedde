//! Layers and faults of the settings.

use super::*;
use crate::config::{Period, Size};

const SAMPLE: &str = include_str!("../../../config/dray.toml");

fn load(file: &str, environment: &[(&str, &str)], flags: Flags) -> Result<Settings, Error> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dray.toml");
    fs_err::write(&path, file).unwrap();
    let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Settings::load(&Flags { config: Some(path), ..flags }, environment)
}

fn faults(result: Result<Settings, Error>) -> Vec<String> {
    match result {
        Err(Error::Faults(faults)) => faults,
        other => panic!("expected faults, found {other:?}"),
    }
}

#[test]
fn the_sample_is_the_default() {
    assert_eq!(toml::from_str::<Settings>(SAMPLE).unwrap(), Settings::default());
    assert_eq!(load(SAMPLE, &[], Flags::default()).unwrap(), Settings::default());
}

#[test]
fn the_sample_names_every_key_and_no_other() {
    let mut table = String::new();
    let mut named = Vec::new();
    for line in SAMPLE.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            table = format!("{name}.");
        } else if let Some((key, _)) = line.strip_prefix("#:").unwrap_or(line).split_once(" = ")
            && !line.starts_with("# ")
        {
            named.push(format!("{table}{key}"));
        }
    }
    let known: Vec<_> = KEYS.iter().map(|(key, _)| (*key).to_owned()).collect();
    assert_eq!(named, known);
}

#[test]
fn keys_and_their_kinds_are_those_of_the_settings() {
    let defaults = Table::try_from(Settings::default()).unwrap();
    for (key, kind) in KEYS {
        let value = key.split('.').try_fold(&Value::Table(defaults.clone()), |value, part| value.get(part)).cloned();
        let fits = match (kind, &value) {
            (_, None) => true, // has no default
            (Kind::Text, Some(value)) => value.is_str(),
            (Kind::Number, Some(value)) => value.is_integer(),
            (Kind::Flag, Some(value)) => value.is_bool(),
            (Kind::List, Some(value)) => value.is_array(),
        };
        assert!(fits, "{key}: {value:?}");
    }
    let mut unlisted = Vec::new();
    for (name, value) in &defaults {
        match value {
            Value::Table(table) => unlisted.extend(table.keys().map(|key| format!("{name}.{key}"))),
            _ => unlisted.push(name.clone()),
        }
    }
    unlisted.retain(|key| !KEYS.iter().any(|(known, _)| known == key));
    assert_eq!(unlisted, Vec::<String>::new());
}

#[test]
fn a_later_layer_wins() {
    let file = "data = 'file'\n[limits]\nmax_pack_bytes = '8MiB'\ngrant_ttl = '2h'\n[store]\nregion = '12345'\n";
    let environment = [("DRAY_DATA", "environment"), ("DRAY_LIMITS_MAX_PACK_BYTES", "16MiB"), ("DRAY_TOKEN", "dray_x")];
    let flags = Flags { data: Some("flag".into()), ..Flags::default() };
    let settings = load(file, &environment, flags).unwrap();
    assert_eq!(settings.data, PathBuf::from("flag"));
    assert_eq!(settings.limits.max_pack_bytes, Size::mib(16));
    assert_eq!(settings.limits.grant_ttl, Period::hours(2));
    assert_eq!(settings.limits.upload_ttl, Settings::default().limits.upload_ttl);
}

#[test]
fn text_of_the_environment_stays_text_and_lists_are_split() {
    let environment = [
        ("DRAY_STORE_REGION", "12345"),
        ("DRAY_CALLBACKS_ALLOW", "10.0.0.0/8, fd00::/8"),
        ("DRAY_MULTI_REPLICA", "false"),
    ];
    let settings = load("", &environment, Flags::default()).unwrap();
    assert_eq!(settings.store.region.as_deref(), Some("12345"));
    assert_eq!(settings.callbacks.allow.unwrap().len(), 2);
}

#[test]
fn all_faults_are_told_at_once_with_their_place() {
    let file = "listne = 'x'\n[limits]\nmax_pack_bytes = 64\ngrant_ttl = '5 weeks'\n[store]\nmax_pack_bytes = '1MiB'\n";
    let environment = [("DRAY_DATABASE_CONNECTIONS", "many"), ("DRAY_LIMITS_TYPO", "1")];
    let flags = Flags { listen: Some("nowhere".into()), ..Flags::default() };
    let faults = faults(load(file, &environment, flags));
    let text = faults.join("\n");
    assert_eq!(faults.len(), 7, "{text}");
    assert!(text.contains("dray.toml:1: `listne` is no setting"), "{text}");
    assert!(text.contains("\n    listne = 'x'\n    ^^^^^^"), "{text}");
    assert!(text.contains("dray.toml:3: `limits.max_pack_bytes`"), "{text}");
    assert!(text.contains("\n    grant_ttl = '5 weeks'\n                ^^^^^^^^^"), "{text}");
    assert!(text.contains("did you mean `limits.max_pack_bytes`?"), "{text}");
    assert!(text.contains("environment variable DRAY_DATABASE_CONNECTIONS"), "{text}");
    assert!(text.contains("DRAY_LIMITS_TYPO"), "{text}");
    assert!(text.contains("--listen: `listen`"), "{text}");
}

#[test]
fn a_file_that_is_no_toml_is_shown_with_a_caret() {
    let faults = faults(load("listen = \n", &[], Flags::default()));
    assert!(faults[0].contains("line 1") && faults[0].contains('^'), "{faults:?}");
}

#[test]
fn values_that_contradict_each_other_are_faults_of_their_place() {
    let faults = faults(load("multi_replica = true\n[limits]\nlongest_wait = '2m'\n", &[], Flags::default()));
    let text = faults.join("\n");
    assert_eq!(faults.len(), 3, "{text}");
    assert!(text.contains("dray.toml:1: `multi_replica` SQLite serves one process"), "{text}");
    assert!(text.contains("dray.toml:3: `limits.longest_wait`"), "{text}");
}

#[test]
fn no_secret_is_shown_in_a_fault_or_in_the_resolved_settings() {
    let file = "[database]\nurl = 'mysql://root:hunter2@x'\n[store]\nsecret_access_key = ['hunter2']\n";
    let text = faults(load(file, &[], Flags::default())).join("\n");
    assert!(text.contains("database.url") && text.contains("store.secret_access_key"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
    let file = "[database]\nurl = 'postgres://dray:hunter2@x/y'\n[store]\nsecret_access_key = 'hunter2'\n";
    let settings = load(file, &[], Flags::default()).unwrap();
    assert!(!settings.to_masked_toml().contains("hunter2"), "{}", settings.to_masked_toml());
    assert!(!format!("{settings:?}").contains("hunter2"));
}

/// Wherever a secret was put by mistake, and whatever else is wrong with its line.
#[test]
fn no_line_that_may_hold_a_secret_is_quoted() {
    for (file, place) in [
        ("[store]\nsecret_access_key = \"hunter2\n", "line 2"),
        ("[store]\nsecret_access_key = hunter2\n", "line 2"),
        ("[store]\nsecret_acess_key = 'hunter2'\n", ":2"),
        ("secret_access_key = 'hunter2'\n", ":1"),
        ("[database]\nurl = postgres://dray:hunter2@x/y\n", "line 2"),
        ("[database]\nurl = 'postgres://dray:hunter2@x/y\nconnections = 2\n", "line 2"),
        ("[database]\nuri = 'postgres://dray:hunter2@x/y'\n", ":2"),
        ("[database]\npassword = 'hunter2'\n", ":2"),
        ("database.url = 'postgres://dray:hunter2@x/y'\"\n", "line 1"),
        ("database = 'postgres://dray:hunter2@x/y'\n", ":1"),
        ("databse = { url = 'postgres://dray:hunter2@x/y' }\n", ":1"),
        ("store = { retries = 'no', secret_access_key = 'hunter2' }\n", ":1"),
        ("drain = 'x', secret_access_key = 'hunter2'\n", "line 1"),
    ] {
        let text = faults(load(file, &[], Flags::default())).join("\n");
        assert!(!text.contains("hunter2") && text.contains(place), "{file}{text}");
    }
}

#[test]
fn values_that_cannot_be_joined_hide_no_other_fault() {
    let values = Table::from_iter([("listen".to_owned(), Value::Integer(1))]);
    let layers = Layers { values, faults: vec!["another".to_owned()], ..Layers::default() };
    let faults = faults(layers.finish());
    assert_eq!((faults.len(), faults[0].as_str()), (2, "another"), "{faults:?}");
}

#[test]
fn a_missing_file_is_named() {
    let flags = Flags { config: Some("/nonexistent/dray.toml".into()), ..Flags::default() };
    let error = Settings::load(&flags, []).unwrap_err();
    assert!(error.to_string().contains("`/nonexistent/dray.toml`"), "{error}");
}
