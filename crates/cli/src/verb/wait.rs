//! `fermata wait`: wait until a session's program has ended.

use std::time::Duration;

use crate::attend;
use crate::daemon::Waiting;
use crate::failure::Failure;
use crate::printer::Printer;

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
    let mut waiting = Waiting::new(&args.name, printer)?;
    let ended = loop {
        if let Some(session) = waiting.poll(Duration::from_secs(3600))? {
            break session;
        }
    };
    if printer.is_json() {
        printer.document(&ended)?;
    }
    attend::status(&ended, printer)
}
