//! `fermata wait`: wait until a session's program has ended.

use fermata_control::user::{FromDaemon, Verb};

use crate::attend;
use crate::daemon::{Daemon, unexpected};
use crate::failure::Failure;
use crate::printer::Printer;
use crate::progress::Progress;

/// Wait until a session's program has ended.
///
/// Returns the program's exit status: 128+n for signal n.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata wait heat && echo done
  fermata wait --json heat | jq .exit_status")]
pub struct Args {
    /// The session.
    name: String,
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    let daemon = Daemon::reach(printer)?;
    let quiet = Progress::new(printer);
    daemon.send(Verb::Wait { name: args.name }, &[])?;
    let ended = loop {
        match daemon.poll(std::time::Duration::from_secs(3600), &quiet)? {
            None => {}
            Some(FromDaemon::Session(session)) => break session,
            Some(other) => return Err(unexpected(&other)),
        }
    };
    if printer.is_json() {
        printer.document(&ended)?;
    }
    attend::status(&ended, printer)
}
