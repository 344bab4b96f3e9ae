//! `fermata bench`: what Fermata costs on this machine, in sessions like any user's, with a daemon and images of
//! their own. The benches themselves are in `fermata-bench`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use fermata_bench::{Bench, Findings, Settings, StartSettings};
use fermata_report::units;

use super::Device;
use crate::failure::Failure;
use crate::printer::Printer;
use fermata_control::Choice;
use fermata_control::worker::Validate;

/// Measure what Fermata costs on this machine.
///
/// Each bench runs a program in sessions of its own, with a daemon and images of its own, which are
/// removed afterwards, and prints a table of medians. With `--out` every single run is in a CSV file, and
/// the medians are drawn.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata bench pool --out figures                        on the GPU, or the software GPU if there is none
  fermata bench restore --bytes 40GiB --runs 1 --out figures
  fermata bench start --sizes 0.9,13 --out figures
  fermata bench overhead --device soft --json")]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// How long a checkpoint holds a program, by the size of its pool (PhoenixOS, figure 19).
    Pool(Common),
    /// How long a checkpoint holds a program, by its moment within an iteration (PhoenixOS, figure 20).
    Moment(Common),
    /// How much slower steps are while a checkpoint is copied, by validator (PhoenixOS, figure 15).
    Validator(Common),
    /// How much slower steps are under Fermata while nothing is checkpointed.
    Overhead(Common),
    /// How soon a restored program is at work, by the order in which its data comes (gCROP, figure 11).
    Restore(Common),
    /// How soon a model's first result is there, by its size and the way it starts (gCROP, figures 9, 11, 14 and 15).
    Start(Start),
}

/// Options of the benches of one program.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A program of your own gets the variables FERMATA_BENCH_STEPS and FERMATA_BENCH_UNTIL. To the first file it
appends a line for each step: its begin and its end, in microseconds since 1970. It ends when the second
file exists; in `bench restore` it waits for that file before its first step.")]
struct Common {
    /// Device memory of the program; 16 GiB on a GPU, 128 MiB on the software GPU if absent.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    bytes: Option<u64>,
    #[command(flatten)]
    every: Every,
}

/// Options of `bench start`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The ways: `cold`, a process without Fermata; `driver`, the driver's own checkpoint and CRIU, from memory; `disk`, from a
disk and past the page cache; from memory with all data first (`none`) and with data that is read in the background in
the order of its addresses (`default`), in that of an earlier start (`profile`) and in the worst one (`worst`); `x2`, `x4`,
...: so many at once, until the last one's result. All results must be equal.

A program of your own gets the variables FERMATA_BENCH_STEPS and FERMATA_BENCH_UNTIL, and its size in billions of
parameters for `{}` among its arguments. When its model is loaded it prints `ready`, and waits until the second file
exists. For its result it appends a line to the first file, with begin and end in microseconds since 1970, prints a line that
begins with `digest`, and ends.")]
struct Start {
    /// Sizes of models, in billions of parameters; 0.1,0.9,3,13 on a GPU, 0.001,0.01 on the software GPU if absent.
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = billions)]
    sizes: Vec<f64>,
    /// How many are started at once.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "2,4,8", value_parser = clap::value_parser!(u32).range(1..=64))]
    at_once: Vec<u32>,
    /// A folder on a disk, for the images of `disk`; the system's for temporary files if absent.
    #[arg(long, value_name = "FOLDER")]
    disk: Option<PathBuf>,
    #[command(flatten)]
    every: Every,
}

/// Options of every bench.
#[derive(Debug, clap::Args)]
struct Every {
    /// Which device the program gets.
    #[arg(long, value_enum, default_value_t)]
    device: Device,
    /// Runs of each case.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Folder for the CSV file and the plot.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Where images are kept meanwhile. In memory, a disk is not what is measured.
    #[arg(long, value_name = "FOLDER", default_value = "/dev/shm")]
    images: PathBuf,
    /// A program instead of Fermata's own, and its arguments.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Every {
    fn is_soft(&self) -> bool {
        match self.device {
            Device::Soft => true,
            Device::Gpu => false,
            Device::Auto => !Path::new("/dev/nvidiactl").exists(),
        }
    }

    fn settings(self, bytes: Option<u64>) -> Settings {
        let is_soft = self.is_soft();
        let usual = if is_soft { 128 << 20 } else { 16 << 30 };
        Settings {
            is_soft,
            bytes: bytes.unwrap_or(usual),
            runs: self.runs,
            images: self.images,
            command: self.command,
            validators: Validate::ALL.iter().map(|it| it.1.to_owned()).collect(),
        }
    }
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    let (bench, common) = match args.what {
        What::Pool(common) => (Bench::Pool, common),
        What::Moment(common) => (Bench::Moment, common),
        What::Validator(common) => (Bench::Validator, common),
        What::Overhead(common) => (Bench::Overhead, common),
        What::Restore(common) => (Bench::Restore, common),
        What::Start(start) => return call_start(start, printer),
    };
    let Common { bytes, mut every } = common;
    let folder = every.out.take();
    let findings = bench.run(&every.settings(bytes), &|text| printer.note(text))?;
    publish(&findings, folder.as_deref(), printer)?;
    Ok(0)
}

fn call_start(start: Start, printer: &Printer) -> Result<u8, Failure> {
    let Start {
        mut sizes,
        at_once,
        disk,
        mut every,
    } = start;
    if sizes.is_empty() {
        sizes = match every.is_soft() {
            true => vec![0.001, 0.01],
            false => vec![0.1, 0.9, 3.0, 13.0],
        };
    }
    let asked = StartSettings {
        sizes,
        at_once,
        disk: disk.unwrap_or_else(std::env::temp_dir),
    };
    let folder = every.out.take();
    let settings = every.settings(None);
    let (findings, ended_early) =
        fermata_bench::start(&settings, &asked, &|text| printer.note(text))?;
    publish(&findings, folder.as_deref(), printer)?;
    match ended_early {
        Some(why) => {
            printer.note("that is what was measured before the end");
            Err(why.into())
        }
        None => Ok(0),
    }
}

/// A number of billions.
fn billions(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok();
    let possible = number.filter(|it| (0.0001..=10_000.0).contains(it));
    possible.ok_or_else(|| "not a number of billions, such as 0.9".to_owned())
}

/// Prints the medians; with a folder writes `NAME.csv` and `NAME.svg` into it.
fn publish(findings: &Findings, folder: Option<&Path>, printer: &Printer) -> Result<(), Failure> {
    if let Some(folder) = folder {
        std::fs::create_dir_all(folder)
            .map_err(|e| Failure::io(&format!("make `{}`", folder.display()), &e))?;
        for (ending, text) in [("csv", findings.csv()), ("svg", findings.svg())] {
            let path = folder.join(format!("{}.{ending}", findings.name));
            std::fs::write(&path, text)
                .map_err(|e| Failure::io(&format!("write `{}`", path.display()), &e))?;
            printer.note(&format!("wrote `{}`", path.display()));
        }
    }
    if printer.is_json() {
        return printer.document(&findings.document());
    }
    printer.data(&findings.table())?;
    for remark in &findings.remarks {
        printer.note(remark);
    }
    Ok(())
}
