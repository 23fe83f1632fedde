//! Reads the layers and reports every fault at once, each with where it was said.
//!
//! Every value is tried alone, so that one fault does not hide the next. Secrets are never quoted in a fault, and lines of the file only where
//! they can hold none.
//!
//! ```text
//! defaults < FILE (--config, else DRAY_CONFIG) < DRAY_* < flags        the later wins, key by key
//! each value  -> tried alone -> taken over, with where it was said | a fault
//! all values  -> joined      -> contradictions between them        | faults
//! ```

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::Settings;
use super::keys::{KEYS, Kind, TABLES, variable};

/// What the command line says.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// `--config FILE`, else `DRAY_CONFIG`.
    pub config: Option<PathBuf>,
    /// `--data DIR`
    pub data: Option<PathBuf>,
    /// `--listen ADDR`
    pub listen: Option<String>,
    /// `--store URL`
    pub store: Option<String>,
    /// `--database URL`
    pub database: Option<String>,
}

/// Settings that cannot be used. Nothing was started by then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not there, not a file, or not UTF-8. A file that was not asked for is never looked for.
    #[error("the settings file `{}` cannot be read; check the path given by --config or DRAY_CONFIG", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// All of them, one a line.
    #[error("{} in the settings; nothing was started\n{}", count(.0.len()), .0.join("\n"))]
    Faults(Vec<String>),
}

fn count(faults: usize) -> String {
    if faults == 1 { "1 fault".to_owned() } else { format!("{faults} faults") }
}

impl Settings {
    /// Default < file < environment < flags. Reads one file and nothing else of the outside; `environment` is all that counts of it, so tests
    /// bring their own.
    ///
    /// Variables that are no setting are left alone, unless they begin like a table of ours: those are mistyped and a fault.
    pub fn load(flags: &Flags, environment: impl IntoIterator<Item = (String, String)>) -> Result<Self, Error> {
        let environment: BTreeMap<String, String> = environment.into_iter().collect();
        let mut layers = Layers::default();
        let path = flags.config.clone().or_else(|| environment.get("DRAY_CONFIG").map(PathBuf::from));
        if let Some(path) = path {
            let text =
                fs_err::read_to_string(&path).map_err(|source| Error::Unreadable { path: path.clone(), source })?;
            layers.file(&path, &text);
        }
        layers.environment(&environment);
        layers.flags(flags);
        layers.finish()
    }

    /// [`Settings::load`] with the environment of this process.
    pub fn from_process(flags: &Flags) -> Result<Self, Error> {
        // names and values that are not UTF-8 are nobody's setting
        let vars =
            std::env::vars_os().filter_map(|(name, value)| name.into_string().ok().zip(value.into_string().ok()));
        Self::load(flags, vars)
    }
}

/// Where a value was said, for faults.
#[derive(Debug, Clone)]
struct Origin {
    place: String,
    /// The line of the file and a caret below it; none where it may hold a secret.
    excerpt: Option<String>,
}

/// What was said so far. `values` holds only what can be a setting by itself.
#[derive(Debug, Default)]
struct Layers {
    values: Table,
    origins: BTreeMap<&'static str, Origin>,
    faults: Vec<String>,
}

impl Layers {
    fn file(&mut self, path: &Path, text: &str) {
        let source = Source { path, text };
        match (DeTable::parse(text), text.parse::<Table>()) {
            (Ok(spans), Ok(table)) => self.table("", spans.get_ref(), &table, &source),
            (Err(error), _) | (_, Err(error)) => self.faults.push(source.no_toml(&error)),
        }
    }

    /// One table, and those directly below it. Spans and values come from two readings of one text, so they agree.
    fn table(&mut self, prefix: &str, spans: &DeTable<'_>, table: &Table, source: &Source<'_>) {
        for (name, span) in spans {
            let Some(value) = table.get(name.get_ref().as_ref()) else { continue };
            let key =
                if prefix.is_empty() { name.get_ref().to_string() } else { format!("{prefix}.{}", name.get_ref()) };
            if let (DeValue::Table(spans), Value::Table(table)) = (span.get_ref(), value)
                && prefix.is_empty()
                && TABLES.contains(&key.as_str())
            {
                self.table(&key, spans, table, source);
                continue;
            }
            match KEYS.iter().find(|(known, _)| *known == key) {
                Some((known, _)) => self.set(known, value.clone(), source.origin(known, span.span())),
                None => {
                    let origin = source.origin(&key, name.span());
                    self.fault(&key, &origin, &unknown(&key));
                }
            }
        }
    }

    /// In the order of the names, so that faults read the same each time.
    fn environment(&mut self, environment: &BTreeMap<String, String>) {
        for (name, text) in environment {
            let known = KEYS.iter().find(|(key, _)| variable(key) == *name);
            let origin = Origin { place: format!("environment variable {name}"), excerpt: None };
            let Some((key, kind)) = known else {
                if TABLES.iter().any(|table| name.starts_with(&format!("{}_", variable(table)))) {
                    self.fault(name, &origin, "is no setting; see config/dray.toml for all of them");
                }
                continue;
            };
            match typed(*kind, text) {
                Some(value) => self.set(key, value, origin),
                None => self.fault(key, &origin, "must be a whole number, or `true` or `false` for a switch"),
            }
        }
    }

    fn flags(&mut self, flags: &Flags) {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        for (key, flag, text) in [
            ("data", "--data", path(&flags.data)),
            ("listen", "--listen", flags.listen.clone()),
            ("store.url", "--store", flags.store.clone()),
            ("database.url", "--database", flags.database.clone()),
        ] {
            if let Some(text) = text {
                self.set(key, Value::String(text), Origin { place: flag.to_owned(), excerpt: None });
            }
        }
    }

    /// Takes a value over, or notes what is wrong with it.
    fn set(&mut self, key: &'static str, value: Value, origin: Origin) {
        let mut alone = Table::new();
        insert(&mut alone, key, value.clone());
        match alone.try_into::<Settings>() {
            Ok(_) => {
                insert(&mut self.values, key, value);
                self.origins.insert(key, origin);
            }
            Err(error) => {
                let what = if is_secret(key) { "has a wrong value" } else { error.message() };
                self.fault(key, &origin, what);
            }
        }
    }

    fn fault(&mut self, key: &str, origin: &Origin, what: &str) {
        let excerpt = origin.excerpt.as_deref().unwrap_or_default();
        self.faults.push(format!("{}: `{key}` {what}{excerpt}", origin.place));
    }

    /// Contradictions are looked for though values were refused before: their defaults stand in for them.
    fn finish(mut self) -> Result<Settings, Error> {
        let settings: Settings = match std::mem::take(&mut self.values).try_into() {
            Ok(settings) => settings,
            Err(error) => {
                self.faults.push(error.to_string());
                return Err(Error::Faults(self.faults));
            }
        };
        for (key, what) in settings.contradictions() {
            let default = Origin { place: "default".to_owned(), excerpt: None };
            let origin = self.origins.get(key).cloned().unwrap_or(default);
            self.fault(key, &origin, &what);
        }
        if self.faults.is_empty() { Ok(settings) } else { Err(Error::Faults(self.faults)) }
    }
}

/// A settings file while it is read.
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    fn origin(&self, key: &str, span: Range<usize>) -> Origin {
        let (line, _, excerpt) = self.point(span);
        let excerpt = excerpt.filter(|_| !is_secret(key));
        Origin { place: format!("{}:{line}", self.path.display()), excerpt }
    }

    /// The parser's own text is not used: it quotes the line, whatever stands there.
    fn no_toml(&self, error: &toml::de::Error) -> String {
        let (line, column, excerpt) = self.point(error.span().unwrap_or_default());
        let (path, why) = (self.path.display(), error.message());
        format!("{path}: line {line}, column {column}: {why}{}", excerpt.unwrap_or_default())
    }

    /// Line and column, both from 1, and the line with a caret below where it [may be shown](may_be_shown).
    fn point(&self, span: Range<usize>) -> (usize, usize, Option<String>) {
        // The end of the text is told as a part of its last line.
        let end = self.text.len().saturating_sub(1);
        let before = &self.text[..self.text.floor_char_boundary(span.start.min(end))];
        let line = before.matches('\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        let text = self.text[start..].lines().next().unwrap_or_default();
        let column = before[start..].chars().count();
        let width = self.text.get(span).map_or(1, |marked| marked.lines().next().unwrap_or_default().chars().count());
        let caret = format!("{}{}", " ".repeat(column), "^".repeat(width.max(1)));
        (line, column + 1, may_be_shown(text).then(|| format!("\n    {text}\n    {caret}")))
    }
}

/// Whose value, and the line it stands in, no fault about a value quotes.
fn is_secret(key: &str) -> bool {
    matches!(key, "store.secret_access_key" | "database.url")
}

/// Whether a line may be quoted: it says one setting, whose name is, or nearly is, that of one without a secret. A secret may stand in any other:
/// under a mistyped name, in the wrong table, behind another key.
fn may_be_shown(line: &str) -> bool {
    let Some((name, value)) = line.split_once('=') else { return false };
    let last = |key: &'static str| key.rsplit('.').next().unwrap_or(key);
    let name = name.rsplit('.').next().unwrap_or(name).trim().trim_matches(['"', '\'']);
    let nearest = |secret: bool| {
        let keys = KEYS.iter().filter(move |(key, _)| is_secret(key) == secret);
        keys.map(|(key, _)| edits(name, last(key))).min().unwrap_or(usize::MAX)
    };
    !value.contains('=') && nearest(false) <= 2 && nearest(false) < nearest(true)
}

/// How many letters are put in, left out or changed between two words.
fn edits(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.bytes().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], at + 1);
        for (at, other) in other.bytes().enumerate() {
            let least = (corner + usize::from(letter != other)).min(row[at] + 1).min(row[at + 1] + 1);
            corner = std::mem::replace(&mut row[at + 1], least);
        }
    }
    row[other.len()]
}

/// Guesses at a key that was put into the wrong table.
fn unknown(key: &str) -> String {
    let last = key.rsplit('.').next().unwrap_or(key);
    let elsewhere = KEYS.iter().find(|(known, _)| known.rsplit('.').next() == Some(last));
    match elsewhere {
        Some((known, _)) => format!("is no setting; did you mean `{known}`?"),
        None => "is no setting; see config/dray.toml for all of them".to_owned(),
    }
}

/// `None` where the text is not of that kind. An empty list is a list.
fn typed(kind: Kind, text: &str) -> Option<Value> {
    Some(match kind {
        Kind::Text => Value::String(text.to_owned()),
        Kind::Number => Value::Integer(text.parse().ok()?),
        Kind::Flag => Value::Boolean(text.parse().ok()?),
        Kind::List => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            Value::Array(items.map(|item| Value::String(item.to_owned())).collect())
        }
    })
}

fn insert(table: &mut Table, key: &str, value: Value) {
    match key.split_once('.') {
        None => drop(table.insert(key.to_owned(), value)),
        Some((name, rest)) => {
            let inner = table.entry(name.to_owned()).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}

#[cfg(test)]
mod tests;
