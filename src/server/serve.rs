//! The role `serve`: a service in this process until it is told to end.
//!
//! SIGTERM and Ctrl-C drain and end with success; a second one cuts what is still in flight. SIGHUP reads the TLS files again.
//!
//! ```text
//! start -> serving -> [signal] draining -> stopped
//!                         |  requests in flight end, `drain` at most
//!                         +- [second signal] cut
//! ```

use futures::future::LocalBoxFuture;
use std::io::{IsTerminal, Write};
use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::service::{Error, Service};
use crate::clock::{RandomIds, SystemClock};
use crate::config::{Log, LogFormat, Settings};

/// Serves until a signal. Says on stderr where, once it answers.
///
/// An error comes before the first request (settings, port, store, lock) or when the HTTP server breaks. What was
/// acknowledged is durable in every case. The future is not `Send`: it belongs to the process's main task.
pub fn serve(settings: Settings) -> LocalBoxFuture<'static, Result<(), Error>> {
    Box::pin(async move {
        start_log(&settings.log);
        let mut signals = Signals::new().map_err(Error::Http)?;
        let mut hangup = signal(SignalKind::hangup()).map_err(Error::Http)?;
        let mut service = Service::start(settings, Arc::new(SystemClock), Arc::new(RandomIds)).await?;
        let settings = &service.app().settings;
        // stderr that is closed is no reason to end
        let _ = writeln!(
            std::io::stderr(),
            "dray serves {} with its data in {}",
            service.app().origin,
            settings.data.display()
        );
        loop {
            tokio::select! {
                error = service.failed() => return Err(error),
                () = signals.end() => break,
                _ = hangup.recv() => match service.reload_tls().await {
                    Ok(()) => tracing::info!("TLS files were read again"),
                    Err(error) => tracing::error!(source = std::error::Error::source(&error).map(ToString::to_string), "{error}"),
                },
            }
        }
        tracing::info!("draining: no new connections; requests in flight may end");
        service.drain();
        let cutter = service.cutter();
        let stopped = service.stop();
        tokio::pin!(stopped);
        tokio::select! {
            outcome = &mut stopped => return outcome,
            () = signals.end() => cutter(),
        }
        stopped.await
    })
}

/// Registered before the service starts, so that a signal during a long start is not lost and does not kill it half way.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// One signal to end. Each call takes one.
    async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Logs to stderr. A filter that makes no sense falls back to `info` and says so; a second call changes nothing.
fn start_log(log: &Log) {
    let filter = log.level.parse::<Targets>();
    let wrong = filter.as_ref().err().map(ToString::to_string);
    let filter = filter.unwrap_or_else(|_| Targets::new().with_default(LevelFilter::INFO));
    // escape sequences belong on a terminal, never in a log
    let terminal = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(terminal);
    let registry = tracing_subscriber::registry().with(filter);
    let _ = match log.format {
        LogFormat::Text => registry.with(lines).try_init(),
        LogFormat::Json => registry.with(lines.json()).try_init(),
    };
    if let Some(wrong) = wrong {
        tracing::error!("log.level `{}` is no filter ({wrong}); logging at `info`", log.level);
    }
}
