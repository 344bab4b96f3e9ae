//! `fermata images verify`.

use std::path::{Path, PathBuf};

use fermata_control::Paths;
use fermata_report::units;
use fermata_store::image::{self, Damage, Report};
use serde_json::{Value, json};

use crate::failure::{DAMAGED, Failure};
use crate::place;
use crate::printer::Printer;
use crate::progress::Progress;

/// Check every bit of images and of the chunks they refer to.
///
/// Names every damaged file and chunk and the buffers they belong to. Returns 12 when anything is
/// damaged.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata images verify heat-1
  fermata images verify --all
  fermata images verify /data/heat-1 --json | jq '.images[].damage'")]
pub struct Args {
    /// All images in the folder of images.
    #[arg(long, conflicts_with = "images")]
    all: bool,
    /// The images.
    #[arg(required_unless_present = "all", value_name = "IMAGE")]
    images: Vec<PathBuf>,
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    let images = if args.all {
        image::ls(&Paths::find().images)?
            .into_iter()
            .map(|l| l.path)
            .collect()
    } else {
        args.images
    };
    let mut documents = Vec::new();
    let mut worst: Option<Failure> = None;
    for text in &images {
        match check(text, printer) {
            Ok(report) => {
                let sound = report.is_sound();
                documents.push(document(text, &report));
                if sound {
                    if !printer.is_json() {
                        let bytes = units::bytes(report.bytes);
                        printer.data(&format!("{}: sound, {bytes}\n", text.display()))?;
                    }
                } else {
                    report
                        .damage
                        .iter()
                        .for_each(|d| printer.warn(&sentence(d)));
                    let count = report.damage.len();
                    let places = if count == 1 { "place" } else { "places" };
                    let message =
                        format!("image `{}` is damaged in {count} {places}", text.display());
                    let hint = "take another image of the program, or restore an older one; `fermata images rm` removes this one";
                    worst = worst.or(Some(Failure::new(DAMAGED, message).hint(hint)));
                }
            }
            Err(e) if images.len() == 1 => return Err(e),
            Err(e) => {
                printer.warn(&format!("image `{}`: {}", text.display(), e.message));
                documents.push(json!({ "image": text.display().to_string(), "error": e.message }));
                worst = Some(e);
            }
        }
    }
    if printer.is_json() {
        printer.document(&json!({ "images": documents }))?;
    }
    let Some(failure) = worst else { return Ok(0) };
    if printer.is_json() {
        return Ok(failure.status);
    }
    Err(failure)
}

fn check(text: &Path, printer: &Printer) -> Result<Report, Failure> {
    let image = place::open(text)?;
    if let Some(warning) = image.manifest().warning() {
        printer.warn(&warning);
    }
    let store = place::store_of(&image)?;
    let bar = Progress::new(printer);
    Ok(image::verify(&image, &store, &|p| {
        bar.update("verify", p.done, p.total)
    })?)
}

fn document(text: &Path, report: &Report) -> Value {
    json!({ "image": text.display().to_string(), "sound": report.is_sound(), "files": report.files,
        "chunks": report.chunks, "bytes": report.bytes, "damage": report.damage })
}

fn sentence(d: &Damage) -> String {
    let mut text = d.what.clone();
    if d.chunk.is_none() {
        text = format!("`{}`: {text}", d.file.display());
    }
    let shown: Vec<_> = d
        .buffers
        .iter()
        .take(4)
        .map(|b| {
            format!(
                "buffer {} from {} to {}",
                b.buffer,
                b.offset,
                b.offset + b.length
            )
        })
        .collect();
    if !shown.is_empty() {
        text += &format!("; lost: {}", shown.join(", "));
    }
    if d.buffers.len() > shown.len() {
        text += &format!(" and {} more", d.buffers.len() - shown.len());
    }
    text
}
