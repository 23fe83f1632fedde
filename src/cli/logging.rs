//! Messages on stderr: lines for people, or JSON where everything on stderr is JSON. Never an escape sequence in a log.
//!
//! Off a terminal with `--json` each event is one JSON object a line, like the progress beside it. stdout is never written
//! to.

use super::progress::LogWriter;
use super::session::Global;
use std::io::IsTerminal;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Sends `tracing` events to stderr. `default` is the filter when the user said none, and also where the user's makes no
/// sense, which is said. Call it once.
pub fn start(global: &Global, default: &str) {
    let said = global.log.as_deref().map(|said| said.parse::<Targets>().map_err(|error| (said, error)));
    let (said, wrong) = said.transpose().map_or_else(|wrong| (None, Some(wrong)), |said| (said, None));
    let filter = said.unwrap_or_else(|| default.parse().expect("our own filters are right"));
    let terminal = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_writer(|| LogWriter).with_ansi(terminal).with_target(false);
    let registry = tracing_subscriber::registry().with(filter);
    // A second call finds a subscriber in place: the first one stays.
    let _ = match global.json && !terminal {
        true => registry.with(lines.json().flatten_event(true)).try_init(),
        false => registry.with(lines.compact()).try_init(),
    };
    if let Some((said, error)) = wrong {
        tracing::error!("--log `{said}` is no filter ({error}); logging at `{default}`");
    }
}
