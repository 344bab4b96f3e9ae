//! `fermata wait`: wait until a session's program has ended, or is ready.

use std::time::Duration;

use fermata_control::user::{FromDaemon, SessionState, Verb};

use crate::attend;
use crate::daemon::{Waiting, question, unexpected};
use crate::failure::Failure;
use crate::printer::Printer;

/// How often a session is asked for.
const TURN: Duration = Duration::from_millis(50);

/// Wait until a session's program has ended.
///
/// Returns the program's exit status: 128+n for signal n. With --ready, returns 0 as soon as the program
/// says that it is ready (`fermata.ready()` in Python, `fermata_program_ready()` in C).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata wait heat && echo done
  fermata wait --ready server && fermata checkpoint server
  fermata wait --json heat | jq .exit_status")]
pub struct Args {
    /// The session.
    name: String,
    /// Wait only until the program says that it is ready, not until it ends.
    #[arg(long)]
    ready: bool,
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    if args.ready {
        return until_ready(args.name, printer);
    }
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

/// Returns the program's status if it ends before it is ready.
fn until_ready(name: String, printer: &Printer) -> Result<u8, Failure> {
    let verb = Verb::Session { name: name.clone() };
    let mut waiting = None;
    loop {
        let session = match question(&verb, printer)? {
            FromDaemon::Session(session) => session,
            other => return Err(unexpected(&other)),
        };
        let ended = session.state == SessionState::Exited;
        if session.ready || ended {
            if printer.is_json() {
                printer.document(&session)?;
            }
            return match ended {
                true => attend::status(&session, printer),
                false => Ok(0),
            };
        }
        let waiting = match &mut waiting {
            Some(waiting) => waiting,
            none => none.insert(Waiting::new(&name, printer)?),
        };
        // Polled: the daemon answers when a program has ended, not when it is ready. Its end ends the pause.
        waiting.poll(TURN)?;
    }
}
