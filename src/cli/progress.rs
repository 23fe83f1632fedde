//! How a transfer shows itself on stderr: a bar on a terminal, plain lines in a log, JSON lines for a program.
//!
//! Off a terminal there is never a carriage return or an escape sequence, the first line comes at once and another at least
//! every five seconds. Log lines and bars share [`SCREEN`], so that they do not write into each other.
//!
//! stderr that is closed or full is ignored: a transfer does not end because nobody can watch it.

use super::output::{self, clean};
use super::units::{count, seconds, size};
use crate::client::progress::{Phase, Reporter, Snapshot};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde_json::json;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// All bars of the process; hidden when stderr is no terminal.
///
/// One for the process, since only who knows all bars can draw above them.
static SCREEN: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Longest silence between two lines of a log. Half a second below the five that are promised, since a reporter is asked about four times a second only.
const INTERVAL: Duration = Duration::from_millis(4_500);

/// How progress is shown.
///
/// Json is one object a line with `event`: `progress`, `warning` and others. Programs skip events they do not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Bar,
    Lines,
    Json,
}

impl Style {
    /// Bars on a terminal; else what the output's format asks for.
    pub fn choose(format: output::Format) -> Self {
        match format {
            _ if io::stderr().is_terminal() => Self::Bar,
            output::Format::Json => Self::Json,
            output::Format::Human => Self::Lines,
        }
    }
}

/// Writes whole lines to stderr above any bar.
pub fn say(line: &str) {
    SCREEN.suspend(|| {
        let _ = writeln!(io::stderr().lock(), "{line}");
    });
}

/// A message for people; off a terminal with `--json` an event like all others.
///
/// `text` is cleaned or escaped here. `kind` is ours.
pub fn note(style: Style, kind: &str, text: &str) {
    match style {
        Style::Json => say(&event(&json!({ "event": kind, "text": text }))),
        Style::Bar | Style::Lines => say(&format!("{kind}: {}", clean(text))),
    }
}

/// Without a line feed.
fn event(value: &serde_json::Value) -> String {
    let mut line = Vec::new();
    // Writing into memory does not fail.
    let _ = output::json(&mut line, value);
    String::from_utf8_lossy(&line).into_owned()
}

/// Shows one transfer.
///
/// A bar draws whenever it is asked, a log only when a line is due.
#[derive(Debug)]
pub struct Progress {
    /// What is being done: `push`, `pull`, `verify`.
    verb: &'static str,
    style: Style,
    bar: Option<ProgressBar>,
    /// When a line was last written, and of which phase: a new phase is told at once.
    last: Mutex<Option<(Instant, Phase)>>,
}

impl Progress {
    pub fn new(verb: &'static str, style: Style) -> Self {
        let bar = (style == Style::Bar).then(|| {
            let bar = SCREEN.add(ProgressBar::new(0));
            let style = ProgressStyle::with_template("{spinner:.cyan} {prefix:11} {bar:30.cyan/dim} {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸─"));
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self { verb, style, bar, last: Mutex::new(None) }
    }

    /// Whether a line is due now.
    ///
    /// Says yes once and then counts anew; the caller writes the line.
    fn is_due(&self, phase: Phase) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|(at, before)| before != phase || at.elapsed() >= INTERVAL);
        if due {
            *last = Some((Instant::now(), phase));
        }
        due
    }

    /// Takes the bar away. Also done on drop.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
            SCREEN.remove(bar);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Reporter for Progress {
    fn show(&self, now: &Snapshot) {
        match (&self.bar, self.style) {
            (Some(bar), _) => {
                bar.set_prefix(now.phase.word());
                bar.set_length(now.bytes_total.max(now.bytes));
                bar.set_position(now.bytes);
                bar.set_message(facts(now, Spacing::Bar));
            }
            (None, _) if !self.is_due(now.phase) => {}
            (None, Style::Json) => {
                let mut value = serde_json::to_value(now).unwrap_or_default();
                value["event"] = json!("progress");
                value["verb"] = json!(self.verb);
                say(&event(&value));
            }
            (None, _) => {
                let at = seconds(now.seconds);
                say(&format!("{} {at:>8}  {:11} {}", self.verb, now.phase.word(), facts(now, Spacing::Line)));
            }
        }
    }

    fn warn(&self, text: &str) {
        note(self.style, "warning", text);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spacing {
    Bar,
    Line,
}

/// The numbers of a snapshot in words.
///
/// Totals may still grow while a walk goes on; what is done is never shown as more than the total.
fn facts(now: &Snapshot, spacing: Spacing) -> String {
    let mut text = format!("{} of {}", size(now.bytes), size(now.bytes_total.max(now.bytes)));
    let gap = match spacing {
        Spacing::Bar => " · ",
        Spacing::Line => ", ",
    };
    let _ = write!(text, "{gap}{} of {} files", count(now.files), count(now.files_total.max(now.files)));
    if now.network_bytes > 0 {
        let _ = write!(text, "{gap}{} over the network", size(now.network_bytes));
    }
    if now.reused_bytes > 0 {
        let _ = write!(text, "{gap}{} reused", size(now.reused_bytes));
    }
    if now.failed > 0 {
        let _ = write!(text, "{gap}{} failed", count(now.failed));
    }
    if now.seconds >= 1.0 && now.bytes > 0 {
        #[expect(clippy::cast_precision_loss, reason = "three figures are shown")]
        let rate = now.bytes as f64 / now.seconds;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive rate, shown roughly")]
        let _ = write!(text, "{gap}{}/s", size(rate as u64));
    }
    if now.stalled_for >= 5 {
        let _ = write!(text, "{gap}nothing moved for {} s", now.stalled_for);
    }
    text
}

/// A sign of life for a step without numbers of its own. Clones show the same one.
///
/// Shows on a terminal only. One step at a time: `begin`, `say` as often as wanted, `end`.
#[derive(Debug, Clone)]
pub struct Spinner {
    style: Style,
    bar: Arc<Mutex<Option<ProgressBar>>>,
}

impl Spinner {
    pub fn new(style: Style) -> Self {
        Self { style, bar: Arc::default() }
    }

    fn bar(&self) -> MutexGuard<'_, Option<ProgressBar>> {
        self.bar.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn begin(&self, name: &'static str) {
        if self.style != Style::Bar {
            return;
        }
        let bar = SCREEN.add(ProgressBar::new_spinner());
        let style = ProgressStyle::with_template("  {spinner:.cyan} {prefix:15}{elapsed:>9.dim}  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_prefix(name);
        bar.enable_steady_tick(Duration::from_millis(120));
        *self.bar() = Some(bar);
    }

    pub fn say(&self, text: &str) {
        if let Some(bar) = &*self.bar() {
            bar.set_message(clean(text));
        }
    }

    pub fn end(&self) {
        if let Some(bar) = self.bar().take() {
            bar.finish_and_clear();
            SCREEN.remove(&bar);
        }
    }
}

/// Where log lines go: stderr, above any bar.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        SCREEN.suspend(|| io::stderr().lock().write_all(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Snapshot {
        Snapshot {
            phase: Phase::Send,
            files: 1_234,
            bytes: 3 << 30,
            files_total: 5_000,
            bytes_total: 12 << 30,
            network_bytes: 2 << 30,
            reused_bytes: 1 << 30,
            failed: 2,
            stalled_for: 7,
            seconds: 30.0,
        }
    }

    #[test]
    fn facts_of_a_push() {
        let line = facts(&snapshot(), Spacing::Line);
        insta::assert_snapshot!(line, @"3.00 GiB of 12.0 GiB, 1,234 of 5,000 files, 2.00 GiB over the network, 1.00 GiB reused, 2 failed, 102 MiB/s, nothing moved for 7 s");
    }

    #[test]
    fn a_log_gets_a_line_at_once_and_at_every_change_of_phase() {
        let progress = Progress::new("push", Style::Lines);
        assert!(progress.is_due(Phase::Prepare));
        assert!(!progress.is_due(Phase::Prepare), "not again within the interval");
        assert!(progress.is_due(Phase::Send));
    }
}
