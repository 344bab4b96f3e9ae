//! `fermata report`: how an image was taken, or a session restored, drawn.
//!
//! One self-contained page (no scripts, nothing loaded from elsewhere), a trace for Perfetto, or a table.

use std::path::PathBuf;

use fermata_control::user::{FromDaemon, Session, Verb};
use fermata_report::story::Story;
use fermata_report::{breakdown, page, trace_events};
use fermata_store::image::Manifest;
use serde_json::json;

use crate::daemon::{question, unexpected};
use crate::failure::{Failure, NOT_FOUND, USER};
use crate::place;
use crate::printer::Printer;

/// Draw how an image was taken, or how a session was restored.
///
/// The page shows what was done when and by whom, for how long the program stood still, what copying
/// in the background has cost, and what the time went into.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata report heat-1                         heat-1.html in the current folder
  fermata report heat-1 -o /tmp/page.html
  fermata report heat-1 --table                 what the time went into, here
  fermata report heat-1 --trace heat-1.trace    to be opened with Perfetto
  fermata report --session heat                 how session `heat` was restored")]
pub struct Args {
    /// The image.
    #[arg(required_unless_present = "session")]
    image: Option<PathBuf>,
    /// Instead of an image: a session, for how it was restored.
    #[arg(long, value_name = "NAME", conflicts_with = "image")]
    session: Option<String>,
    /// The page.
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["trace", "table"])]
    output: Option<PathBuf>,
    /// Write a trace instead.
    #[arg(long, value_name = "FILE", conflicts_with = "table")]
    trace: Option<PathBuf>,
    /// Print what the time went into instead.
    #[arg(long)]
    table: bool,
}

/// What is drawn, and its page.
struct Report {
    name: String,
    story: Story,
    page: String,
}

/// Does it.
pub fn call(args: &Args, printer: &Printer) -> Result<u8, Failure> {
    let (told, report) = match (&args.image, &args.session) {
        (_, Some(name)) => {
            let session = session(name, printer)?;
            (json!({ "session": name }), of_session(&session)?)
        }
        (image, None) => {
            let image = place::open(image.as_deref().unwrap_or("".as_ref()))?;
            (
                json!({ "image": image.dir().display().to_string() }),
                of_image(image.manifest()),
            )
        }
    };
    if args.table {
        if printer.is_json() {
            printer.document(&json!({ "of": told, "rows": report.story.rows }))?;
        } else {
            printer.data(&breakdown::table(&report.story.rows))?;
        }
        return Ok(0);
    }
    let (path, text) = match &args.trace {
        Some(path) => (path.clone(), trace_events::trace(&report.story)),
        None => {
            let name = PathBuf::from(format!("{}.html", report.name));
            (args.output.clone().unwrap_or(name), report.page)
        }
    };
    std::fs::write(&path, text)
        .map_err(|e| Failure::new(USER, format!("cannot write `{}`: {e}", path.display())))?;
    if printer.is_json() {
        let mut document = told;
        document["file"] = json!(path.display().to_string());
        printer.document(&document)?;
    } else {
        printer.data(&format!("{}\n", path.display()))?;
    }
    Ok(0)
}

fn session(name: &str, printer: &Printer) -> Result<Session, Failure> {
    let name = name.to_owned();
    match question(&Verb::Session { name }, printer)? {
        FromDaemon::Session(session) => Ok(session),
        other => Err(unexpected(&other)),
    }
}

fn of_image(manifest: &Manifest) -> Report {
    let story = Story::of_image(manifest);
    Report {
        name: manifest.name.clone(),
        page: page::of_image(manifest, &story),
        story,
    }
}

fn of_session(session: &Session) -> Result<Report, Failure> {
    let story = Story::of_session(session).ok_or_else(|| {
        let text = format!("it is not known how session `{}` was restored", session.name);
        let hint = "only sessions from an image have that, until their daemon ends; `fermata ps` lists sessions";
        Failure::new(NOT_FOUND, text).hint(hint)
    })?;
    Ok(Report {
        name: format!("{}-restored", session.name),
        page: page::of_session(session, &story),
        story,
    })
}
