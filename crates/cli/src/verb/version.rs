//! `fermata version`: versions of the command and of the daemon.

use fermata_control::PROTOCOL;
use fermata_control::user::{FromDaemon, Verb};
use serde_json::json;

use crate::daemon::{Daemon, unexpected};
use crate::failure::Failure;
use crate::printer::Printer;
use crate::progress::Progress;

/// Print the versions of the command and the daemon.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata version
  fermata version --json")]
pub struct Args {}

/// Does it.
pub fn call(_args: Args, printer: &Printer) -> Result<u8, Failure> {
    let own = env!("CARGO_PKG_VERSION");
    let daemon = match Daemon::find() {
        None => None,
        Some(daemon) => match daemon.ask(Verb::Status, &Progress::new(printer))? {
            FromDaemon::Status(status) => Some(status),
            other => return Err(unexpected(&other)),
        },
    };
    if printer.is_json() {
        printer.document(&json!({ "version": own, "protocol": PROTOCOL,
            "image_schema": fermata_store::image::SCHEMA_VERSION, "daemon": daemon }))?;
        return Ok(0);
    }
    let running = match daemon {
        None => "not running".to_owned(),
        Some(s) => format!("{} (process {}, {} running)", s.version, s.pid, s.running),
    };
    printer.data(&format!("fermata {own}\ndaemon  {running}\n"))?;
    Ok(0)
}
