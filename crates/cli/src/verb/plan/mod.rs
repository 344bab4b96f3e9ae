//! `fermata plan`: when to checkpoint, and where to send what does not fit.

mod interval;
mod schedule;
mod simulate;

use std::path::Path;

use clap::ValueEnum;
use fermata_planner::{Problem, Topology, topology};

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
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    match args.what {
        What::Interval(args) => interval::call(&args, printer),
        What::Schedule(args) => schedule::call(&args, printer),
        What::Simulate(args) => simulate::call(&args, printer),
    }
}

/// Machines that need no file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Machine {
    /// Eight GPUs in a hybrid cube mesh: 24 GB/s a link, 12 GB/s to the host.
    Dgx1,
    /// GPUs behind a switch with 48 GB/s between every pair, 12 GB/s to the host.
    Switch,
    /// Four H200 as measured: 397 GB/s a port, 55.5 GB/s to the host, 167 GB/s together.
    H200x4,
}

impl Machine {
    /// The topology; `gpus` counts for machines of any size.
    fn topology(self, gpus: usize) -> Topology {
        match self {
            Machine::Dgx1 => topology::dgx1(),
            Machine::Switch => topology::all_to_all(gpus, 48e9, 12e9),
            Machine::H200x4 => topology::h200x4(),
        }
    }
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, Failure> {
    let name = path.display();
    let text = std::fs::read(path).map_err(|e| Failure::io(&format!("read `{name}`"), &e))?;
    serde_json::from_slice(&text)
        .map_err(|e| Failure::new(USER, format!("`{name}` is not what was expected: {e}")))
}

fn checked(problem: Problem) -> Result<Problem, Failure> {
    problem
        .check()
        .map_err(|e| Failure::new(USER, e.to_string()))?;
    Ok(problem)
}
