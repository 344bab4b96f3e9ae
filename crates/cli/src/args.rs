//! The command line as a whole: options that every verb has, and the list of verbs.

use clap::{CommandFactory, Parser, Subcommand};

use crate::failure::Failure;
use crate::printer::Printer;
use crate::verb;

const AFTER_HELP: &str = "\
Examples:
  fermata run --name heat -- ./heat2d --steps 1000    start a program
  fermata checkpoint heat                             take an image of it while it works
  fermata kill heat                                   end it
  fermata restore heat-1                              continue where the image was taken

Exit status: 0 fine, 1 the request or the user's files, 2 wrong usage or a bug, 3 partly done, 10 no such image
or session, 11 locked, 12 damaged, 13 this host cannot, 14 not checkpointable, 130 interrupted.
`fermata run`, `trace`, `wait`, and `restore` of one session without --detach, return the status of the program.
`run` and `trace` return 125 when Fermata fails before the program starts, 124 when it fails afterwards (the program
may still run).";

/// Checkpoint, restore and copy running GPU programs.
#[derive(Debug, Parser)]
#[command(name = "fermata", version, after_help = AFTER_HELP, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
    /// Print one JSON document on standard output.
    #[arg(long, global = true, display_order = 900)]
    pub json: bool,
    /// Print no notes and no progress, only results and errors.
    #[arg(long, short, global = true, display_order = 901)]
    pub quiet: bool,
}

// No doc comments on the variants: clap would show them in place of the verbs' own help.
/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    Run(verb::run::Args),
    Ps(verb::ps::Args),
    Logs(verb::logs::Args),
    Kill(verb::kill::Args),
    Wait(verb::wait::Args),
    Checkpoint(verb::checkpoint::Args),
    Restore(verb::restore::Args),
    Pause(verb::pause::Args),
    Resume(verb::resume::Args),
    Protect(verb::protect::Args),
    Function(verb::function::Args),
    Images(verb::images::Args),
    Report(verb::report::Args),
    Trace(verb::trace::Args),
    Plan(verb::plan::Args),
    Bench(verb::bench::Args),
    Doctor(verb::doctor::Args),
    Serve(verb::serve::Args),
    Shutdown(verb::shutdown::Args),
    Version(verb::version::Args),
    Completions(verb::completions::Args),
    #[command(hide = true)]
    Share(verb::share::Args),
}

impl Verb {
    /// Whether the exit status is the program's, so that own failures need one of their own.
    pub fn starts_program(&self) -> bool {
        matches!(self, Self::Run(_) | Self::Trace(_))
    }

    /// Does it; returns the exit status.
    pub fn call(self, printer: &Printer) -> Result<u8, Failure> {
        match self {
            Self::Run(args) => verb::run::call(args, printer),
            Self::Ps(args) => verb::ps::call(args, printer),
            Self::Logs(args) => verb::logs::call(args, printer),
            Self::Kill(args) => verb::kill::call(args, printer),
            Self::Wait(args) => verb::wait::call(args, printer),
            Self::Checkpoint(args) => verb::checkpoint::call(args, printer),
            Self::Restore(args) => verb::restore::call(args, printer),
            Self::Pause(args) => verb::pause::call(args, printer),
            Self::Resume(args) => verb::resume::call(args, printer),
            Self::Protect(args) => verb::protect::call(args, printer),
            Self::Function(args) => verb::function::call(args, printer),
            Self::Images(args) => verb::images::call(args, printer),
            Self::Report(args) => verb::report::call(&args, printer),
            Self::Trace(args) => verb::trace::call(args, printer),
            Self::Plan(args) => verb::plan::call(args, printer),
            Self::Bench(args) => verb::bench::call(args, printer),
            Self::Doctor(args) => verb::doctor::call(args, printer),
            Self::Serve(args) => verb::serve::call(args, printer),
            Self::Shutdown(args) => verb::shutdown::call(&args, printer),
            Self::Version(args) => verb::version::call(args, printer),
            Self::Completions(args) => verb::completions::call(args, Cli::command(), printer),
            Self::Share(args) => verb::share::call(&args, Cli::command()),
        }
    }
}
