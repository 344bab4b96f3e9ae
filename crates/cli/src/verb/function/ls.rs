//! `fermata function ls`.

use fermata_function::{FunctionRecord, Functions};
use fermata_report::table::Table;
use fermata_report::units;
use fermata_store::image::{Image, Manifest};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::place;
use crate::printer::Printer;

/// List functions.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata function ls
  fermata function ls --json | jq '.functions[].name'")]
pub struct Args {}

/// Does it.
pub fn call(_args: &Args, printer: &Printer) -> Result<u8, Failure> {
    let functions = Functions::of(&place::images());
    let mut table = Table::new(&[
        "NAME",
        "LISTENS",
        "DEVICE",
        "HOST FILES",
        "CREATED",
        "COMMAND",
    ]);
    let mut documents = Vec::new();
    for name in functions.names()? {
        let record = match functions.load(&name) {
            Ok(record) => record,
            Err(error) => {
                printer.warn(&Failure::from(error).message);
                continue;
            }
        };
        let image = Image::open(&record.image).map(Image::into_manifest);
        if let Err(error) = &image {
            printer.warn(&format!("function `{name}` cannot be served: {error}"));
        }
        documents.push(document(&record, image.as_ref().ok()));
        table.row(cells(&record, image.as_ref().ok()));
    }
    match printer.is_json() {
        true => printer.document(&json!({ "functions": documents }))?,
        false => printer.data(&table.render())?,
    }
    Ok(0)
}

/// A function with what its image holds.
pub fn document(record: &FunctionRecord, image: Option<&Manifest>) -> Value {
    json!({
        "name": record.name,
        "image": record.image.display().to_string(),
        "listens": record.listens.to_string(),
        "argv": record.argv,
        "cwd": record.cwd,
        "created": record.created,
        "device_bytes": image.map(|it| it.totals.device_bytes),
        "host_bytes": image.map(Manifest::host_bytes),
    })
}

fn cells(record: &FunctionRecord, image: Option<&Manifest>) -> [String; 6] {
    let bytes = |of: fn(&Manifest) -> u64| image.map_or("-".to_owned(), |it| units::bytes(of(it)));
    [
        record.name.clone(),
        record.listens.to_string(),
        bytes(|it| it.totals.device_bytes),
        bytes(Manifest::host_bytes),
        record.created.clone(),
        record.argv.join(" "),
    ]
}
