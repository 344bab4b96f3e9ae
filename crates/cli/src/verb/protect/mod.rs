//! `fermata protect`: keep a program alive by images of it.
//!
//! ```text
//!            ┌────────────── every interval: checkpoint ─► verify ─► remove the oldest ──────────┐
//!  watch ────┤                                                                                  ├─► watch
//!            └─ program, worker or daemon died ─► restore the newest valid image ────────────────┘
//!                            └─ again and again without a new image ─► report, end
//! ```
//! `guard` is that loop, `costs` the interval, `images` what is kept, `bucket` what is copied elsewhere, `events` who is told.

mod bucket;
mod costs;
mod events;
mod guard;
mod images;

use std::path::PathBuf;
use std::time::Duration;

use crate::failure::Failure;
use crate::place;
use crate::printer::Printer;

use self::costs::Costs;
use self::events::Events;
use self::guard::{Allowed, Guard};
use self::images::Images;

/// Keep a program alive: take images of it, and restart it from the newest when it dies.
///
/// Takes an image at once and then at every interval, until the program ends by itself or by `fermata kill`. A program
/// that is killed or ends with a status other than 0, and one whose worker has died, is restored from the newest valid
/// image. Each image is read and checked once. After four failures in a row without a new image between them it
/// reports and ends with status 1. Ctrl-C ends the protection; the program goes on.
///
/// With a bucket, images are taken in the folder of images and each valid one is copied there; `fermata images pull` brings it to
/// another machine. The variables AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL_S3 say how it is reached.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata run --detach --name train -- python train.py
  fermata protect train                        at the interval that wastes least
  fermata protect train --every 600 --keep 4 --to /data/images
  fermata protect train --to s3://bucket/team/jobs
  fermata protect train --ignore-changed-files  it appends to a log of its own
  fermata protect train --json >> events.jsonl
  fermata protect train --on-event 'jq -r .event | mail -s train me'")]
pub struct Args {
    /// The session.
    name: String,
    /// Seconds between two images; `auto` is the interval with the least waste, by the measured cost of images.
    #[arg(long, default_value = "auto", value_name = "auto|SECONDS", value_parser = parse_every)]
    every: Every,
    /// How many valid images to keep, in the folder and in the bucket.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    keep: u32,
    /// Folder of the images, or a bucket that they are copied to; else the folder of images.
    #[arg(long, value_name = "FOLDER|s3://BUCKET[/FOLDER]")]
    to: Option<PathBuf>,
    /// Mean seconds between two failures, for `auto`; corrected by the failures that happen.
    #[arg(long, default_value_t = 3600.0, value_name = "SECONDS", value_parser = parse_seconds)]
    between_failures: f64,
    /// Go on although files that the program had open have changed since.
    #[arg(long)]
    ignore_changed_files: bool,
    /// Leave out TCP connections whose other end is outside the session, instead of refusing. The running program keeps them;
    /// in a restored one they are closed, and it must connect again.
    #[arg(long)]
    tcp_close: bool,
    /// A command for the shell that gets each event on standard input, as a line of JSON.
    #[arg(long, value_name = "COMMAND")]
    on_event: Option<String>,
}

/// `--every`.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Every {
    Auto,
    Seconds(Duration),
}

fn parse_every(text: &str) -> Result<Every, String> {
    match text {
        "auto" => Ok(Every::Auto),
        _ => Ok(Every::Seconds(Duration::from_secs_f64(parse_seconds(
            text,
        )?))),
    }
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok();
    let possible = seconds.filter(|it| (0.001..=1e9).contains(it));
    possible.ok_or_else(|| "not a number of seconds".to_owned())
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    super::run::check_name(Some(&args.name))?;
    let bucket = args.to.as_deref().and_then(place::in_bucket);
    let folder = place::folder(args.to.as_deref().filter(|_| bucket.is_none()))?;
    let images = Images::find(&folder, &args.name, args.keep, bucket)?;
    let events = Events::new(&args.name, args.on_event, printer)?;
    let every = match args.every {
        Every::Auto => None,
        Every::Seconds(every) => Some(every),
    };
    let costs = Costs::new(every, args.between_failures);
    let allowed = Allowed {
        changed_files: args.ignore_changed_files,
        tcp_close: args.tcp_close,
    };
    Guard::new(args.name, images, costs, events, allowed, printer)?.run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_auto_or_seconds() {
        assert_eq!(parse_every("auto"), Ok(Every::Auto));
        let half = Duration::from_millis(500);
        assert_eq!(parse_every("0.5"), Ok(Every::Seconds(half)));
        for bad in ["", "0", "-1", "nan", "inf", "1h"] {
            assert!(parse_every(bad).is_err(), "{bad}");
        }
    }
}
