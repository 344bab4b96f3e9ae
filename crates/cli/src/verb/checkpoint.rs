//! `fermata checkpoint`: take an image of a session.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use fermata_control::user::{self, Checkpointed, FromDaemon, Verb};
use fermata_report::{breakdown, units};

use crate::daemon::{Daemon, unexpected};
use crate::failure::Failure;
use crate::place;
use crate::printer::Printer;
use crate::progress::Progress;

/// `--mode`.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Mode {
    /// The best there is for this session.
    #[default]
    Auto,
    /// Copy on the device while the program stands still, to storage while it runs; needs as much free
    /// device memory as the program uses.
    Snapshot,
    /// Copy while the program runs; what it is about to write is copied aside first. The image shows the
    /// start.
    Cow,
    /// Copy while the program runs, then stop it for what it has written meanwhile. The image shows the
    /// end.
    Recopy,
    /// Copy while the program stands still.
    Stop,
}

/// `--then`.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Then {
    /// The program goes on.
    #[default]
    Run,
    /// The program is ended.
    Stop,
}

/// `--validate`.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub enum Validate {
    /// Digests of the stop are compared with those of what was copied.
    #[default]
    Content,
    /// Kernels check their own stores, which slows them down and names them; `cow` then needs no digests.
    Ptx,
    /// Both.
    Both,
    /// Nothing: the image may be wrong. For comparison only.
    Off,
}

/// Take an image of a session.
///
/// Prints the image's folder. A session that cannot be checkpointed is refused before it is stopped,
/// with the reason; `fermata doctor NAME` says beforehand what would be refused.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata checkpoint heat                       heat-1, heat-2, ... in the folder of images
  fermata checkpoint heat -o before-change      a name in the folder of images
  fermata checkpoint heat -o /data/heat-1       a path
  fermata checkpoint heat --mode cow --pool 6GiB --times
  fermata checkpoint heat --mode cow --validate ptx
  fermata checkpoint 4711 --then stop           by process id; the program ends")]
pub struct Args {
    /// A session's name, or a process id inside a session.
    #[arg(value_name = "NAME|PID")]
    session: String,
    /// The image: a path, or a name in the folder of images.
    #[arg(long, short, value_name = "IMAGE")]
    output: Option<PathBuf>,
    /// How device memory is copied.
    #[arg(long, value_enum, default_value_t)]
    mode: Mode,
    /// What becomes of the program afterwards.
    #[arg(long, value_enum, default_value_t)]
    then: Then,
    /// Device memory that `cow` may set aside, per device; 0 works, and lets the program wait more.
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = units::parse_bytes)]
    pool: u64,
    /// How writes that were not predicted are found while the program is copied behind its back.
    #[arg(long, value_enum, default_value_t)]
    validate: Validate,
    /// Leave TCP connections out whose other end is outside the session, instead of refusing the program. It keeps them;
    /// in a restored one they are closed, and it must connect again. Those within the session come back whole.
    #[arg(long)]
    tcp_close: bool,
    /// Say what the time went into.
    #[arg(long)]
    times: bool,
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    let daemon = Daemon::reach(printer)?;
    let output = args.output.as_deref().map(place::absolute);
    let verb = Verb::Checkpoint(user::Checkpoint {
        session: args.session,
        output: output.as_deref().map(|p: &Path| p.into()),
        mode: match args.mode {
            Mode::Auto => user::Mode::Auto,
            Mode::Snapshot => user::Mode::Snapshot,
            Mode::Cow => user::Mode::Cow,
            Mode::Recopy => user::Mode::Recopy,
            Mode::Stop => user::Mode::Stop,
        },
        then: match args.then {
            Then::Run => user::Then::Run,
            Then::Stop => user::Then::Stop,
        },
        pool_bytes: args.pool,
        validate: match args.validate {
            Validate::Content => user::Validate::Content,
            Validate::Ptx => user::Validate::Ptx,
            Validate::Both => user::Validate::Both,
            Validate::Off => user::Validate::Off,
        },
        tcp_close: args.tcp_close,
    });
    let done = match daemon.ask(verb, &Progress::new(printer))? {
        FromDaemon::Checkpointed(done) => done,
        other => return Err(unexpected(&other)),
    };
    let validation = &done.device.validation;
    if validation.by == user::Validate::Off {
        printer.warn("nothing vouches for this image; it is for comparison only");
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
    let stall = &done.device.stall;
    let waited = match stall.waits {
        0 => String::new(),
        _ => format!(" and waited {}", units::seconds(stall.waited_seconds)),
    };
    let overtaken = match done.overtaken {
        0 => String::new(),
        n => format!(
            "; {n} buffers were written before they could be foreseen, and were taken in a stop"
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
