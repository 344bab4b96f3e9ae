//! `fermata resume`: continue a paused session.

use fermata_control::user::{self, FromDaemon, Resumed, Verb};
use fermata_report::units;

use crate::daemon::{Daemon, unexpected};
use crate::failure::Failure;
use crate::printer::Printer;
use crate::progress::Progress;

/// Continue a paused session.
///
/// Its GPU memory is allocated again before the program runs, and its data is loaded while it runs: first what the program
/// copies; kernels wait until all data is loaded. If that fails, for example for lack of GPU memory, the session stays
/// paused and loses nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata resume heat
  fermata resume --eager heat                 all data is loaded before the program runs
  fermata resume --on-demand heat             kernels wait only for the buffers that they name")]
pub struct Args {
    /// A session's name, or a process id inside a session.
    #[arg(value_name = "NAME|PID")]
    session: String,
    /// Load all data before the program runs.
    #[arg(long)]
    eager: bool,
    /// Let a kernel run as soon as the buffers of its access set are loaded. If it touches others before they are
    /// loaded, all further CUDA calls of the program fail: not for programs whose kernels leave their buffers.
    #[arg(long, conflicts_with = "eager")]
    on_demand: bool,
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    let daemon = Daemon::reach(printer)?;
    let verb = Verb::Resume(user::Resume {
        session: args.session,
        eager: args.eager,
        on_demand: args.on_demand,
    });
    let done = match daemon.ask(verb, &Progress::new(printer))? {
        FromDaemon::Resumed(done) => done,
        other => return Err(unexpected(&other)),
    };
    printer.outcome(&done, &summary(&done))?;
    Ok(0)
}

fn summary(done: &Resumed) -> String {
    let coming = match done.coming {
        true => "; its data comes while it runs",
        false => "",
    };
    format!(
        "session `{}` goes on after {}, with {} of device memory{coming}",
        done.session,
        units::seconds(done.seconds),
        units::bytes(done.device_bytes),
    )
}
