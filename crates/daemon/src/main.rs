//! Entry of the daemon `fermatad` and of its helper modes.

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(status) = fermata_daemon::helper(&arguments) {
        return ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX));
    }
    ExitCode::SUCCESS
}
