//! The `fermata` command: reads arguments, calls one verb, turns its outcome into an exit status.
#![forbid(unsafe_code)]

mod args;
mod attend;
mod breakdown;
mod daemon;
mod doctor;
mod failure;
mod place;
mod printer;
mod progress;
mod svg;
mod table;
mod units;
mod verb;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Cli;
use crate::printer::Printer;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let printer = Printer::new(cli.json, cli.quiet);
    let starts_program = cli.verb.starts_program();
    match cli.verb.call(&printer) {
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
