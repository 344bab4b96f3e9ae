//! `fermata images diff`.

use std::path::PathBuf;

use fermata_report::table::Table;
use fermata_report::units;
use fermata_store::image;

use crate::failure::Failure;
use crate::place;
use crate::printer::Printer;

/// Say what differs between two images.
///
/// Compares by content names; no content is read. Returns 0 whether they differ or not.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata images diff heat-1 heat-2
  fermata images diff heat-1 heat-2 --json | jq .bytes_differing")]
pub struct Args {
    /// The first image.
    first: PathBuf,
    /// The second image.
    second: PathBuf,
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    let diff = image::diff(&place::open(&args.first)?, &place::open(&args.second)?)?;
    if printer.is_json() {
        printer.document(&diff)?;
        return Ok(0);
    }
    let mut table = Table::new(&["WHAT", "CHANGE", "CHUNKS", "BYTES"]);
    for b in &diff.buffers {
        let change = format!("{:?}", b.change).to_lowercase();
        let what = format!("buffer {}", b.buffer);
        table.row([what, change, b.chunks.to_string(), units::bytes(b.bytes)]);
    }
    for f in &diff.files {
        let change = format!("{:?}", f.change).to_lowercase();
        table.row([
            f.path.clone(),
            change,
            "-".into(),
            units::bytes(f.before.max(f.after)),
        ]);
    }
    if !diff.is_empty() {
        printer.data(&table.render())?;
    }
    printer.data(&format!(
        "{} of {} chunks differ, {} of {}\n",
        diff.chunks_differing,
        diff.chunks_total,
        units::bytes(diff.bytes_differing),
        units::bytes(diff.bytes_total)
    ))?;
    Ok(0)
}
