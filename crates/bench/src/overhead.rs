//! How much slower steps are under Fermata while nothing is checkpointed, beside the same program alone: natively
//! on a GPU, with the software GPU's library else. Both run in turn, and not at once.

use std::time::Duration;

use serde_json::json;

use crate::error::BenchError;
use crate::findings::{Cell, Findings, median};
use crate::native::Native;
use crate::program::{Program, Step};
use crate::sandbox::Sandbox;
use crate::settings::Settings;

/// How long steps are counted.
const SPAN: Duration = Duration::from_secs(4);
const END: Duration = Duration::from_secs(60);

pub fn run(settings: &Settings, note: &dyn Fn(&str)) -> Result<Findings, BenchError> {
    let sandbox = Sandbox::new(settings)?;
    let program = Program::hot(settings, &sandbox, &["--period", "0"])?;
    let mut rows = Vec::new();
    let mut devices = Vec::new();
    for run in 0..settings.runs {
        note(&format!("run {} of {}", run + 1, settings.runs));
        let native = alone(settings, &sandbox, &program)?;
        let name = format!("hot-{run}");
        program.start(&sandbox, &name)?;
        let under = counted(&sandbox, &program)?;
        devices = sandbox.session(&name)?.devices;
        program.release()?;
        sandbox.wait(END, "the program has not ended", || {
            Ok(sandbox.session(&name)?.exit_status.is_some())
        })?;
        rows.push(row(&native, &under));
    }
    Ok(Findings {
        name: "overhead",
        title: "A step's time under Fermata and alone",
        facts: vec![
            ("devices", json!(devices)),
            ("bytes", json!(settings.bytes)),
        ],
        columns: vec![
            "case",
            "alone_us",
            "fermata_us",
            "ratio",
            "alone_steps",
            "fermata_steps",
        ],
        rows,
        drawn: ("case", vec!["ratio"]),
        lines: None,
        remarks: vec!["medians of the steps in 4 s each".into()],
    })
}

/// The program's steps without Fermata.
fn alone(
    settings: &Settings,
    sandbox: &Sandbox,
    program: &Program,
) -> Result<Vec<Step>, BenchError> {
    program.clean();
    let mut native = Native::start(settings, program, &sandbox.file("printed"))?;
    program.settle(sandbox)?;
    let steps = counted(sandbox, program)?;
    program.release()?;
    native.end(sandbox)?;
    Ok(steps)
}

/// The steps of the next seconds.
fn counted(sandbox: &Sandbox, program: &Program) -> Result<Vec<Step>, BenchError> {
    let before = program.steps().len();
    sandbox.pause(SPAN)?;
    Ok(program.steps().split_off(before))
}

fn row(alone: &[Step], under: &[Step]) -> Vec<Cell> {
    let usual = |steps: &[Step]| median(&steps.iter().map(Step::length).collect::<Vec<_>>());
    let (native, ours) = (usual(alone), usual(under));
    vec![
        "step".into(),
        native.into(),
        ours.into(),
        native.zip(ours).map(|(native, ours)| ours / native).into(),
        (alone.len() as f64).into(),
        (under.len() as f64).into(),
    ]
}
