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
`fermata run` returns the status of the program; 125 when Fermata fails before the program starts.";

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

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Start a program under Fermata.
    Run(verb::run::Args),
    /// List sessions.
    Ps(verb::ps::Args),
    /// Print what a session's program has printed.
    Logs(verb::logs::Args),
    /// End a session, or send it another signal.
    Kill(verb::kill::Args),
    /// Wait until a session's program has ended.
    Wait(verb::wait::Args),
    /// Take an image of a session, or of a process that Fermata has not started.
    Checkpoint(verb::checkpoint::Args),
    /// Start sessions from an image.
    Restore(verb::restore::Args),
    /// Free a session's GPU memory; its program stands still until it is resumed.
    Pause(verb::pause::Args),
    /// Continue a paused session.
    Resume(verb::resume::Args),
    /// Keep a program alive: take images of it, and restart it from the newest when it dies.
    Protect(verb::protect::Args),
    /// Serve HTTP requests from instances of a program that are restored on demand.
    Function(verb::function::Args),
    /// List, examine, compare and remove images.
    Images(verb::images::Args),
    /// Draw how an image was taken, as a page or as a trace.
    Report(verb::report::Args),
    /// Run a program and write which memory it touches.
    Trace(verb::trace::Args),
    /// Plan intervals and collaborative schedules.
    Plan(verb::plan::Args),
    /// Measure what Fermata costs on this machine.
    Bench(verb::bench::Args),
    /// Say what this host, or a session, can and cannot do, and the fix.
    Doctor(verb::doctor::Args),
    /// Run the daemon in the foreground.
    Serve(verb::serve::Args),
    /// Print the versions of the command and the daemon.
    Version(verb::version::Args),
    /// Print a completion script for a shell.
    Completions(verb::completions::Args),
    /// Write the files that packages install beside the programs.
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
            Self::Version(args) => verb::version::call(args, printer),
            Self::Completions(args) => verb::completions::call(args, Cli::command(), printer),
            Self::Share(args) => verb::share::call(&args, Cli::command()),
        }
    }
}
