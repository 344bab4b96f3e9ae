//! `fermata pause`: free a session's GPU memory.

use std::path::PathBuf;

use fermata_control::user::{self, FromDaemon, Paused, Verb};
use fermata_report::units;

use crate::daemon::{Daemon, unexpected};
use crate::failure::{Failure, USER};
use crate::place;
use crate::printer::Printer;
use crate::progress::Progress;

/// Free a session's GPU memory; its program stands still until it is resumed.
///
/// Everything that the session has on its GPUs goes to host memory, or to a folder, and its workers end. The
/// processes stay as they are, parked as in a checkpoint's stop. If it fails, the program continues. Where images are kept in
/// memory, only what they lack is copied: after a checkpoint or a restore a pause takes the longer, the more has changed since.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata pause heat && other-program && fermata resume heat
  fermata pause heat --to /data/paused        its data on a disk
  fermata pause --json heat | jq .data.device_bytes")]
pub struct Args {
    /// A session's name, or a process id inside a session.
    #[arg(value_name = "NAME|PID")]
    session: String,
    /// An existing folder that holds the data meanwhile, instead of host memory.
    #[arg(long, value_name = "FOLDER")]
    to: Option<PathBuf>,
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    place::refuse_address(args.to.as_deref())?;
    let daemon = Daemon::reach(printer)?;
    let to = args.to.map(std::path::absolute).transpose();
    let to = to.map_err(|error| {
        let text = format!("the folder of `--to` cannot be found: {error}");
        Failure::new(USER, text).hint("name an existing folder, such as `--to /data/paused`")
    })?;
    let verb = Verb::Pause(user::Pause {
        session: args.session,
        to: to.as_deref().map(Into::into),
    });
    let done = match daemon.ask(verb, &Progress::new(printer))? {
        FromDaemon::Paused(done) => done,
        other => return Err(unexpected(&other)),
    };
    printer.outcome(&done, &summary(&done))?;
    Ok(0)
}

fn summary(done: &Paused) -> String {
    let place = match done.data.in_memory {
        true => "host memory",
        false => "files",
    };
    let waited = done.waited.as_ref().map_or(String::new(), |it| {
        let seconds = units::seconds(it.seconds);
        format!(
            "; before, it ran on for {seconds} until {} had ended",
            it.what
        )
    });
    format!(
        "session `{}` is paused: {} of device memory given back in {}, kept as {place} in `{}` ({} copied){waited}",
        done.session,
        units::bytes(done.data.device_bytes),
        units::seconds(done.seconds),
        done.data.folder.display(),
        units::bytes(done.data.written_bytes),
    )
}
