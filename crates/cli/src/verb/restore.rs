//! `fermata restore`: start sessions from an image.

use std::path::PathBuf;

use fermata_control::user::{self, FromDaemon, LoadCheck, Restored, Verb};
use fermata_control::worker::PrefetchOrder;
use fermata_report::{breakdown, units};

use super::Device;

use crate::daemon::{Daemon, unexpected};
use crate::failure::Failure;
use crate::input::Input;
use crate::printer::Printer;
use crate::progress::Progress;
use crate::words::words;
use crate::{attend, place};

/// Start sessions from an image.
///
/// The program goes on where the image was taken. As with `fermata run` its output comes to this
/// terminal and its exit status becomes this command's, unless it is detached. If its standard input
/// was a pipe or a terminal that had not ended, this command's is passed on to it, behind what it had
/// not read at the checkpoint; detached, it ends there.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata restore heat-1                        an image in the folder of images
  fermata restore /data/heat-1 --detach --name again
  fermata restore heat-1 --copies 2             two sessions at once, detached
  fermata restore heat-1 --gpus 1,0             its GPU 0 is the machine's GPU 1 now, and the other way round
  fermata restore heat-1 --validate ptx         a kernel that uses data too early is named")]
pub struct Args {
    /// The image: a path, or a name in the folder of images.
    image: PathBuf,
    /// Name of the session; the recorded one if absent and free.
    #[arg(long)]
    name: Option<String>,
    /// Which device the program gets; the kind it had if absent.
    #[arg(long, value_enum, default_value_t)]
    device: Device,
    /// The GPUs that the program gets, in the order in which it numbers them, as `CUDA_VISIBLE_DEVICES` names them: ordinals
    /// or UUIDs. Those named so at its checkpoint if absent.
    #[arg(long, value_name = "LIST", value_parser = parse_gpus)]
    gpus: Option<String>,
    /// Priority, that of the session at its checkpoint if absent: one that lacks device memory gets that of sessions of lower priority, which are paused meanwhile.
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = clap::value_parser!(i32).range(-1000..=1000))]
    priority: Option<i32>,
    /// How many sessions to start, at most 256; more than one are detached.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(user::MOST_COPIES)))]
    copies: u32,
    /// Read all data before the program runs. Without, the program runs at once, and data is read in the background: first
    /// what the program needs first.
    #[arg(long)]
    eager: bool,
    /// The order of device data that no operation waits for; for measurements.
    #[arg(long, default_value = PrefetchOrder::default().name(), value_parser = words::<PrefetchOrder>(), hide = true)]
    order: PrefetchOrder,
    /// How kernels are found that use data before it has been read. Either way Fermata notices it, and starts the program
    /// again from the image. With `ptx` it also names the kernel, which at the next restore waits for the data it uses.
    #[arg(long, default_value = LoadCheck::default().name(), value_parser = words::<LoadCheck>())]
    validate: LoadCheck,
    /// Go on although files that the program had open have changed since.
    #[arg(long)]
    ignore_changed_files: bool,
    /// Go on although the multiprocessors of a GPU lie elsewhere on its chip than on that of the checkpoint, and a library of
    /// the program has asked where. It is told the same as before, and may compute slower or otherwise on this GPU.
    #[arg(long)]
    ignore_places: bool,
    /// Take the image although it, or its store, belongs to another user, or others can write to it. The program does
    /// what the image says, with your rights: only for images whose origin you know.
    #[arg(long)]
    trust_owner: bool,
    /// Give each session a network of its own with nothing in it but itself, so that several copies can listen at one
    /// address: `nsenter -t PID -n` enters it.
    #[arg(long)]
    own_network: bool,
    /// Return as soon as the program runs, and print the session's name.
    #[arg(long, short)]
    detach: bool,
    /// Say what the time went into until the program ran; `fermata report --session NAME` has the rest.
    #[arg(long)]
    times: bool,
}

fn parse_gpus(text: &str) -> Result<String, String> {
    let is_name = |it: &str| {
        !it.is_empty()
            && it
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-/".contains(c))
    };
    let names: Vec<&str> = text.split(',').map(str::trim).collect();
    if !names.iter().all(|it| is_name(it)) {
        return Err("not a list of GPUs, such as `1,0` or `GPU-8f2c0a31-...`".to_owned());
    }
    Ok(names.join(","))
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    super::run::check_name(args.name.as_deref())?;
    let verb = Verb::Restore(user::Restore {
        image: place::absolute(&args.image)?.as_path().into(),
        name: args.name,
        device: args.device.into(),
        copies: args.copies,
        eager: args.eager,
        order: args.order,
        check: args.validate,
        ignore_changed_files: args.ignore_changed_files,
        ignore_places: args.ignore_places,
        trust_owner: args.trust_owner,
        own_network: args.own_network,
        leased: false,
        priority: args.priority,
        gpus: args.gpus,
    });
    let signals = attend::catch()?;
    let daemon = Daemon::reach(printer)?;
    let input = Input::for_restore(!args.detach && args.copies == 1)?;
    let fds: Vec<_> = input.descriptor().into_iter().collect();
    let restored = match daemon.ask_with(verb, &fds, &Progress::new(printer))? {
        FromDaemon::Restored(restored) => restored,
        other => return Err(unexpected(&other)),
    };
    if let Some(session) = restored.sessions.first().filter(|_| restored.reads) {
        input.given(&session.name);
    }
    for note in &restored.notes {
        printer.warn(note);
    }
    if args.times {
        let rows = breakdown::of_restore(&breakdown::recorded(&restored.phases), None);
        printer.note(&breakdown::table(&rows));
    }
    if let ([session], false) = (restored.sessions.as_slice(), args.detach) {
        let ended = attend::attend(session, signals, printer)?;
        if printer.is_json() {
            printer.document(&ended)?;
        }
        return attend::status(&ended, printer);
    }
    report(&restored, printer)?;
    Ok(0)
}

fn report(restored: &Restored, printer: &Printer) -> Result<(), Failure> {
    if printer.is_json() {
        return printer.document(restored);
    }
    let (count, time) = (restored.sessions.len(), units::seconds(restored.seconds));
    let sessions = if count == 1 {
        "session runs"
    } else {
        "sessions run"
    };
    printer.note(&format!("{count} {sessions} after {time}"));
    let names: String = restored
        .sessions
        .iter()
        .map(|s| format!("{}\n", s.name))
        .collect();
    printer.data(&names)
}
