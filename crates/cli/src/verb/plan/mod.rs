//! `fermata plan`: when to checkpoint, and where to send what does not fit.

mod interval;
mod machine;
mod problem;
mod schedule;
mod simulate;
mod topology;

use crate::failure::Failure;
use crate::printer::Printer;

/// Plan intervals and collaborative schedules.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

// No doc comments on the variants: clap would show them in place of the verbs' own help.
#[derive(Debug, clap::Subcommand)]
enum What {
    Interval(interval::Args),
    Schedule(schedule::Args),
    Simulate(simulate::Args),
    Topology(topology::Args),
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    match args.what {
        What::Interval(args) => interval::call(&args, printer),
        What::Schedule(args) => schedule::call(&args, printer),
        What::Simulate(args) => simulate::call(&args, printer),
        What::Topology(args) => topology::call(&args, printer),
    }
}
