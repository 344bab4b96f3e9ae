//! `fermata images prepare`.

use std::path::PathBuf;

use fermata_control::Paths;
use fermata_report::units;
use fermata_store::Store;
use serde_json::json;

use crate::failure::{Failure, USER};
use crate::printer::Printer;

/// Reserve space for packs, so that checkpoints need not wait for it.
///
/// It helps most where images are kept in memory (a folder on tmpfs): pages are touched now, not while
/// a program stands still. Checkpoints use the space up; reserve it again afterwards, or let the daemon
/// do both with `FERMATA_MEMORY_TIER=16G` in its environment.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  FERMATA_IMAGE_DIR=/dev/shm/images fermata images prepare 16")]
pub struct Args {
    /// GiB to reserve; rounded up to whole packs of 256 MiB.
    gib: f64,
    /// Another store than the one in the folder of images.
    #[arg(long)]
    store: Option<PathBuf>,
}

/// Does it.
pub fn call(args: &Args, printer: &Printer) -> Result<u8, Failure> {
    if !(0.0..=1_048_576.0).contains(&args.gib) {
        return Err(Failure::new(
            USER,
            format!("`{}` is no size in GiB", args.gib),
        ));
    }
    let store = args.store.clone().unwrap_or_else(|| Paths::find().store());
    let store = Store::open(&store, true)?;
    let ready = store.prepare((args.gib * f64::from(1u32 << 30)).ceil() as u64)?;
    if printer.is_json() {
        printer.document(
            &json!({ "ready_bytes": ready, "store": store.dir().display().to_string() }),
        )?;
    } else {
        printer.data(&format!(
            "{} ready in `{}`\n",
            units::bytes(ready),
            store.dir().display()
        ))?;
    }
    Ok(0)
}
