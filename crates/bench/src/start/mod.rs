//! How soon a model's first result is there, from the command that starts it, by its size and the way it starts: the evaluation of
//! gCROP (sections 6.2, 6.4, 6.6 and 6.8).
//!
//! | way | what is timed |
//! | --- | --- |
//! | `cold` | a process without Fermata, which loads its weights from a file in memory |
//! | `driver` | the driver's own checkpoint and CRIU, from memory, where both are there |
//! | `disk` | Fermata, from a disk, past the page cache |
//! | `none`, `default`, `profile`, `worst` | Fermata, from memory: all data first, and the orders in which data comes behind the program |
//! | `x2`, `x4`, ... | Fermata, from memory: so many at once, until the last one's result |
//!
//! Every start must have the same result.

mod cases;
mod driver;
mod model;
mod results;
mod setup;

use serde_json::json;

use self::model::Model;
pub use self::results::StartSettings;
use self::results::{Facts, Shown, Start};
use self::setup::Cases;
use crate::error::BenchError;
use crate::findings::{Cell, Findings};
use crate::sandbox::Sandbox;
use crate::settings::Settings;

/// Columns of the table.
const COLUMNS: [&str; 8] = [
    "case",
    "billions",
    "way",
    "at_once",
    "first_ms",
    "last_ms",
    "command_ms",
    "image_gib",
];

/// Runs it; `note` is called with what is being done. What was measured before a failure or an interruption is not lost: it
/// comes with it.
///
/// # Errors
/// As [`crate::Bench::run`], before the first start has been measured; or if results differ.
pub fn run(
    settings: &Settings,
    asked: &StartSettings,
    note: &dyn Fn(&str),
) -> Result<(Findings, Option<BenchError>), BenchError> {
    let mut rows = Vec::new();
    let mut facts = Facts::default();
    let mut ended_early = None;
    for size in &asked.sizes {
        let mut shown = Shown::default();
        let done = measure(settings, asked, *size, (&mut shown, &mut facts), note);
        if !shown.starts.is_empty() {
            facts.compare(*size, &shown.results)?;
        }
        let starts = shown.starts.iter();
        rows.extend(starts.map(|it| row(*size, it, shown.image)));
        if let Err(why) = done {
            if rows.is_empty() {
                return Err(why);
            }
            ended_early = Some(why);
            break;
        }
    }
    facts.remarks.extend([
        "first, last: from the command until the first and the last instance's first result"
            .to_owned(),
        "all starts of a model have had the same result".to_owned(),
    ]);
    let findings = findings(facts, rows);
    Ok((findings, ended_early))
}

/// Everything with a model of one size. What it takes of memory and disk is free afterwards.
fn measure(
    settings: &Settings,
    asked: &StartSettings,
    size: f64,
    (shown, facts): (&mut Shown, &mut Facts),
    note: &dyn Fn(&str),
) -> Result<(), BenchError> {
    let sandbox = Sandbox::new(settings)?;
    let model = Model::new(settings, &sandbox, size)?;
    let cases = Cases {
        settings,
        asked,
        sandbox: &sandbox,
        model: &model,
        note,
    };
    cases.all(shown, facts)
}

fn findings(facts: Facts, rows: Vec<Vec<Cell>>) -> Findings {
    Findings {
        name: "start",
        title: "From the command to a model's first result",
        facts: vec![
            ("devices", json!(facts.devices)),
            ("digests", json!(facts.digests)),
        ],
        columns: COLUMNS.to_vec(),
        rows,
        drawn: ("billions", vec!["last_ms"]),
        lines: Some("way"),
        remarks: facts.remarks.into_iter().collect(),
    }
}

fn row(size: f64, start: &Start, image: Option<u64>) -> Vec<Cell> {
    let case = format!("{size} {}", start.way);
    vec![
        case.as_str().into(),
        size.into(),
        start.way.as_str().into(),
        f64::from(start.at_once).into(),
        start.first.into(),
        start.last.into(),
        start.command.into(),
        image.map(|it| it as f64 / f64::from(1 << 30)).into(),
    ]
}
