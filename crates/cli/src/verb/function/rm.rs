//! `fermata function rm`.

use fermata_function::{Functions, RecordError};

use super::create::remove_image;
use crate::failure::{Failure, PARTLY};
use crate::place;
use crate::printer::Printer;

/// Remove functions with their images.
///
/// Running instances continue until they end; no new one can be started. `fermata images gc` frees the space.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata function rm llama && fermata images gc")]
pub struct Args {
    /// The functions.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

/// Does it.
pub fn call(args: &Args, printer: &Printer) -> Result<u8, Failure> {
    let functions = Functions::of(&place::images());
    for (done, name) in args.names.iter().enumerate() {
        remove(&functions, name, printer).map_err(|failure| match done {
            0 => failure,
            _ => failure.with_status(PARTLY),
        })?;
        printer.note(&format!("removed function `{name}`"));
    }
    Ok(0)
}

fn remove(functions: &Functions, name: &str, printer: &Printer) -> Result<(), Failure> {
    let image = match functions.load(name) {
        Ok(record) => Some(record.image),
        // What cannot be read can be removed.
        Err(RecordError::Damaged { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    functions.remove(name)?;
    if let Some(image) = image {
        remove_image(&image, printer);
    }
    Ok(())
}
