//! Entry of the daemon `fermatad` and of its helper modes.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(status) = fermata_daemon::helper(&arguments) {
        return ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX));
    }
    fermata_daemon::close_inherited();
    match arguments.first().and_then(|a| a.to_str()) {
        None if arguments.is_empty() => {}
        Some("--version") => {
            println!("fermatad {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!(
                "fermatad: takes no arguments; `fermata doctor --settings` lists its settings"
            );
            return ExitCode::from(2);
        }
    }
    if let Err(error) = fermata_daemon::leave_session() {
        eprintln!("fermatad: cannot begin anew outside of the session it was started in: {error}");
        return ExitCode::FAILURE;
    }
    match fermata_daemon::serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fermatad: {error:#}");
            match error.is::<fermata_daemon::Taken>() {
                true => ExitCode::from(fermata_control::user::STATUS_TAKEN),
                false => ExitCode::FAILURE,
            }
        }
    }
}
