//! `fermata images pull`.

use std::path::PathBuf;

use fermata_control::Paths;
use fermata_report::units;
use fermata_store::Store;
use serde_json::json;

use crate::failure::Failure;
use crate::place;
use crate::printer::Printer;
use crate::progress::Progress;

/// Copy an image from a bucket to this machine.
///
/// Every byte is checked. Chunks that the store has already are not read from the bucket. The variables AWS_ACCESS_KEY_ID,
/// AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL_S3 say how the bucket is reached.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata images pull s3://bucket/team/jobs/heat-1 && fermata restore heat-1
  fermata images pull s3://bucket/heat-1 --to /data/images")]
pub struct Args {
    /// The image.
    #[arg(value_name = "s3://BUCKET[/FOLDER]/NAME")]
    image: String,
    /// Folder for it; else the folder of images.
    #[arg(long, value_name = "FOLDER")]
    to: Option<PathBuf>,
}

/// Does it.
pub fn call(args: &Args, printer: &Printer) -> Result<u8, Failure> {
    let folder = place::folder(args.to.as_deref())?;
    let (shelf, name) = place::on_shelf(&args.image)?;
    let store = Store::open(&Paths::find().store(), true)?;
    let bar = Progress::new(printer);
    let image = shelf.pull(&name, &folder, &store, &|done, total| {
        bar.update("pull", done, total)
    })?;
    drop(bar);
    let files: u64 = image.manifest().files.iter().map(|it| it.length).sum();
    let chunks = image.chunk_table()?.content_bytes();
    let path = image.dir().display().to_string();
    if printer.is_json() {
        printer.document(&json!({ "image": path, "file_bytes": files, "chunk_bytes": chunks }))?;
        return Ok(0);
    }
    printer.data(&format!("{path}: {}\n", units::bytes(files + chunks)))?;
    Ok(0)
}
