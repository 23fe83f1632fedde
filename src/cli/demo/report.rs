//! How the demonstration looks: a line a step while it goes, a short report at its end; with `--json` one document.

use super::places::Outcome;
use crate::cli::error::Error;
use crate::cli::output::{self, Format, clean};
use crate::cli::progress::{Spinner, Style, note, say};
use crate::cli::session::Session;
use crate::cli::units::{count, percent, seconds, size};
use serde_json::json;
use std::future::Future;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::Instant;

/// Where steps are shown, and what they took.
///
/// Steps are shown on stderr, the report is stdout's.
#[derive(Debug)]
pub struct Screen {
    format: Format,
    style: Style,
    color: bool,
    started: Instant,
    steps: Vec<(&'static str, f64)>,
    spinner: Spinner,
}

/// Shows how far the step at hand is.
#[derive(Debug, Clone)]
pub struct Gauge(Spinner);

impl Gauge {
    pub fn show(&self, done: u64, all: u64) {
        self.0.say(&format!("{} of {}", size(done), size(all)));
    }
}

impl Screen {
    pub fn new(session: &Session) -> Self {
        Self {
            format: session.format,
            style: session.style,
            color: io::stderr().is_terminal(),
            started: Instant::now(),
            steps: Vec::new(),
            spinner: Spinner::new(session.style),
        }
    }

    pub fn gauge(&self) -> Gauge {
        Gauge(self.spinner.clone())
    }

    fn painted(&self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Nothing with `--json`: the directory stands in the closing document.
    pub fn head(&self, dir: &Path) {
        if self.style == Style::Json {
            return;
        }
        let head = self.painted("1", "dray demo");
        say(&format!("{head}: the whole journey on this machine, in {}", clean(&dir.display().to_string())));
    }

    /// Runs one step and tells its end. Times are kept for the report.
    ///
    /// Steps do not run side by side. A failed one is marked and its time kept; the error is told by the caller.
    pub async fn step<T>(
        &mut self,
        name: &'static str,
        work: impl Future<Output = Result<(String, T), Error>>,
    ) -> Result<T, Error> {
        let began = Instant::now();
        self.spinner.begin(name);
        let ended = Box::pin(work).await;
        self.spinner.end();
        let took = began.elapsed().as_secs_f64();
        self.steps.push((name, took));
        let (text, value) = ended.inspect_err(|_| {
            if self.style != Style::Json {
                say(&format!("  {} {name}", self.painted("31", "✗")));
            }
        })?;
        match self.style {
            Style::Json => note(self.style, name, &text),
            Style::Bar | Style::Lines => {
                let mark = self.painted("32", "✓");
                let took = self.painted("2", &format!("{:>9}", seconds(took)));
                say(&format!("  {mark} {name:15}{took}  {}", clean(&text)));
            }
        }
        Ok(value)
    }

    /// The closing report.
    ///
    /// Reached only when everything was equal.
    pub fn report(&self, dir: &Path, input: &Path, outcome: &Outcome) -> Result<(), Error> {
        let total = self.started.elapsed().as_secs_f64();
        let pushed = &outcome.pushed;
        let fresh = pushed.bytes.saturating_sub(pushed.reused_bytes);
        let steps: serde_json::Map<String, serde_json::Value> =
            self.steps.iter().map(|(name, took)| ((*name).to_owned(), json!(took))).collect();
        let document = json!({
            "dir": dir, "input": input, "seconds": total, "steps": steps,
            "push": pushed, "staging": outcome.staging, "output": outcome.output,
            "links": outcome.links.iter().map(|(_, link)| link).collect::<Vec<_>>(),
            "compared": {
                "input_files": outcome.compared.files, "input_bytes": outcome.compared.bytes,
                "output_files": outcome.returned.files, "output_bytes": outcome.returned.bytes, "equal": true,
            },
        });
        output::show(self.format, &document, |out| {
            writeln!(
                out,
                "\nEvery byte compared is equal: {} staged, {} brought home.",
                size(outcome.compared.bytes),
                size(outcome.returned.bytes)
            )?;
            let place = |path: &Path| path.display().to_string();
            let mut facts = vec![
                ("data", format!("{} in {} files, {}", size(pushed.bytes), count(pushed.files), place(input))),
                (
                    "dedup",
                    format!(
                        "{} found twice ({})",
                        size(pushed.reused_bytes),
                        percent(pushed.reused_bytes, pushed.bytes)
                    ),
                ),
                (
                    "compression",
                    format!(
                        "{} stored for {} ({})",
                        size(pushed.stored_bytes),
                        size(fresh),
                        percent(pushed.stored_bytes, fresh)
                    ),
                ),
                ("time", format!("{} in all; {}", seconds(total), self.longest())),
                ("store", place(&outcome.places.service.join("store"))),
                ("node", place(&outcome.places.node)),
                ("receipt", format!("{}", outcome.places.receipt.display())),
                (
                    "results",
                    format!(
                        "{}, by {}",
                        place(&outcome.places.home),
                        outcome.output.reference.as_deref().unwrap_or("-")
                    ),
                ),
                ("logs", place(&outcome.places.logs)),
                ("service", format!("dray serve --data {} brings it back", place(&outcome.places.service))),
            ];
            if pushed.failed_count > 0 {
                facts.push(("not pushed", format!("{} files could not be read", count(pushed.failed_count))));
            }
            if pushed.skipped_count > 0 {
                facts.push(("skipped", format!("{} special files", count(pushed.skipped_count))));
            }
            output::facts(out, &facts)
        })?;
        Ok(())
    }

    /// The four steps that took longest, in their order.
    ///
    /// Of steps that took equally long the earlier ones.
    fn longest(&self) -> String {
        let mut times: Vec<f64> = self.steps.iter().map(|(_, took)| *took).collect();
        times.sort_by(f64::total_cmp);
        let floor = times.iter().rev().nth(3).copied().unwrap_or_default();
        let steps = self.steps.iter().filter(|(_, took)| *took >= floor).take(4);
        steps.map(|(name, took)| format!("{name} {}", seconds(*took))).collect::<Vec<_>>().join(", ")
    }
}
