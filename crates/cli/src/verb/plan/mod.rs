//! `fermata plan`: when to checkpoint, and where to send what does not fit.

mod figures;
mod interval;
mod machine;
mod schedule;
mod simulate;
mod topology;

use std::path::Path;

use fermata_planner::Problem;

use crate::failure::{Failure, USER};
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
    /// Where GPUs that overflow send their remainders.
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

/// The longest file of a machine or a problem, in bytes.
const LARGEST: u64 = 16 << 20;

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, Failure> {
    let name = path.display();
    let text = fermata_store::read_named(path, LARGEST)
        .map_err(|e| Failure::io(&format!("read `{name}`"), &e))?;
    serde_json::from_slice(&text)
        .map_err(|e| Failure::new(USER, format!("`{name}` is not what was expected: {e}")))
}

fn checked(problem: Problem) -> Result<Problem, Failure> {
    problem
        .check()
        .map_err(|e| Failure::new(USER, e.to_string()))?;
    Ok(problem)
}
