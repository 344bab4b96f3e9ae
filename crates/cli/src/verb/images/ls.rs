//! `fermata images ls`.

use std::path::PathBuf;

use fermata_control::Paths;
use fermata_report::table::Table;
use fermata_report::units;
use fermata_store::image::{self, Listed};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::place;
use crate::printer::Printer;

/// List images.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata images ls
  fermata images ls /data/images
  fermata images ls s3://bucket/team/jobs")]
pub struct Args {
    /// Another folder of images, or one in a bucket.
    folder: Option<PathBuf>,
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    if let Some(address) = args.folder.as_deref().and_then(place::in_bucket) {
        return on_shelf(address, printer);
    }
    let folder = args.folder.unwrap_or_else(|| Paths::find().images);
    let images = image::ls(&folder)?;
    if printer.is_json() {
        let images: Vec<_> = images.iter().map(document).collect();
        printer.document(&json!({ "folder": folder.display().to_string(), "images": images }))?;
        return Ok(0);
    }
    let mut table = Table::new(&["NAME", "CREATED", "DEVICE", "HOST FILES", "PROGRAM"]);
    for image in &images {
        table.row(cells(image));
    }
    printer.data(&table.render())?;
    for image in &images {
        if let Err(e) = &image.manifest {
            printer.warn(&format!("image `{}`: {e}", image.name));
        }
    }
    Ok(0)
}

/// Those in a folder of a bucket.
fn on_shelf(address: &str, printer: &Printer) -> Result<u8, Failure> {
    let shelf = place::shelf(address)?;
    let images = shelf.list()?;
    if printer.is_json() {
        let images: Vec<_> = images
            .iter()
            .map(|it| json!({ "name": it.name, "address": shelf.address_of(&it.name) }))
            .collect();
        printer.document(&json!({ "folder": address, "images": images }))?;
        return Ok(0);
    }
    let mut table = Table::new(&["NAME", "ADDRESS"]);
    for image in &images {
        table.row(vec![image.name.clone(), shelf.address_of(&image.name)]);
    }
    printer.data(&table.render())?;
    Ok(0)
}

fn cells(image: &Listed) -> Vec<String> {
    match &image.manifest {
        Ok(m) => {
            vec![
                image.name.clone(),
                m.created.clone(),
                units::bytes(m.totals.device_bytes),
                units::bytes(m.host_bytes()),
                m.program.argv.join(" "),
            ]
        }
        Err(_) => vec![image.name.clone(), "damaged".into()],
    }
}

fn document(image: &Listed) -> Value {
    match &image.manifest {
        Ok(m) => {
            json!({ "name": image.name, "path": image.path.display().to_string(), "created": m.created,
            "program": m.program, "totals": m.totals })
        }
        Err(e) => {
            json!({ "name": image.name, "path": image.path.display().to_string(), "error": e.to_string() })
        }
    }
}
