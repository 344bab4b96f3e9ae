//! `fermata shutdown`: end the daemon.

use std::time::Duration;

use fermata_control::user::{FromDaemon, Verb};
use fermata_control::wait;

use crate::daemon::{Daemon, unexpected};
use crate::failure::{Failure, INTERNAL};
use crate::printer::Printer;
use crate::progress::Progress;

/// How long systemd may take to start the next daemon.
const RESTART: Duration = Duration::from_secs(10);
/// Between two looks for it.
const LOOK: Duration = Duration::from_millis(50);
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
    /// or resumed; a checkpoint by process id that is under way fails. The next daemon cannot learn the exit status of a program that
    /// this one has started: `fermata run` ends with 124 then, and `fermata protect` restores the newest image once.
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
    let is_service = daemon.is_service();
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
    if args.keep && is_service {
        // Polled, because systemd tells nothing of it. A command that needs a daemon before would start one outside of the unit.
        match wait::until(RESTART, LOOK, Daemon::find) {
            Some(_) => printer.note("systemd has started the next one"),
            None => printer
                .warn("systemd has not started the next one: `systemctl status fermata` says why"),
        }
    }
    Ok(0)
}
