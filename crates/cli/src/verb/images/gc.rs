//! `fermata images gc`.

use std::path::PathBuf;

use fermata_control::Paths;
use fermata_report::units;
use fermata_store::{GcOptions, Store};

use crate::failure::Failure;
use crate::printer::Printer;

/// Remove chunks that no image refers to.
///
/// Nothing is removed while a checkpoint, restore or verification runs, nor when an image of the
/// store cannot be read.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata images gc --dry-run
  fermata images gc
  fermata images gc --forget-missing      after image folders were removed by other means")]
pub struct Args {
    /// Only say what would be removed.
    #[arg(long)]
    dry_run: bool,
    /// Forget images that are not where they were written.
    #[arg(long)]
    forget_missing: bool,
    /// Another store than the one in the folder of images.
    #[arg(long)]
    store: Option<PathBuf>,
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    let paths = Paths::find();
    let store = Store::open(&args.store.unwrap_or_else(|| paths.store()), false)?;
    let options = GcOptions {
        forget_missing: args.forget_missing,
        dry_run: args.dry_run,
        ..GcOptions::default()
    };
    let report = fermata_store::gc(&paths.images, &store, &options)?;
    if printer.is_json() {
        printer.document(&report)?;
        return Ok(0);
    }
    for lost in &report.forgotten {
        printer.note(&format!("forgot image `{}`", lost.display()));
    }
    let verb = if args.dry_run {
        "would remove"
    } else {
        "removed"
    };
    printer.data(&format!(
        "{verb} {} chunks, {}; {} chunks of {} images stay, {}\n",
        report.removed_chunks,
        units::bytes(report.freed_bytes),
        report.live_chunks,
        report.images,
        units::bytes(report.live_bytes)
    ))?;
    if report.unused_bytes > 0 {
        let bytes = units::bytes(report.unused_bytes);
        printer.note(&format!(
            "{bytes} of unused chunks stay in packs that are mostly used"
        ));
    }
    Ok(0)
}
