//! `fermata plan interval`.

use clap::ValueEnum;
use fermata_planner::interval::{Costs, best, best_with_restart, waste, waste_with_restart};
use fermata_report::units;
use serde_json::json;

use crate::failure::{Failure, USER};
use crate::printer::Printer;

/// The checkpoint interval that wastes least.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata plan interval --checkpoint 0.05 --restart 2 --failures-every 86400 --duration 8
  fermata plan interval --model fti --checkpoint 0.5 --duration 4 --restart 62 --failures-every 3600")]
pub struct Args {
    /// Seconds of the program's time that one checkpoint costs (the stop, not what is done in the background).
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
    /// Which costs count.
    #[arg(long, value_enum, default_value = "stop")]
    model: Model,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Model {
    /// Only the stop: what is done in the background costs the program nothing (PhoenixOS, appendix A.1).
    Stop,
    /// The interval by the time until a checkpoint is complete and by restarts, the waste by the stop (FTI on GPUs,
    /// equations 1 and 2; `interval = "auto"` of the library).
    Fti,
}

pub fn call(args: &Args, printer: &Printer) -> Result<u8, Failure> {
    let costs = Costs {
        checkpoint: args.checkpoint,
        restart: args.restart,
        between_failures: args.failures_every,
        shortest_interval: args.duration,
    };
    let interval = match args.model {
        Model::Stop => best(&costs),
        // One that is not written in the background is complete when the program goes on.
        Model::Fti => best(&costs).and_then(|_| {
            best_with_restart(&Costs {
                checkpoint: args.duration.max(args.checkpoint),
                ..costs
            })
        }),
    };
    let interval = interval.ok_or_else(|| {
        let message = "costs must not be negative, and there must be time between failures";
        Failure::new(USER, message).hint(
            "`--checkpoint`, `--restart` and `--duration` are 0 or more, `--failures-every` is more than 0",
        )
    })?;
    let share = match args.model {
        Model::Stop => waste(&costs, interval),
        Model::Fti => waste_with_restart(&costs, interval),
    };
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
