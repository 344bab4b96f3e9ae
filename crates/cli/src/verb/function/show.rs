//! `fermata function show`.

use fermata_function::Functions;
use fermata_report::units;
use fermata_store::image::Image;

use super::ls;
use crate::failure::Failure;
use crate::place;
use crate::printer::Printer;

/// Show a function.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata function show llama
  fermata images inspect \"$(fermata function show llama --json | jq -r .image)\"")]
pub struct Args {
    /// The function.
    name: String,
}

/// Does it.
pub fn call(args: &Args, printer: &Printer) -> Result<u8, Failure> {
    let record = Functions::of(&place::images()).load(&args.name)?;
    let image = Image::open(&record.image).map(Image::into_manifest);
    if let Err(error) = &image {
        printer.warn(&format!(
            "function `{}` cannot be served: {error}",
            args.name
        ));
    }
    if printer.is_json() {
        printer.document(&ls::document(&record, image.as_ref().ok()))?;
        return Ok(0);
    }
    let mut lines = vec![
        ("name", record.name),
        ("listens", record.listens.to_string()),
        ("command", record.argv.join(" ")),
        ("folder", record.cwd),
        ("created", record.created),
        ("image", record.image.display().to_string()),
    ];
    if let Ok(manifest) = &image {
        let of_device = units::bytes(manifest.totals.device_bytes);
        let of_host = units::bytes(manifest.host_bytes());
        lines.push((
            "holds",
            format!("{of_device} of device memory, {of_host} of host files"),
        ));
    }
    let line = |(name, value): &(&str, String)| format!("{name:<8} {value}\n");
    printer.data(&lines.iter().map(line).collect::<String>())?;
    Ok(0)
}
