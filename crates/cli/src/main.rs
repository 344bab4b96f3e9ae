//! The `fermata` command: reads arguments, calls one verb, turns its outcome into an exit status.
#![forbid(unsafe_code)]

mod args;
mod attend;
mod daemon;
mod doctor;
mod failure;
mod input;
mod place;
mod printer;
mod progress;
mod verb;
mod words;

use std::process::ExitCode;

use clap::Parser;
use fermata_control::settings::{self, FileError, SettingsError};

use crate::args::Cli;
use crate::failure::{Failure, USER, sentence};
use crate::printer::Printer;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let printer = Printer::new(cli.json, cli.quiet);
    let starts_program = cli.verb.starts_program();
    let done = check_settings(&printer).and_then(|()| cli.verb.call(&printer));
    match done {
        Ok(status) => ExitCode::from(status),
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            let failure = if starts_program {
                failure.before_start()
            } else {
                failure
            };
            printer.failure(&failure);
            ExitCode::from(failure.status)
        }
    }
}

/// Reads the configuration files. A setting with a wrong value is an error before anything is done; what is no setting is
/// told.
fn check_settings(printer: &Printer) -> Result<(), Failure> {
    let unknown = settings::load().map_err(|wrong| {
        let hint = match &wrong {
            SettingsError::Environment(_) => {
                "unset it to have the default; `fermata doctor --settings` then lists the settings"
            }
            SettingsError::File(FileError::Trust(_)) => {
                "the file and its rights must be yours or root's alone: `chmod go-w`; `FERMATA_CONFIG` names another file"
            }
            SettingsError::File(_) | SettingsError::Missing(_) => {
                "`FERMATA_CONFIG=/dev/null` reads no file; with it `fermata doctor --settings` lists the settings"
            }
        };
        Failure::new(USER, sentence(&wrong)).hint(hint)
    })?;
    for setting in unknown {
        printer.warn(&setting.to_string());
    }
    Ok(())
}
