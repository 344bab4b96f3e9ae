//! `fermata logs`: print what a session's program has printed.

use fermata_control::user::{FromDaemon, Verb};

use crate::attend::{self, Follower};
use crate::daemon::{question, unexpected};
use crate::failure::Failure;
use crate::printer::Printer;

/// Print what a session's program has printed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata logs heat
  fermata logs -f heat      until the program ends")]
pub struct Args {
    /// Go on printing until the program ends.
    #[arg(long, short)]
    follow: bool,
    /// The session.
    name: String,
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    let session = match question(&Verb::Session { name: args.name }, printer)? {
        FromDaemon::Session(session) => session,
        other => return Err(unexpected(&other)),
    };
    if args.follow {
        attend::follow(&session, printer)?;
    } else {
        Follower::open(&session.log)?.copy(printer)?;
    }
    Ok(0)
}
