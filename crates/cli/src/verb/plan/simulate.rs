//! `fermata plan simulate`: blocking times of every scheduler over a trace, or all figures of the paper's evaluation.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use fermata_planner::{Problem, simulate, trace};
use fermata_report::figures::{self, Figure};
use fermata_report::table::Table;
use serde_json::json;

use super::machine::Machine;
use crate::failure::Failure;
use crate::printer::Printer;

/// Blocking times of every scheduler over a trace.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata plan simulate --trace application --free-mb 80
  fermata plan simulate --trace synthetic --machine switch --gpus 16 --out plots
  fermata plan simulate --figures figures")]
pub struct Args {
    /// Checkpoint sizes: growing as in the paper's application, or drawn at random from them.
    #[arg(long, value_enum, default_value = "application")]
    trace: Trace,
    /// The machine.
    #[arg(long, value_enum, default_value = "dgx1")]
    machine: Machine,
    /// GPUs, for machines of any size.
    #[arg(long, default_value_t = 8)]
    gpus: usize,
    /// Free memory on every GPU, MB.
    #[arg(long, default_value_t = 128)]
    free_mb: u64,
    /// Seed of the trace.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for the CSV and the plots.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Folder for figures 3 to 10 of *Collaborative Multi-Level Checkpointing*, as CSV and plots.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["out", "trace", "machine", "gpus", "free_mb"])]
    figures: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Trace {
    Application,
    Synthetic,
}

/// A scheduler's blocking time as a multiple of the optimum's.
fn ratio(seconds: f64, best: f64) -> f64 {
    if best > 0.0 { seconds / best } else { 1.0 }
}

pub fn call(args: &Args, printer: &Printer) -> Result<u8, Failure> {
    if let Some(folder) = &args.figures {
        make(folder)?;
        figures::evaluation(args.seed, &mut |figure| save(folder, figure))?;
        printer.note(&format!("wrote figures 3 to 10 in `{}`", folder.display()));
        return Ok(0);
    }
    let topology = args.machine.topology(args.gpus)?;
    let gpus = topology.host.len();
    let sizes = match args.trace {
        Trace::Application => trace::application(gpus, args.seed),
        Trace::Synthetic => trace::synthetic(gpus, trace::SNAPSHOTS, args.seed),
    };
    let free = args.free_mb.saturating_mul(1_000_000);
    let rows = simulate::run(&sizes, &topology, free)?;
    let problem = Problem::from_sizes(topology, &sizes[sizes.len() / 2], &vec![free; gpus]);
    if let Some(folder) = &args.out {
        make(folder)?;
        save(folder, &blocking(&rows))?;
        printer.note(&format!(
            "wrote `{}`",
            folder.join("blocking.csv").display()
        ));
    }
    let names = ["local_only", "greedy", "min_time", "optimum"];
    let computed = figures::microseconds(&problem);
    let summary = names.into_iter().zip(computed).enumerate();
    let summary = summary.map(|(i, (name, microseconds))| {
        let ratios = || rows.iter().map(|r| ratio(r.seconds()[i], r.optimum));
        let mean = ratios().sum::<f64>() / rows.len() as f64;
        (name, mean, ratios().fold(1.0, f64::max), microseconds)
    });
    if printer.is_json() {
        let schedulers: Vec<_> = summary
            .map(|(name, mean, worst, microseconds)| {
                json!({ "scheduler": name, "mean_ratio": mean, "worst_ratio": worst,
                    "compute_seconds": microseconds / 1e6 })
            })
            .collect();
        printer.document(
            &json!({ "gpus": gpus, "snapshots": rows.len(), "schedulers": schedulers }),
        )?;
        return Ok(0);
    }
    let mut table = Table::new(&["SCHEDULER", "MEAN", "WORST", "TO COMPUTE"]);
    for (name, mean, worst, microseconds) in summary {
        table.row([
            name.to_owned(),
            format!("{mean:.2}x"),
            format!("{worst:.2}x"),
            format!("{microseconds:.1} us"),
        ]);
    }
    printer.data(&table.render())?;
    Ok(0)
}

fn make(folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder)
        .map_err(|e| Failure::io(&format!("make `{}`", folder.display()), &e))
}

/// Writes NAME.csv and NAME.svg.
fn save(folder: &Path, figure: &Figure<'_>) -> Result<(), Failure> {
    for (ending, text) in [("csv", figure.csv()), ("svg", figure.svg())] {
        let path = folder.join(format!("{}.{ending}", figure.name));
        std::fs::write(&path, text)
            .map_err(|e| Failure::io(&format!("write `{}`", path.display()), &e))?;
    }
    Ok(())
}

fn blocking(rows: &[simulate::Row]) -> Figure<'static> {
    let row = |r: &simulate::Row| {
        let times = r.seconds();
        let ratios = times.map(|s| ratio(s, r.optimum));
        let numbers = times.into_iter().chain(ratios.into_iter().take(3));
        std::iter::once(r.snapshot as f64).chain(numbers).collect()
    };
    Figure {
        name: "blocking".into(),
        title: "Blocking time against the optimum".into(),
        columns: &[
            "snapshot",
            "local_only_s",
            "greedy_s",
            "min_time_s",
            "optimum_s",
            "local_only",
            "greedy",
            "min_time",
        ],
        rows: rows.iter().map(row).collect(),
        plotted: 5..8,
        y: "times the optimum",
    }
}
