//! `fermata serve`: run the daemon in the foreground.

use std::os::unix::process::CommandExt;
use std::process::Command;

use fermata_control::Paths;
use fermata_control::user::STATUS_TAKEN;

use crate::daemon::{Daemon, executable};
use crate::failure::Failure;
use crate::printer::Printer;

/// Run the daemon in the foreground.
///
/// Usually the daemon is started by the first command that needs it. Use this under a service
/// manager, or to see the daemon's own messages. The exit status is 75 if another daemon serves the runtime folder.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata serve
  FERMATA_RUNTIME_DIR=/tmp/mine fermata serve      beside the usual one")]
pub struct Args {}

/// Does it.
pub fn call(_args: Args, printer: &Printer) -> Result<u8, Failure> {
    let paths = Paths::find();
    if Daemon::find().is_some() {
        let text = format!("a daemon runs already, at `{}`", paths.socket().display());
        return Err(Failure::new(STATUS_TAKEN, text)
            .hint("another one needs another folder: set `FERMATA_RUNTIME_DIR`"));
    }
    let executable = executable(&paths);
    printer.note(&format!(
        "the daemon will listen at `{}`",
        paths.socket().display()
    ));
    // Returns only when it fails.
    let error = Command::new(&executable).envs(paths.variables()).exec();
    Err(Failure::io(
        &format!("start `{}`", executable.display()),
        &error,
    ))
}
