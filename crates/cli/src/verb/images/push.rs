//! `fermata images push`.

use std::path::PathBuf;

use fermata_report::units;
use serde_json::json;

use crate::failure::Failure;
use crate::place;
use crate::printer::Printer;
use crate::progress::Progress;

/// Copy an image to a bucket of an S3-compatible object store.
///
/// The bucket then has the image whole or not at all. Images whose names differ only in the number at their end share what they
/// have alike. The variables AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL_S3 say how the bucket is reached.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata images push heat-1 s3://bucket
  fermata images push /data/heat-1 s3://bucket/team/jobs
  fermata images ls s3://bucket/team/jobs")]
pub struct Args {
    /// The image.
    image: PathBuf,
    /// The bucket, and a folder in it.
    #[arg(value_name = "s3://BUCKET[/FOLDER]")]
    to: String,
}

/// Does it.
pub fn call(args: &Args, printer: &Printer) -> Result<u8, Failure> {
    let shelf = place::shelf(&args.to)?;
    let image = place::open(&args.image)?;
    let store = place::store_of(&image)?;
    let bar = Progress::new(printer);
    let pushed = shelf.push(&image, &store, &|done, total| {
        bar.update("push", done, total)
    })?;
    drop(bar);
    let address = shelf.address_of(&image.manifest().name);
    if printer.is_json() {
        printer.document(&json!({ "address": address, "bytes": pushed.bytes, "written_bytes": pushed.written_bytes }))?;
        return Ok(0);
    }
    let (bytes, written) = (
        units::bytes(pushed.bytes),
        units::bytes(pushed.written_bytes),
    );
    printer.data(&format!(
        "{address}: {bytes}, of which the bucket lacked {written}\n"
    ))?;
    Ok(0)
}
