//! `fermata checkpoint`: take an image of a session.

use std::path::{Path, PathBuf};

use fermata_control::user::{self, Checkpointed, FromDaemon, Mode, Then, Validate, Verb};
use fermata_report::{breakdown, units};

use crate::daemon::{Daemon, unexpected};
use crate::failure::Failure;
use crate::place;
use crate::printer::Printer;
use crate::progress::Progress;
use crate::words::words;

/// Take an image of a session, or of a process that Fermata has not started.
///
/// Prints the image's folder. What cannot be checkpointed is refused before it is stopped, with the reason;
/// `fermata doctor NAME` says beforehand what would be refused of a session.
///
/// A process that Fermata has not started, and all below it, stands still while the NVIDIA driver (570 or newer) copies its
/// GPU memory and CRIU the rest.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata checkpoint heat                       heat-1, heat-2, ... in the folder of images
  fermata checkpoint heat -o before-change      a name in the folder of images
  fermata checkpoint heat -o /data/heat-1       a path
  fermata checkpoint heat --mode cow --pool 6GiB --times
  fermata checkpoint heat --mode cow --validate ptx
  fermata checkpoint 4711 --then stop           by process id; the program ends
  fermata checkpoint $(pgrep -o -f train.py)    a program that was started without Fermata, with all below it")]
pub struct Args {
    /// A session's name, or a process id.
    #[arg(value_name = "NAME|PID")]
    session: String,
    /// The image: a path, or a name in the folder of images.
    #[arg(long, short, value_name = "IMAGE")]
    output: Option<PathBuf>,
    /// How device memory is copied.
    #[arg(long, default_value = Mode::default().name(), value_parser = words::<Mode>())]
    mode: Mode,
    /// What becomes of the program afterwards.
    #[arg(long, default_value = Then::default().name(), value_parser = words::<Then>())]
    then: Then,
    /// Device memory for the copy-on-write pool of `cow`, per device; with 0 every write waits for its copy. By default the pool
    /// takes what `cow` can use, but no more than 2 GiB or half of the free memory, whichever is more.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    pool: Option<u64>,
    /// How mis-speculations (writes that were not predicted) are found while memory is copied in the background.
    #[arg(long, default_value = Validate::default().name(), value_parser = words::<Validate>())]
    validate: Validate,
    /// Leave out TCP connections whose other end is outside the session, instead of refusing. The running program keeps them;
    /// in a restored one they are closed, and it must connect again. Those within the session are restored.
    #[arg(long)]
    tcp_close: bool,
    /// Print how long each step took.
    #[arg(long)]
    times: bool,
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    place::refuse_address(args.output.as_deref())?;
    let daemon = Daemon::reach(printer)?;
    let output = args.output.as_deref().map(place::absolute).transpose()?;
    let verb = Verb::Checkpoint(user::Checkpoint {
        session: args.session,
        output: output.as_deref().map(|p: &Path| p.into()),
        mode: args.mode,
        then: args.then,
        pool_bytes: args.pool,
        validate: args.validate,
        tcp_close: args.tcp_close,
    });
    let done = match daemon.ask(verb, &Progress::new(printer))? {
        FromDaemon::Checkpointed(done) => done,
        other => return Err(unexpected(&other)),
    };
    let validation = &done.device.validation;
    if validation.by == Validate::Off {
        printer.warn("this image was not validated; it is for comparison only");
    }
    if !validation.note.is_empty() {
        printer.warn(&format!("{}: {}", validation.by.name(), validation.note));
    }
    for miss in &validation.misses {
        printer.warn(&format!(
            "kernel `{}` stored {} bytes at {:#x}, which was not predicted",
            miss.kernel, miss.bytes, miss.address
        ));
    }
    for warning in &done.device.warnings {
        printer.warn(warning);
    }
    if printer.is_json() {
        printer.document(&done)?;
    } else {
        printer.note(&summary(&done));
        if args.times {
            let felt = breakdown::felt(&done.device.stall, done.overtaken);
            let phases = breakdown::recorded(&done.phases);
            let rows = breakdown::of_checkpoint(done.mode.name(), &phases, &felt);
            printer.note(&breakdown::table(&rows));
        }
        printer.data(&format!("{}\n", done.image.display()))?;
    }
    Ok(0)
}

fn summary(done: &Checkpointed) -> String {
    if let Some(pid) = done.foreign {
        return foreign(done, pid);
    }
    let stall = &done.device.stall;
    let waited = match stall.waits {
        0 => String::new(),
        _ => format!(" and waited {}", units::seconds(stall.waited_seconds)),
    };
    let overtaken = match done.overtaken {
        0 => String::new(),
        n => format!(
            "; {n} buffers were written in a way that was not predicted, and were copied in a short stop"
        ),
    };
    let ended = done.waited.as_ref().map_or(String::new(), |it| {
        let seconds = units::seconds(it.seconds);
        format!(
            "; before, it ran on for {seconds} until {} had ended",
            it.what
        )
    });
    let queued = match done.device.queued {
        0 => String::new(),
        n => format!("; {n} operations are queued in the image"),
    };
    format!(
        "session `{}` ({}, validated by {}) in {}, of which it stood still {}{waited}: {} of device memory ({} new), {} of \
         host memory; the program {}{overtaken}{ended}{queued}",
        done.session,
        done.mode.name(),
        done.device.validation.by.name(),
        units::seconds(done.seconds),
        units::seconds(done.stopped_seconds),
        units::bytes(done.device.device_bytes),
        units::bytes(done.device.written_bytes),
        units::bytes(done.host_bytes),
        match (done.running, done.paused) {
            (true, _) => "goes on",
            (false, true) => "stays paused",
            (false, false) => "has been ended",
        },
    )
}

fn foreign(done: &Checkpointed, pid: u32) -> String {
    format!(
        "process {pid} (`{}`, by the driver's own interface) in {}, of which it stood still {}: {} of device memory, {} of host \
         memory; the program {}",
        done.session,
        units::seconds(done.seconds),
        units::seconds(done.stopped_seconds),
        units::bytes(done.device.device_bytes),
        units::bytes(done.host_bytes),
        match done.running {
            true => "goes on",
            false => "has been ended",
        },
    )
}
