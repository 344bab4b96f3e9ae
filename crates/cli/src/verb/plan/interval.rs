//! `fermata plan interval`.

use fermata_planner::interval::{Costs, best, waste};
use serde_json::json;

use crate::failure::{Failure, USER};
use crate::printer::Printer;
use crate::units;

/// The checkpoint interval that wastes least.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  fermata plan interval --checkpoint 0.05 --restart 2 --failures-every 86400 --duration 8")]
pub struct Args {
    /// Seconds of the program's time that one checkpoint costs (the stop, not what runs behind it).
    #[arg(long, value_name = "SECONDS")]
    checkpoint: f64,
    /// Seconds from a failure to running again.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    restart: f64,
    /// Mean seconds between failures of the whole job.
    #[arg(long, value_name = "SECONDS")]
    failures_every: f64,
    /// Seconds until a checkpoint is complete; intervals are not shorter.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    duration: f64,
}

pub fn call(args: &Args, printer: &Printer) -> Result<u8, Failure> {
    let costs = Costs {
        checkpoint: args.checkpoint,
        restart: args.restart,
        between_failures: args.failures_every,
        shortest_interval: args.duration,
    };
    let interval = best(&costs).ok_or_else(|| {
        Failure::new(
            USER,
            "costs must not be negative, and there must be time between failures",
        )
    })?;
    let share = waste(&costs, interval);
    if printer.is_json() {
        printer.document(&json!({ "interval_seconds": interval, "waste": share }))?;
    } else {
        printer.data(&format!(
            "every {}, wasting {:.3} % of the time\n",
            units::seconds(interval),
            share * 100.0
        ))?;
    }
    Ok(0)
}
