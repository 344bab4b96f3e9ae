//! `fermata images rm`.

use std::path::PathBuf;

use fermata_control::Paths;
use fermata_store::image::{self, Image, Removed};
use fermata_store::{Store, StoreError};

use crate::failure::{Failure, PARTLY};
use crate::place;
use crate::printer::Printer;

/// Remove images.
///
/// Chunks stay in the store, where other images may need them; `fermata images gc` frees the space. Of an image in a bucket
/// everything goes that no other there needs.
/// Of a symbolic link to an image only the link is removed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata images rm heat-1
  fermata images rm heat-1 heat-2 && fermata images gc
  fermata images rm s3://bucket/team/jobs/heat-1")]
pub struct Args {
    /// The images.
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    for (done, text) in args.images.iter().enumerate() {
        match remove(text) {
            Ok(Removed::Image) => printer.note(&format!("removed image `{}`", text.display())),
            Ok(Removed::Link(to)) => printer.note(&format!(
                "removed the link `{}`; `{}` is as it was",
                text.display(),
                to.display()
            )),
            Err(e) if done > 0 => {
                return Err(e.with_status(PARTLY));
            }
            Err(e) => return Err(e),
        }
    }
    Ok(0)
}

/// Removes the image the user means.
///
/// # Errors
/// There is none, or it is in use.
pub fn remove(text: &std::path::Path) -> Result<Removed, Failure> {
    if let Some(address) = place::in_bucket(text) {
        let (shelf, name) = place::on_shelf(address)?;
        shelf.remove(&name)?;
        return Ok(Removed::Image);
    }
    let dir = place::image(text)?;
    let written_to = Image::open(&dir).ok().map(|i| i.store().to_owned());
    let store = match Store::open(&written_to.unwrap_or_else(|| Paths::find().store()), false) {
        Err(StoreError::NotFound { .. }) => None,
        other => Some(other?),
    };
    Ok(image::rm(&dir, store.as_ref())?)
}
