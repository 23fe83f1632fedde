//! Ctrl-C and SIGTERM: the first asks the verb to stop and save its state, the second ends the process at once.

use super::progress::{Style, note};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Watches for signals until it is dropped.
#[derive(Debug)]
pub struct Interrupts {
    _watch: JoinSet<()>,
}

impl Interrupts {
    /// Cancels `token` at the first signal.
    pub fn watch(token: CancellationToken, style: Style) -> std::io::Result<Self> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut watch = JoinSet::new();
        watch.spawn(async move {
            for round in 0.. {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if round > 0 {
                    std::process::exit(130);
                }
                token.cancel();
                note(style, "stopping", "what the service has acknowledged stays; once more stops at once");
            }
        });
        Ok(Self { _watch: watch })
    }
}
