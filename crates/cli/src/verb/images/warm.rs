//! `fermata images warm`.

use std::path::PathBuf;

use fermata_control::user::{FromDaemon, Verb, Warmed};
use fermata_report::units;

use crate::daemon::{Daemon, unexpected};
use crate::failure::Failure;
use crate::place;
use crate::printer::Printer;
use crate::progress::Progress;

/// Prepare for an image's next restore: start workers that load its modules, and read an image on a disk into the cache in
/// memory.
///
/// The daemon starts a worker for each process of the image (`FERMATA_SPARE_PRELOADED`), on its GPU; `fermata ps --pool` shows
/// them. A restore uses them, and the daemon then starts others for the next restore. Images that the daemon has written or
/// restored are put into the cache without this command, too. How much the cache holds is a setting of the daemon
/// (`FERMATA_CACHE`; nothing by default); what was used least recently is dropped first. `fermata doctor` says how full it is.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata images warm heat-1
  fermata shutdown --keep                         a daemon that runs keeps its settings
  FERMATA_CACHE=16G fermata images warm heat-1    starts a daemon that has a cache
  fermata images warm /data/heat-1 --json | jq .cached")]
pub struct Args {
    /// The image.
    image: PathBuf,
    /// Take the image although it, or its store, belongs to another user, or others can write to it.
    #[arg(long)]
    trust_owner: bool,
    /// The GPUs that the restore will name with `--gpus`.
    #[arg(long, value_name = "LIST")]
    gpus: Option<String>,
}

/// Does it.
pub fn call(args: &Args, printer: &Printer) -> Result<u8, Failure> {
    let verb = Verb::Warm {
        image: place::absolute(&args.image)?.as_path().into(),
        trust_owner: args.trust_owner,
        gpus: args.gpus.clone(),
    };
    let answer = Daemon::reach(printer)?.ask(verb, &Progress::new(printer))?;
    let FromDaemon::Warmed(warmed) = answer else {
        return Err(unexpected(&answer));
    };
    if let Some(cache) = warmed
        .cache
        .as_ref()
        .filter(|_| warmed.cached < warmed.bytes)
    {
        printer.warn(&format!(
            "{} do not fit: the cache holds at most {}, and leaves an eighth of its file system to others",
            units::bytes(warmed.bytes - warmed.cached),
            units::bytes(cache.limit)
        ));
    }
    if warmed.workers < warmed.workers_wanted {
        printer.warn("not all workers could be made ready: the daemon's log says why");
    }
    match printer.is_json() {
        true => printer.document(&warmed)?,
        false => printer.data(&told(&warmed))?,
    }
    Ok(0)
}

fn told(warmed: &Warmed) -> String {
    let image = warmed.image.display();
    let data = match &warmed.cache {
        _ if warmed.in_memory => format!("`{image}` is in memory itself\n"),
        Some(cache) => {
            let [cached, bytes, used] = [warmed.cached, warmed.bytes, cache.used].map(units::bytes);
            let folder = cache.folder.display();
            format!(
                "{cached} of {bytes} of `{image}` in the cache, which holds {used} in `{folder}`\n"
            )
        }
        None => format!("`{image}` stays on its disk: the daemon keeps no cache\n"),
    };
    let workers = match (warmed.workers, warmed.workers_wanted) {
        (_, 0) => "no worker waits for its restore\n".to_owned(),
        (1, 1) => "a worker waits for its restore\n".to_owned(),
        (ready, wanted) => format!("{ready} of {wanted} workers wait for its restore\n"),
    };
    data + &workers
}
