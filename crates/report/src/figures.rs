//! The evaluation of *Collaborative Multi-Level Checkpointing*, figures 3 to 10, each as CSV and SVG of the same
//! numbers. Blocking times are computed; times to compute a schedule (8, 9, 10c) are this machine's.

use std::ops::Range;
use std::time::Instant;

use fermata_planner::{
    Problem, ProblemError, Topology, baseline, greedy, min_time, optimum, simulate, topology, trace,
};

use crate::svg::{Plot, Series};

const MB: f64 = 1e6;
/// Free memory of each GPU in the three parts of figures 6 to 9, in MB; the last one in figure 10 too.
const FREE: [(&str, u64); 3] = [("a", 80), ("b", 128), ("c", 160)];
/// GPUs of figure 10, behind a switch.
const GPUS: [usize; 9] = [8, 16, 32, 48, 64, 80, 96, 112, 128];
/// Snapshots that figure 10 takes the mean of, for each number of GPUs.
const DRAWS: usize = 5;
/// Snapshots of figure 4.
const SHOWN: [usize; 5] = [100, 250, 400, 550, 700];
/// Times that a schedule is computed for the least time of all.
const REPEATS: usize = 3;

/// One figure: a table whose first column goes along the horizontal axis.
pub struct Figure<'a> {
    /// File name without extension.
    pub name: String,
    /// Above the plot.
    pub title: String,
    /// Names of the columns.
    pub columns: &'a [&'a str],
    /// Their numbers.
    pub rows: Vec<Vec<f64>>,
    /// Which columns the plot has lines of.
    pub plotted: Range<usize>,
    /// Beside the vertical axis.
    pub y: &'a str,
}

impl Figure<'_> {
    /// The table, a line for each row.
    pub fn csv(&self) -> String {
        let mut csv = self.columns.join(",") + "\n";
        for row in &self.rows {
            let cells: Vec<String> = row.iter().map(f64::to_string).collect();
            csv += &(cells.join(",") + "\n");
        }
        csv
    }

    /// The plot.
    pub fn svg(&self) -> String {
        let line = |column: usize| Series {
            name: self.columns[column],
            points: self.rows.iter().map(|r| (r[0], r[column])).collect(),
        };
        let plot = Plot {
            title: &self.title,
            x: self.columns[0],
            y: self.y,
            series: self.plotted.clone().map(line).collect(),
        };
        plot.render()
    }
}

/// Makes all of them, one after the other, and gives each to `save`.
///
/// # Errors
/// Those of `save`, and of problems that have no schedule.
pub fn evaluation<E: From<ProblemError>>(
    seed: u64,
    save: &mut dyn FnMut(&Figure<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let application = trace::application(8, seed);
    let synthetic = trace::synthetic(8, trace::SNAPSHOTS, seed);
    save(&spread("figure-3", "application", &application))?;
    save(&shown(&application))?;
    save(&spread("figure-5", "synthetic", &synthetic))?;
    let machine = topology::dgx1();
    for (blocking, computing, name, trace) in [
        ("6", "8", "application", &application),
        ("7", "9", "synthetic", &synthetic),
    ] {
        for (part, free) in FREE {
            let what = format!("{name} trace, {free} MB free on each of 8 GPUs");
            let name = |number| format!("figure-{number}{part}");
            save(&overheads(name(blocking), &what, trace, &machine, free)?)?;
            save(&computed(name(computing), &what, trace, &machine, free))?;
        }
    }
    scaling(seed, save)
}

/// Figures 3 and 5: the least, mean and largest size at each snapshot.
fn spread(name: &str, which: &str, trace: &[Vec<u64>]) -> Figure<'static> {
    let row = |(snapshot, sizes): (usize, &Vec<u64>)| {
        let mb = || sizes.iter().map(|bytes| *bytes as f64 / MB);
        let mean = mb().sum::<f64>() / sizes.len() as f64;
        let least = mb().fold(f64::INFINITY, f64::min);
        vec![snapshot as f64, least, mean, mb().fold(0.0, f64::max)]
    };
    Figure {
        name: name.into(),
        title: format!("Checkpoint sizes, {which} trace"),
        columns: &["snapshot", "least_mb", "mean_mb", "largest_mb"],
        rows: trace.iter().enumerate().map(row).collect(),
        plotted: 1..4,
        y: "MB",
    }
}

/// Figure 4: the sizes of all GPUs at some snapshots.
fn shown(trace: &[Vec<u64>]) -> Figure<'static> {
    let row = |gpu: usize| {
        let sizes = SHOWN
            .iter()
            .map(|snapshot| trace[*snapshot][gpu] as f64 / MB);
        std::iter::once(gpu as f64).chain(sizes).collect()
    };
    Figure {
        name: "figure-4".into(),
        title: "Checkpoint sizes of each GPU, application trace".into(),
        columns: &["gpu", "at_100", "at_250", "at_400", "at_550", "at_700"],
        rows: (0..8).map(row).collect(),
        plotted: 1..6,
        y: "MB",
    }
}

/// Percent by which a time is longer than the reference; nothing is to be sent where that is 0.
fn percent(seconds: f64, reference: f64) -> f64 {
    match reference > 0.0 {
        true => 100.0 * (seconds / reference - 1.0),
        false => 0.0,
    }
}

const OVERHEADS: [&str; 8] = [
    "snapshot",
    "local_only_s",
    "greedy_s",
    "min_time_s",
    "optimum_s",
    "local_only",
    "greedy",
    "optimum",
];

/// A row of [`OVERHEADS`]: the seconds of every scheduler, and by how much all but min-time are longer than that.
fn blocked(first: usize, seconds: [f64; 4]) -> Vec<f64> {
    let over = [0, 1, 3].map(|i| percent(seconds[i], seconds[2]));
    let numbers = seconds.into_iter().chain(over);
    std::iter::once(first as f64).chain(numbers).collect()
}

/// Figures 6 and 7: how much longer than min-time the others block, in percent.
fn overheads(
    name: String,
    what: &str,
    trace: &[Vec<u64>],
    machine: &Topology,
    free: u64,
) -> Result<Figure<'static>, ProblemError> {
    let rows = simulate::run(trace, machine, free * 1_000_000)?;
    let row = |r: simulate::Row| blocked(r.snapshot, r.seconds());
    Ok(Figure {
        name,
        title: format!("Blocking time, {what}"),
        columns: &OVERHEADS,
        rows: rows.into_iter().map(row).collect(),
        plotted: 5..8,
        y: "percent over min-time",
    })
}

/// Microseconds that each scheduler needs: local-only, greedy, min-time, optimum.
pub fn microseconds(problem: &Problem) -> [f64; 4] {
    let time = |run: &dyn Fn() -> f64| {
        let once = |_| {
            let start = Instant::now();
            std::hint::black_box(run());
            start.elapsed().as_secs_f64() * 1e6
        };
        (0..REPEATS).map(once).fold(f64::INFINITY, f64::min)
    };
    [
        time(&|| baseline::local_only(problem).seconds),
        time(&|| greedy::greedy(problem).seconds),
        time(&|| min_time::min_time(problem, simulate::PAPER_UNIT).seconds),
        time(&|| optimum::optimum(problem).seconds),
    ]
}

const COMPUTED: [&str; 5] = ["snapshot", "local_only", "greedy", "min_time", "optimum"];

/// Figures 8 and 9: how long the schedules take to compute.
fn computed(
    name: String,
    what: &str,
    trace: &[Vec<u64>],
    machine: &Topology,
    free: u64,
) -> Figure<'static> {
    let row = |(snapshot, sizes): (usize, &Vec<u64>)| {
        let free = vec![free * 1_000_000; sizes.len()];
        let problem = Problem::from_sizes(machine.clone(), sizes, &free);
        let times = microseconds(&problem);
        std::iter::once(snapshot as f64).chain(times).collect()
    };
    Figure {
        name,
        title: format!("Time to compute a schedule, {what}"),
        columns: &COMPUTED,
        rows: trace.iter().enumerate().map(row).collect(),
        plotted: 1..5,
        y: "us",
    }
}

/// Figure 10: sizes, blocking times and times to compute for 8 to 128 GPUs.
fn scaling<E: From<ProblemError>>(
    seed: u64,
    save: &mut dyn FnMut(&Figure<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let (mut sizes, mut blocking, mut computing) = (Vec::new(), Vec::new(), Vec::new());
    for gpus in GPUS {
        let machine = topology::all_to_all(gpus, 48e9, 12e9);
        let draws = trace::synthetic(gpus, DRAWS, seed);
        let free = FREE[2].1 * 1_000_000;
        let rows = simulate::run(&draws, &machine, free)?;
        let mean = |i: usize| rows.iter().map(|r| r.seconds()[i]).sum::<f64>() / DRAWS as f64;
        blocking.push(blocked(gpus, [0, 1, 2, 3].map(mean)));
        let mut times = [0.0; 4];
        for sizes in &draws {
            let problem = Problem::from_sizes(machine.clone(), sizes, &vec![free; gpus]);
            for (sum, time) in times.iter_mut().zip(microseconds(&problem)) {
                *sum += time / DRAWS as f64;
            }
        }
        computing.push(std::iter::once(gpus as f64).chain(times).collect());
        let drawn = draws[0].iter().enumerate();
        sizes = drawn
            .map(|(gpu, bytes)| vec![gpu as f64, *bytes as f64 / MB])
            .collect();
    }
    let (mut over, mut times) = (OVERHEADS, COMPUTED);
    (over[0], times[0]) = ("gpus", "gpus");
    save(&Figure {
        name: "figure-10a".into(),
        title: "Checkpoint sizes of each of 128 GPUs".into(),
        columns: &["gpu", "mb"],
        rows: sizes,
        plotted: 1..2,
        y: "MB",
    })?;
    save(&Figure {
        name: "figure-10b".into(),
        title: "Blocking time behind a switch, 160 MB free on each GPU".into(),
        columns: &over,
        rows: blocking,
        plotted: 5..8,
        y: "percent over min-time",
    })?;
    save(&Figure {
        name: "figure-10c".into(),
        title: "Time to compute a schedule behind a switch".into(),
        columns: &times,
        rows: computing,
        plotted: 1..5,
        y: "us",
    })
}
