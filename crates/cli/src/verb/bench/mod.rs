//! `fermata bench`: what Fermata costs on this machine, in sessions like any user's, with a daemon and images of
//! their own.
//!
//! | bench | figure | question |
//! | --- | --- | --- |
//! | `pool` | PhoenixOS 19 | how long a checkpoint holds the program, by the size of the pool |
//! | `moment` | PhoenixOS 20 | the same, by the moment within an iteration |
//! | `validator` | PhoenixOS 15 | a step's time while a checkpoint is copied, by validator |
//! | `overhead` | | a step's time outside of checkpoints, beside the native program's |
//! | `restore` | gCROP 11 | how soon a restored program is at work, by the order of its data |

mod moment;
mod overhead;
mod place;
mod pool;
mod program;
mod report;
mod restore;
mod stall;
mod validator;

use std::ffi::OsString;
use std::path::PathBuf;

use super::Device;
use crate::failure::Failure;
use crate::printer::Printer;
use crate::units;

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
}

/// Options of every bench.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A program of your own gets the variables FERMATA_BENCH_STEPS and FERMATA_BENCH_UNTIL. To the first file it
appends a line for each step: its begin and its end, in microseconds since 1970. It ends when the second
file exists; in `bench restore` it waits for that file before its first step.")]
struct Common {
    /// Which device the program gets.
    #[arg(long, value_enum, default_value_t)]
    device: Device,
    /// Device memory of the program; 16 GiB on a GPU, 128 MiB on the software GPU if absent.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    bytes: Option<u64>,
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

impl Common {
    fn is_soft(&self) -> bool {
        match self.device {
            Device::Soft => true,
            Device::Gpu => false,
            Device::Auto => !std::path::Path::new("/dev/nvidiactl").exists(),
        }
    }

    fn bytes(&self) -> u64 {
        let usual = if self.is_soft() { 128 << 20 } else { 16 << 30 };
        self.bytes.unwrap_or(usual)
    }
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    type Bench = fn(&Common, &Printer) -> Result<report::Report, Failure>;
    let (common, run): (_, Bench) = match args.what {
        What::Pool(common) => (common, pool::run),
        What::Moment(common) => (common, moment::run),
        What::Validator(common) => (common, validator::run),
        What::Overhead(common) => (common, overhead::run),
        What::Restore(common) => (common, restore::run),
    };
    let report = run(&common, printer)?;
    report.publish(common.out.as_deref(), printer)?;
    Ok(0)
}
