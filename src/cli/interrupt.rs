//! Ctrl-C and SIGTERM: the first asks the verb to stop and save its state, the second ends the process at once.
//!
//! Saving means that what the service has acknowledged stays, and that the same command goes on from there. The second
//! signal is for a disk or line that does not answer.

use super::progress::{Style, note};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Watches for signals until it is dropped.
///
/// Dropped, signals keep being caught but do nothing: it is held until the process ends.
#[derive(Debug)]
pub struct Interrupts {
    _watch: JoinSet<()>,
}

impl Interrupts {
    /// Cancels `token` at the first signal.
    ///
    /// To be called in a runtime, once. From here on Ctrl-C no longer ends the process by itself.
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
