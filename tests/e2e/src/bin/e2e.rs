//! `e2e`: crosses programs, devices, protocols and moments.
//!
//! `e2e quick` and `e2e runtimes` are the selections that CI runs; `e2e matrix` takes
//! filters and writes a JSON report; `e2e straight` only runs the programs; `e2e deaths` has
//! program, worker and daemon die at every step of every protocol; `e2e adversary`
//! harms images, processes, disks and sockets in ways drawn from a seed.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use fermata_e2e::adversary::{self, Limit};
use fermata_e2e::case::{
    Case, Device, Mode, Outcome, Protocol, Reference, Restore, Validate, count_calls, straight,
};
use fermata_e2e::deaths::{self, Death, bringing, taking};
use fermata_e2e::moment::Moment;
use fermata_e2e::programs::{self, PROGRAMS, Program};
use fermata_e2e::report::{CaseReport, Report, Verdict};
use fermata_e2e::tree::Tree;

/// What `fermata checkpoint` sets aside unless told otherwise.
const POOL: u64 = 2 << 30;

#[derive(Parser)]
#[command(about = "Runs programs under Fermata, kills and restores them, and compares")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// A few programs at two moments each on the software GPU
    Quick(Common),
    /// Every program with each further runtime it was built for (`make -C programs runtimes`), with one protocol each in turn
    Runtimes(Common),
    /// Every selected program at many moments
    Matrix {
        #[command(flatten)]
        common: Common,
        /// Moments of each program and protocol
        #[arg(long, default_value_t = 20)]
        moments: usize,
        /// Where the moments are
        #[arg(long, default_value = "steps")]
        at: At,
        /// Protocols
        #[arg(long, value_delimiter = ',', default_value = "stop")]
        modes: Vec<Mode>,
        /// Sizes of the pool in bytes, crossed with the protocol `cow`
        #[arg(long, value_delimiter = ',', default_values_t = [POOL])]
        pools: Vec<u64>,
        /// How images are validated, crossed with the protocols that copy behind the program
        #[arg(long, value_delimiter = ',', default_value = "content")]
        validate: Vec<Validate>,
    },
    /// Runs the programs without Fermata and compares their digests
    Straight(Common),
    /// Program, worker and daemon die at every step of every protocol, on the software GPU
    Deaths {
        /// Stages at a time
        #[arg(long, default_value_t = 1)]
        jobs: usize,
        /// Only deaths that are told by a line with this text, as in "step: Gate"
        #[arg(long, default_value = "")]
        only: String,
    },
    /// Harms drawn from a seed: each gives the right result or a refusal, and leaves nothing behind
    Adversary(Harms),
}

/// Where the moments of a matrix are.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum At {
    /// A little after a printed step
    Steps,
    /// Exactly between two calls of the driver API
    Calls,
}

#[derive(Args, Clone)]
struct Common {
    /// Programs, by name; all of them if none is given
    #[arg(long, value_delimiter = ',')]
    programs: Vec<String>,
    /// Options of the programs, instead of those they have in a matrix, as in "--size 2048 --steps 200"
    #[arg(long, allow_hyphen_values = true)]
    options: Option<String>,
    /// Where kernels run
    #[arg(long, default_value = "soft")]
    device: Device,
    /// Seed of the moments
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How images are restored
    #[arg(long, default_value = "concurrent")]
    restore: Restore,
    /// Bytes a second of the software GPU's link to the host, so that copies take their time; 0: as fast as it
    /// can
    #[arg(long, default_value_t = 0)]
    link: u64,
    /// Bytes a second that images are written with, so that pools fill up; 0: as fast as the disk can
    #[arg(long, default_value_t = 0)]
    write_rate: u64,
    /// Cases at a time
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Seconds after which no case is begun; what is left out fails the run
    #[arg(long, default_value_t = f64::INFINITY)]
    seconds: f64,
    /// File for the report
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    match Cli::parse().verb.run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("e2e: {error:#}");
            ExitCode::from(2)
        }
    }
}

impl Verb {
    fn run(self) -> Result<bool> {
        let tree = Tree::find()?;
        match self {
            Self::Straight(common) => run_straight(&tree, &common),
            Self::Adversary(harms) => run_adversary(&harms),
            Self::Deaths { jobs, only } => Ok(run_deaths(jobs, &only)),
            Self::Quick(common) => {
                let chosen = if common.programs.is_empty() {
                    PROGRAMS.iter().copied().filter(|p| p.quick).collect()
                } else {
                    select(&common)?
                };
                run_matrix(&tree, &common, &chosen, (1, At::Steps), &|_| {
                    quick_protocols().to_vec()
                })
            }
            Self::Runtimes(common) => {
                let chosen = if common.programs.is_empty() {
                    programs::of_runtimes(&tree)?
                } else {
                    select(&common)?
                };
                let protocols = quick_protocols();
                let of = |nth: usize| vec![protocols[nth % protocols.len()]];
                run_matrix(&tree, &common, &chosen, (1, At::Steps), &of)
            }
            Self::Matrix {
                common,
                moments,
                at,
                modes,
                pools,
                validate,
            } => {
                let protocols = |_| crossed(&modes, &pools, &validate);
                run_matrix(&tree, &common, &select(&common)?, (moments, at), &protocols)
            }
        }
    }
}

/// Each way to copy and to validate once.
fn quick_protocols() -> [Protocol; 6] {
    let (content, ptx) = (Validate::Content, Validate::Ptx);
    [
        (Mode::Stop, 0, content),
        (Mode::Snapshot, 0, content),
        (Mode::Cow, POOL, content),
        (Mode::Cow, 0, content),
        (Mode::Cow, POOL, ptx),
        (Mode::Recopy, 0, Validate::Both),
    ]
    .map(|(mode, pool, validate)| Protocol {
        mode,
        pool,
        validate,
    })
}

fn select(common: &Common) -> Result<Vec<Program>> {
    let mut chosen = match common.programs.as_slice() {
        [] => PROGRAMS.to_vec(),
        names => names
            .iter()
            .map(|name| {
                let found = programs::find(name);
                found.with_context(|| format!("no program `{name}`"))
            })
            .collect::<Result<_>>()?,
    };
    if let Some(text) = &common.options {
        // For the rest of the run, as those of the table.
        let text: &'static str = text.clone().leak();
        let words: &'static [&'static str] = text.split_whitespace().collect::<Vec<_>>().leak();
        for program in &mut chosen {
            (program.soft, program.gpu) = (words, words);
        }
    }
    Ok(chosen)
}

fn run_straight(tree: &Tree, common: &Common) -> Result<bool> {
    let mut failed = 0;
    for program in select(common)? {
        let program = match common.options {
            Some(_) => program,
            None => program.with_defaults(),
        };
        match straight(tree, &program, common.device) {
            Ok(done) => println!("{:<12} {:6.2} s", program.name, done.took.as_secs_f64()),
            Err(error) => {
                failed += 1;
                println!("{:<12} FAILED {error:#}", program.name);
            }
        }
    }
    Ok(failed == 0)
}

/// What `e2e adversary` is asked for.
#[derive(Args, Clone)]
struct Harms {
    /// Seed of the cases
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of the first case
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Cases; without, 64, or as many as fit into the minutes
    #[arg(long)]
    cases: Option<u64>,
    /// Minutes after which no case is begun
    #[arg(long)]
    minutes: Option<f64>,
    /// Kinds of cases; all of them if none is given
    #[arg(long, value_delimiter = ',', value_parser = adversary::KINDS.map(|it| it.0))]
    kinds: Vec<String>,
}

fn run_adversary(harms: &Harms) -> Result<bool> {
    println!("adversary: seed {}, from case {}", harms.seed, harms.first);
    let few = if harms.minutes.is_some() {
        u64::MAX
    } else {
        64
    };
    let time = harms
        .minutes
        .map(|it| Duration::try_from_secs_f64(it * 60.0));
    let limit = Limit {
        cases: harms.cases.unwrap_or(few),
        time: time
            .transpose()
            .context("minutes")?
            .unwrap_or(Duration::MAX),
    };
    let only: Vec<&str> = harms.kinds.iter().map(String::as_str).collect();
    let mut tell = |number, what: &str| println!("BROKEN case {number}: {what}");
    let counts = adversary::run(&only, harms.seed, harms.first, limit, &mut tell)?;
    println!("{counts}");
    Ok(counts.all() > 0 && counts.broken.is_empty())
}

fn run_deaths(jobs: usize, only: &str) -> bool {
    let wanted = |death: &Death| format!("{death:?}").contains(only);
    let taking = [Mode::Stop, Mode::Snapshot, Mode::Cow, Mode::Recopy].map(|mode| {
        let deaths = taking::all().into_iter().filter(|it| it.mode == mode);
        deaths.map(Death::Taking).filter(wanted).collect::<Vec<_>>()
    });
    let bringing = bringing::all().into_iter().map(Death::Bringing);
    let stages = taking
        .into_iter()
        .chain([bringing.filter(wanted).collect()]);
    let stages: Vec<_> = stages.filter(|deaths| !deaths.is_empty()).collect();
    let ended = in_parallel(&stages, jobs, |deaths| {
        let tell = |death, wrong: Option<&anyhow::Error>| match wrong {
            None => println!("passed {death:?}"),
            Some(error) => println!("FAILED {death:?}: {error:#}"),
        };
        deaths::perform(deaths.iter().copied(), tell)
    });
    let failed = ended.iter().filter(|it| it.is_err()).count();
    let all: usize = stages.iter().map(Vec::len).sum();
    println!(
        "{all} deaths on {} stages, {failed} of which have failed",
        stages.len()
    );
    all > 0 && failed == 0
}

/// Runs each of `programs` with the protocols that `protocols` gives for its number.
fn run_matrix(
    tree: &Tree,
    common: &Common,
    programs: &[Program],
    moments: (usize, At),
    protocols: &dyn Fn(usize) -> Vec<Protocol>,
) -> Result<bool> {
    let begun = Instant::now();
    let prepared = in_parallel(programs, common.jobs, |program| {
        let reference = straight(tree, program, common.device)?;
        let calls = match moments.1 {
            At::Steps => None,
            At::Calls => Some(count_calls(tree, program, common.device)?),
        };
        Ok::<_, anyhow::Error>((reference, calls))
    });
    let mut work = Vec::new();
    let mut reports = Vec::new();
    for (nth, (program, prepared)) in programs.iter().zip(prepared).enumerate() {
        match prepared {
            Ok((reference, calls)) => {
                let moments = (moments.0, calls);
                work.push(cases(
                    common,
                    *program,
                    moments,
                    &protocols(nth),
                    &reference,
                ));
            }
            Err(error) => {
                let lost = Moment {
                    steps: 0,
                    delay_us: 0,
                    call: None,
                };
                let case = Case {
                    program: *program,
                    device: common.device,
                    protocol: Protocol::of(Mode::Stop),
                    moment: lost,
                    restore: common.restore,
                    link: common.link,
                    write_rate: common.write_rate,
                };
                reports.push(describe(&case, Err(error)));
            }
        }
    }
    reports.iter().for_each(print_line);
    let work = in_turn(work);
    let shown = in_parallel(&work, common.jobs, |(case, reference)| {
        if begun.elapsed().as_secs_f64() > common.seconds {
            return None;
        }
        let shown = case.run_in_time(tree, reference);
        let report = CaseReport {
            discarded: shown.discarded,
            ..describe(&shown.case, shown.outcome)
        };
        print_line(&report);
        Some(report)
    });
    let left_out = shown.iter().filter(|report| report.is_none()).count();
    reports.extend(shown.into_iter().flatten());

    let report = Report::new(common.seed, reports, left_out, begun.elapsed());
    if let Some(path) = &common.json {
        let text = serde_json::to_string_pretty(&report)?;
        std::fs::write(path, text + "\n").with_context(|| format!("`{}`", path.display()))?;
    }
    println!("{}", report.summary());
    if report.passed == 0 {
        bail!("no case was shown");
    }
    // A case whose program has ended before its moment shows nothing, however often it was tried.
    Ok(report.failed + report.too_late + report.left_out == 0)
}

fn crossed(modes: &[Mode], pools: &[u64], validate: &[Validate]) -> Vec<Protocol> {
    let of = |mode: Mode, pool: u64, validate: Validate| Protocol {
        mode,
        pool,
        validate,
    };
    let mut all = Vec::new();
    for mode in modes {
        match mode {
            Mode::Stop => all.push(of(*mode, POOL, Validate::Content)),
            Mode::Cow => {
                let pools = pools.iter();
                all.extend(pools.flat_map(|pool| validate.iter().map(|by| of(*mode, *pool, *by))));
            }
            mode => all.extend(validate.iter().map(|by| of(*mode, POOL, *by))),
        }
    }
    all
}

fn cases(
    common: &Common,
    program: Program,
    (moments, calls): (usize, Option<u64>),
    protocols: &[Protocol],
    reference: &Reference,
) -> Vec<(Case, Reference)> {
    let steps = reference.output.steps.len();
    let at = |i| match calls {
        Some(calls) => Moment::at_call(common.seed, i, moments, calls),
        None => Moment::seeded(common.seed, i, moments, steps, reference.took),
    };
    (0..moments)
        .flat_map(|i| protocols.iter().map(move |protocol| (*protocol, i)))
        .map(|(protocol, i)| {
            let case = Case {
                program,
                device: common.device,
                protocol,
                moment: at(i),
                restore: common.restore,
                link: common.link,
                write_rate: common.write_rate,
            };
            (case, reference.clone())
        })
        .collect()
}

/// The first of each list, the second of each, and so on: a program waits longest for a device that it
/// shares with its like.
fn in_turn<T>(lists: Vec<Vec<T>>) -> Vec<T> {
    let most = lists.iter().map(Vec::len).max().unwrap_or(0);
    let mut lists: Vec<_> = lists.into_iter().map(Vec::into_iter).collect();
    (0..most)
        .flat_map(|_| {
            lists
                .iter_mut()
                .filter_map(Iterator::next)
                .collect::<Vec<_>>()
        })
        .collect()
}

/// What `f` makes of each item, in their order, by `jobs` threads.
fn in_parallel<T: Sync, R: Send>(items: &[T], jobs: usize, f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, items.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { break };
                    let made = f(item);
                    done.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push((index, made));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, made)| made).collect()
}

fn describe(case: &Case, result: Result<Outcome>) -> CaseReport {
    let (verdict, error, timings) = match result {
        Ok(Outcome::Restored(timings)) => (Verdict::Passed, None, Some(timings)),
        Ok(Outcome::TooLate(_)) => (Verdict::TooLate, None, None),
        Err(error) => (Verdict::Failed, Some(format!("{error:#}")), None),
    };
    CaseReport {
        program: case.program.name.to_owned(),
        device: case.device,
        mode: case.protocol.mode,
        pool: case.protocol.pool,
        validate: case.protocol.validate,
        validated_by: timings.map(|t| t.by),
        overtaken: timings.map_or(0, |t| t.overtaken),
        isolated: timings.map_or(0, |t| t.isolated),
        waits: timings.map_or(0, |t| t.waits),
        violations: timings.map_or(0, |t| t.violations),
        moment: case.moment,
        verdict,
        error,
        discarded: Vec::new(),
        checkpoint_s: timings.map(|t| t.checkpoint.as_secs_f64()),
        restore_s: timings.map(|t| t.restore.as_secs_f64()),
        coming: timings.is_some_and(|t| t.coming),
        rolled_back: timings.is_some_and(|t| t.rolled_back),
    }
}

fn print_line(report: &CaseReport) {
    let what = match report.verdict {
        Verdict::Passed if report.overtaken > 0 => "ok, overtaken",
        Verdict::Passed if report.rolled_back => "ok, rolled back",
        Verdict::Passed if report.coming => "ok, before its data",
        Verdict::Passed => "ok",
        Verdict::TooLate => "too late",
        Verdict::Failed => "FAILED",
    };
    let mut out = std::io::stdout().lock();
    let place = report.moment.name();
    let mut mode = match (report.mode, report.pool) {
        (Mode::Cow, pool) if pool != POOL => format!("cow:{pool}"),
        (mode, _) => mode.name().to_owned(),
    };
    if report.validate != Validate::Content {
        mode += &format!("/{}", report.validate.name());
    }
    let error = report.error.as_deref().unwrap_or("");
    writeln!(
        out,
        "{:<12} {mode:<12} {place:<14} {what} {error}",
        report.program
    )
    .ok();
}
