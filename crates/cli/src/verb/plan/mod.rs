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

#[derive(Debug, clap::Subcommand)]
enum What {
    /// The checkpoint interval that wastes least.
    Interval(interval::Args),
    /// Where GPUs send checkpoint data that does not fit their own memory.
    Schedule(schedule::Args),
    /// Blocking times of every scheduler over a trace.
    Simulate(simulate::Args),
    /// How a machine's GPUs are linked.
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
