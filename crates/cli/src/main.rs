//! The `fermata` command: reads arguments, calls one verb, turns its outcome into an exit status.
#![forbid(unsafe_code)]

mod args;
mod attend;
mod breakdown;
mod daemon;
mod doctor;
mod failure;
mod input;
mod place;
mod printer;
mod progress;
mod svg;
mod table;
mod units;
mod verb;

use std::process::ExitCode;

use clap::Parser;
use fermata_control::settings;

use crate::args::Cli;
use crate::failure::{Failure, USER};
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

/// A setting with a wrong value is an error before anything is done; what is no setting is told.
fn check_settings(printer: &Printer) -> Result<(), Failure> {
    let hint = "`docs/settings.md` lists the settings; unset it to have the default";
    let unknown = settings::check_environment()
        .map_err(|wrong| Failure::new(USER, wrong.to_string()).hint(hint))?;
    for setting in unknown {
        printer.warn(&setting.to_string());
    }
    Ok(())
}
