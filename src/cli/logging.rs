//! Messages on stderr: lines for people, or JSON where everything on stderr is JSON. Never an escape sequence in a log.

use super::progress::LogWriter;
use super::session::Global;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Sends `tracing` events to stderr. `default` is the filter when the user said none. Call it once.
pub fn start(global: &Global, default: &str) {
    let filter = global.log.as_deref().unwrap_or(default);
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new(default));
    let terminal = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| LogWriter)
        .with_ansi(terminal)
        .with_target(false);
    // A second call finds a subscriber in place: the first one stays.
    let _ = match global.json && !terminal {
        true => lines.json().flatten_event(true).try_init(),
        false => lines.compact().try_init(),
    };
}
