//! `fermata plan simulate`: the evaluation of collaborative multi-level checkpoints (figures 6, 7 and
//! 10 of the paper) as CSV and SVG.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::ValueEnum;
use fermata_planner::{Problem, baseline, greedy, min_time, optimum, simulate, trace};
use serde_json::json;

use super::Machine;
use crate::failure::{Failure, USER};
use crate::printer::Printer;
use crate::svg::{Plot, Series};
use crate::table::Table;

/// Blocking times of every scheduler over a trace.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata plan simulate --trace application --free-mb 80
  fermata plan simulate --trace synthetic --machine switch --gpus 16 --out figures")]
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
    let topology = args.machine.topology(args.gpus);
    let gpus = topology.host.len();
    let sizes = match args.trace {
        Trace::Application => trace::application(gpus, args.seed),
        Trace::Synthetic => trace::synthetic(gpus, trace::SNAPSHOTS, args.seed),
    };
    let free = args.free_mb * 1_000_000;
    let rows =
        simulate::run(&sizes, &topology, free).map_err(|e| Failure::new(USER, e.to_string()))?;
    let problem = Problem::from_sizes(topology, &sizes[sizes.len() / 2], &vec![free; gpus]);
    let times = [
        ("local_only", time(|| baseline::local_only(&problem))),
        ("greedy", time(|| greedy::greedy(&problem))),
        (
            "min_time",
            time(|| min_time::min_time(&problem, simulate::PAPER_UNIT)),
        ),
        ("optimum", time(|| optimum::optimum(&problem))),
    ];
    let of = |name: &str| -> Vec<f64> {
        let pick = |r: &simulate::Row| match name {
            "local_only" => r.local_only,
            "greedy" => r.greedy,
            "min_time" => r.min_time,
            _ => r.optimum,
        };
        rows.iter().map(|r| ratio(pick(r), r.optimum)).collect()
    };
    if let Some(folder) = &args.out {
        write(
            folder,
            &rows,
            &[
                ("local only", of("local_only")),
                ("greedy", of("greedy")),
                ("min-time", of("min_time")),
            ],
        )?;
        printer.note(&format!(
            "wrote `{}`",
            folder.join("blocking.csv").display()
        ));
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let summary = times.map(|(name, seconds)| {
        let ratios = of(name);
        (
            name,
            mean(&ratios),
            ratios.iter().copied().fold(1.0, f64::max),
            seconds,
        )
    });
    if printer.is_json() {
        let schedulers: Vec<_> = summary
            .iter()
            .map(|(name, mean, worst, seconds)| {
                json!({ "scheduler": name, "mean_ratio": mean, "worst_ratio": worst, "compute_seconds": seconds })
            })
            .collect();
        printer.document(
            &json!({ "gpus": gpus, "snapshots": rows.len(), "schedulers": schedulers }),
        )?;
        return Ok(0);
    }
    let mut table = Table::new(&["SCHEDULER", "MEAN", "WORST", "TO COMPUTE"]);
    for (name, mean, worst, seconds) in summary {
        table.row([
            name.to_owned(),
            format!("{mean:.2}x"),
            format!("{worst:.2}x"),
            format!("{:.1} us", seconds * 1e6),
        ]);
    }
    printer.data(&table.render())?;
    Ok(0)
}

/// Median seconds of a few runs.
fn time<T>(mut run: impl FnMut() -> T) -> f64 {
    let mut once = |_| {
        let start = Instant::now();
        std::hint::black_box(run());
        start.elapsed().as_secs_f64()
    };
    let mut times: Vec<f64> = (0..9).map(&mut once).collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn write(
    folder: &Path,
    rows: &[simulate::Row],
    series: &[(&str, Vec<f64>)],
) -> Result<(), Failure> {
    let save = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text)
            .map_err(|e| Failure::io(&format!("write `{}`", path.display()), &e))
    };
    std::fs::create_dir_all(folder)
        .map_err(|e| Failure::io(&format!("make `{}`", folder.display()), &e))?;
    let mut csv = String::from("snapshot,local_only_s,greedy_s,min_time_s,optimum_s\n");
    for r in rows {
        csv += &format!(
            "{},{:.9},{:.9},{:.9},{:.9}\n",
            r.snapshot, r.local_only, r.greedy, r.min_time, r.optimum
        );
    }
    save("blocking.csv", csv)?;
    let points = |values: &[f64]| {
        values
            .iter()
            .enumerate()
            .map(|(i, v)| (i as f64, *v))
            .collect()
    };
    let plot = Plot {
        title: "Blocking time against the optimum",
        x: "snapshot",
        y: "times the optimum",
        series: series
            .iter()
            .map(|(name, values)| Series {
                name,
                points: points(values),
            })
            .collect(),
    };
    save("blocking.svg", plot.render())
}
