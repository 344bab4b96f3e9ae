//! `fermata plan schedule`.

use std::path::PathBuf;

use clap::ValueEnum;
use fermata_planner::{
    Destination, Problem, Schedule, baseline, greedy, min_time, optimum, simulate,
};
use fermata_report::table::Table;
use fermata_report::units;
use serde_json::json;

use super::machine::{self, Machine};
use super::problem::{checked, read};
use crate::failure::{Failure, USER};
use crate::printer::Printer;

/// Where GPUs send checkpoint data that does not fit their own memory.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata plan schedule --machine here --sizes 100,20
  fermata plan schedule --machine h200x4 --sizes 40,10,5,5 --free 16,16,16,16
  fermata plan schedule --topology machine.json --sizes 40,10,5,5 --free 16,16,16,16
  fermata plan schedule --problem problem.json --algorithm greedy

A topology file holds an object with `links`, `host`, and optionally `port_out`, `port_in`, `host_total`, all in bytes
per second; `fermata plan topology --json` writes one. A problem file holds an object with `topology`, `remainder` and
`spare` (bytes per GPU).")]
pub struct Args {
    /// A problem in a file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["machine", "topology", "sizes", "free"])]
    problem: Option<PathBuf>,
    /// This machine, or a known one.
    #[arg(long, value_enum, required_unless_present_any = ["problem", "topology"])]
    machine: Option<Machine>,
    /// A machine in a file.
    #[arg(long, value_name = "FILE", conflicts_with = "machine")]
    topology: Option<PathBuf>,
    /// Checkpoint size of each GPU, GiB.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "GIB,...",
        required_unless_present = "problem"
    )]
    sizes: Vec<f64>,
    /// Memory of each GPU that may be used, GiB; of this machine what is free now, but for a thirty-second of all.
    #[arg(long, value_delimiter = ',', value_name = "GIB,...")]
    free: Vec<f64>,
    /// Which scheduler.
    #[arg(long, value_enum, default_value = "optimum")]
    algorithm: Algorithm,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Algorithm {
    /// Everything to the host.
    LocalOnly,
    /// The paper's algorithm 1.
    Greedy,
    /// The paper's algorithm 2.
    MinTime,
    /// The least time possible.
    Optimum,
}

impl Algorithm {
    fn run(self, problem: &Problem) -> Schedule {
        match self {
            Algorithm::LocalOnly => baseline::local_only(problem),
            Algorithm::Greedy => greedy::greedy(problem),
            Algorithm::MinTime => min_time::min_time(problem, simulate::PAPER_UNIT),
            Algorithm::Optimum => optimum::optimum(problem),
        }
    }
}

fn bytes(gib: &[f64]) -> Result<Vec<u64>, Failure> {
    let one = |g: &f64| {
        let valid = g.is_finite() && *g >= 0.0 && *g < 1e9;
        valid
            .then_some((g * f64::from(1u32 << 30)) as u64)
            .ok_or_else(|| Failure::new(USER, format!("`{g}` is no size in GiB")))
    };
    gib.iter().map(one).collect()
}

fn problem(args: &Args) -> Result<Problem, Failure> {
    if let Some(path) = &args.problem {
        return checked(read(path)?);
    }
    let (topology, room) = match (&args.topology, args.machine) {
        (Some(path), _) => (read(path)?, None),
        (None, Some(Machine::Here)) => {
            let gpus = machine::here()?;
            (machine::topology_of(&gpus), Some(machine::room(&gpus)))
        }
        (None, known) => {
            let known = known.unwrap_or(Machine::H200x4);
            (known.topology(args.sizes.len())?, None)
        }
    };
    let free = match room.filter(|_| args.free.is_empty()) {
        Some(room) => room,
        None => bytes(&args.free)?,
    };
    if args.sizes.len() != free.len() {
        let message = format!(
            "`--sizes` has {} entries for {} GPUs' free memory",
            args.sizes.len(),
            free.len()
        );
        return Err(
            Failure::new(USER, message).hint("give a `--sizes` and a `--free` for each GPU")
        );
    }
    checked(Problem::from_sizes(topology, &bytes(&args.sizes)?, &free))
}

pub fn call(args: &Args, printer: &Printer) -> Result<u8, Failure> {
    let problem = problem(args)?;
    let schedule = args.algorithm.run(&problem);
    let host_only = baseline::local_only(&problem).seconds;
    if printer.is_json() {
        printer.document(
            &json!({ "seconds": schedule.seconds, "local_only_seconds": host_only,
            "transfers": schedule.transfers }),
        )?;
        return Ok(0);
    }
    let mut table = Table::new(&["FROM", "TO", "BYTES"]);
    for t in &schedule.transfers {
        let to = match t.to {
            Destination::Gpu(gpu) => format!("GPU {gpu}"),
            Destination::Host => "host".to_owned(),
        };
        table.row([format!("GPU {}", t.from), to, units::bytes(t.bytes)]);
    }
    printer.data(&table.render())?;
    printer.data(&format!(
        "done in {}; over the host alone: {}\n",
        units::seconds(schedule.seconds),
        units::seconds(host_only)
    ))?;
    Ok(0)
}
