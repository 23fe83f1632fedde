//! Composition root: the only file that knows both houses.
//!
//! It reads the command line, hands `serve` and `store check` to the service's house and the rest to the
//! command line, and turns what they end with into an exit code.

use dray::cli::serve::{ServeArgs, StoreCheckArgs, StoreCommand};
use dray::cli::{self, Command};
use dray::client::Exit;
use dray::config::{Flags, Settings};
use std::process::ExitCode;
use std::time::Duration;

/// glibc learns from it: see [`keep_freed`].
const KEPT: usize = 4 << 20;

/// How long threads may still block once everything is told.
const LAST_BREATH: Duration = Duration::from_millis(200);

/// Has the allocator keep freed memory for the next buffers instead of handing it back to the kernel, which cleared 400 KiB anew for every
/// read from a socket: 5 % of the service's CPU in a push of footage, 10 % in a staging, up to 6 % of the client's.
///
/// By malloc's dynamic threshold (mallopt(3), `M_MMAP_THRESHOLD`): after a block of this size was given back, blocks up to it come from the heap, and
/// an arena of glibc keeps at most twice as much at its end. With another allocator it does nothing.
fn keep_freed() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(KEPT)));
}

fn main() -> ExitCode {
    keep_freed();
    let cli = match cli::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return cli::failed(&cli.global, "runtime", &error),
    };
    let code = runtime.block_on(async {
        match cli.command {
            Command::Serve(args) => serve(&cli.global, args).await,
            Command::Store(StoreCommand::Check(args)) => check_store(&cli.global, args).await,
            command => cli::run(cli::Cli { global: cli.global, command }).await,
        }
    });
    runtime.shutdown_timeout(LAST_BREATH);
    code
}

async fn serve(global: &cli::session::Global, args: ServeArgs) -> ExitCode {
    let flags =
        Flags { config: args.config, data: args.data, listen: args.listen, store: args.store, database: args.database };
    let settings = match Settings::from_process(&flags) {
        Ok(settings) => settings,
        Err(error) => return cli::failed(global, "settings", &error),
    };
    if args.check {
        return cli::print(&settings.to_masked_toml());
    }
    match dray::server::serve(settings).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => cli::failed(global, "serve", &error),
    }
}

async fn check_store(global: &cli::session::Global, args: StoreCheckArgs) -> ExitCode {
    let flags = Flags { config: args.config, store: Some(args.url), ..Flags::default() };
    let settings = match Settings::from_process(&flags) {
        Ok(settings) => settings,
        Err(error) => return cli::failed(global, "settings", &error),
    };
    cli::logging::start(global, "warn");
    let shown = match dray::server::store_check(&settings.store_resolved()).await {
        Ok(check) if check.refused => {
            cli::show(global, &check.json, &check.text).and(Err(cli::Error::Ended(Exit::Failed)))
        }
        Ok(check) => cli::show(global, &check.json, &check.text),
        Err(what) => Err(cli::Error::Role { role: "store_check", what, causes: Vec::new() }),
    };
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.tell(global.format()),
    }
}
