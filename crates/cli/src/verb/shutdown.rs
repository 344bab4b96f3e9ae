//! `fermata shutdown`: end the daemon.

use std::time::Duration;

use fermata_control::user::{FromDaemon, Verb};

use crate::daemon::{Daemon, unexpected};
use crate::failure::{Failure, INTERNAL};
use crate::printer::Printer;
use crate::progress::Progress;

/// How long the daemon may take to end its sessions and itself.
const LIMIT: Duration = Duration::from_secs(120);

/// End the daemon.
///
/// The daemon ends only if no session runs. The next command that needs a daemon starts one, with the settings that are in
/// force then. So `fermata shutdown --keep` applies new settings while programs run.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata shutdown
  fermata shutdown --keep && fermata ps      a daemon with new settings; the programs run on
  fermata shutdown --force                   ends all sessions, too")]
pub struct Args {
    /// Leave the sessions to the next daemon: their programs run on. Refused while one is being checkpointed, restored, paused
    /// or resumed.
    #[arg(long, conflicts_with = "force")]
    keep: bool,
    /// End all sessions with the signal KILL.
    #[arg(long)]
    force: bool,
}

/// Does it.
pub fn call(args: &Args, printer: &Printer) -> Result<u8, Failure> {
    let Some(daemon) = Daemon::find() else {
        printer.note("no daemon runs");
        return Ok(0);
    };
    let verb = match args.keep {
        true => Verb::Leave,
        false => Verb::Shutdown { force: args.force },
    };
    match daemon.ask(verb, &Progress::new(printer))? {
        FromDaemon::Done if daemon.ends_within(LIMIT) => {}
        FromDaemon::Done => {
            let text = format!("the daemon has not ended within {} s", LIMIT.as_secs());
            return Err(
                Failure::new(INTERNAL, text).hint("`fermata ps` says which sessions are left")
            );
        }
        other => return Err(unexpected(&other)),
    }
    printer.note("the daemon has ended");
    Ok(0)
}
