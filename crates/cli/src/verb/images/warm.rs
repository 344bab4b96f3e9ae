//! `fermata images warm`.

use std::path::PathBuf;

use fermata_control::user::{FromDaemon, Verb, Warmed};
use fermata_report::units;

use crate::daemon::{Daemon, unexpected};
use crate::failure::Failure;
use crate::place;
use crate::printer::Printer;
use crate::progress::Progress;

/// Load an image that lies on a disk into the cache in memory, so that its next restore does not read the disk.
///
/// The daemon does so by itself with every image that it has written or restored, if `FERMATA_CACHE` in its
/// environment says how much it may keep (`FERMATA_CACHE=16G`; nothing by default). What was used least recently is dropped
/// first. `fermata doctor` says how full the cache is.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  FERMATA_CACHE=16G fermata serve &
  fermata images warm heat-1
  fermata images warm /data/heat-1 --json | jq .cached")]
pub struct Args {
    /// The image.
    image: PathBuf,
}

/// Does it.
pub fn call(args: &Args, printer: &Printer) -> Result<u8, Failure> {
    let verb = Verb::Warm {
        image: place::absolute(&args.image).as_path().into(),
    };
    let answer = Daemon::reach(printer)?.ask(verb, &Progress::new(printer))?;
    let FromDaemon::Warmed(warmed) = answer else {
        return Err(unexpected(&answer));
    };
    if warmed.cached < warmed.bytes {
        printer.warn(&format!(
            "{} do not fit: the cache holds at most {}, and leaves an eighth of its file system to others",
            units::bytes(warmed.bytes - warmed.cached),
            units::bytes(warmed.cache.limit)
        ));
    }
    match printer.is_json() {
        true => printer.document(&warmed)?,
        false => printer.data(&told(&warmed))?,
    }
    Ok(0)
}

fn told(warmed: &Warmed) -> String {
    let image = warmed.image.display();
    if warmed.in_memory {
        return format!("`{image}` is in memory itself\n");
    }
    let [cached, bytes, used] = [warmed.cached, warmed.bytes, warmed.cache.used].map(units::bytes);
    let folder = warmed.cache.folder.display();
    format!("{cached} of {bytes} of `{image}` in the cache, which holds {used} in `{folder}`\n")
}
