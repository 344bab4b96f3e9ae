//! How much slower a program's steps are while a checkpoint is copied, by the validator that watches for writes
//! that nobody has foreseen (PhoenixOS, figure 15).

use clap::CommandFactory;
use serde_json::json;

use super::Common;
use super::place::Place;
use super::program::Program;
use super::report::{Cell, Report};
use super::stall::{Stall, measure};
use crate::args::Cli;
use crate::failure::Failure;
use crate::printer::Printer;

pub fn run(common: &Common, printer: &Printer) -> Result<Report, Failure> {
    let place = Place::new(common)?.with_slow_link(common.bytes());
    let period = if common.is_soft() { "50" } else { "5" };
    let program = Program::hot(common, &place, &["--period", period])?;
    place.prepare(common.bytes() + common.bytes() / 3)?;
    program.start(&place, "hot")?;
    let validators = validators();
    let mut rows = Vec::new();
    // The first round makes what later ones use: loaded kernels, twins.
    for run in 0..=common.runs {
        for (validator, options) in &validators {
            printer.note(&format!("run {run} of {}: {validator}", common.runs));
            program.settle(&place)?;
            let mut words = vec!["--mode", "cow"];
            words.extend(options.iter().map(String::as_str));
            let stall = measure(&place, &program, "hot", &words)?;
            if run > 0 {
                rows.push(row(validator, &stall));
            }
        }
    }
    let session = place.session("hot")?;
    program.release()?;
    let mut remarks = vec!["step: the median step while data is copied, beside one before".into()];
    if validators.len() == 1 {
        remarks.push("this release has one validator: content".into());
    }
    Ok(Report {
        name: "validator",
        title: "A step's time while a checkpoint is copied, by validator",
        facts: vec![
            ("devices", json!(session.devices)),
            ("bytes", json!(common.bytes())),
        ],
        columns: vec![
            "validator",
            "usual_step_ms",
            "step_ms",
            "ratio",
            "stall_ms",
            "device_ms",
            "overtaken",
            "limit",
        ],
        rows,
        drawn: ("validator", vec!["ratio"]),
        remarks,
    })
}

/// The validators that `fermata checkpoint` offers, with the options that choose them.
fn validators() -> Vec<(String, Vec<String>)> {
    let cli = Cli::command();
    let checkpoint = cli.find_subcommand("checkpoint");
    let option = checkpoint.and_then(|it| it.get_arguments().find(|it| it.get_id() == "validate"));
    let values = option
        .map(clap::Arg::get_possible_values)
        .unwrap_or_default();
    if values.is_empty() {
        return vec![("content".into(), Vec::new())];
    }
    let values = values.iter().map(|it| it.get_name().to_owned());
    values
        .map(|it| (it.clone(), vec!["--validate".into(), it]))
        .collect()
}

fn row(validator: &str, stall: &Stall) -> Vec<Cell> {
    let device = stall.done.phases.iter().find(|it| it.name == "device");
    vec![
        validator.into(),
        (stall.seen.usual / 1e3).into(),
        (stall.seen.meanwhile / 1e3).into(),
        (stall.seen.meanwhile / stall.seen.usual).into(),
        (stall.seen.lost / 1e3).into(),
        device.map(|it| 1e3 * it.seconds).into(),
        (stall.done.overtaken as f64).into(),
        stall.limit().into(),
    ]
}
