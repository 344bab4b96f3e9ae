//! How much slower a program's steps are while a checkpoint is copied, by how mis-speculations
//! are looked for (PhoenixOS, figure 15).

use serde_json::json;

use crate::error::BenchError;
use crate::findings::{Cell, Findings};
use crate::program::Program;
use crate::sandbox::Sandbox;
use crate::settings::Settings;
use crate::stall::{Stall, measure};

pub fn run(settings: &Settings, note: &dyn Fn(&str)) -> Result<Findings, BenchError> {
    let sandbox = Sandbox::new(settings)?.with_slow_link(settings.bytes);
    let period = if settings.is_soft { "50" } else { "5" };
    let program = Program::hot(settings, &sandbox, &["--period", period])?;
    sandbox.prepare(settings.bytes + settings.bytes / 3)?;
    program.start(&sandbox, "hot")?;
    let mut rows = Vec::new();
    // The first round makes what later ones use: loaded and instrumented kernels.
    for run in 0..=settings.runs {
        for validator in &settings.validators {
            note(&format!("run {run} of {}: {validator}", settings.runs));
            program.settle(&sandbox)?;
            let words = ["--mode", "cow", "--validate", validator];
            let stall = measure(&sandbox, &program, "hot", &words)?;
            if run > 0 {
                rows.push(row(validator, &stall));
            }
        }
    }
    let session = sandbox.session("hot")?;
    program.release()?;
    Ok(Findings {
        name: "validator",
        title: "A step's time while a checkpoint is copied, by validator",
        facts: vec![
            ("devices", json!(session.devices)),
            ("bytes", json!(settings.bytes)),
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
        lines: None,
        remarks: vec!["step: the median step while data is copied, beside one before".into()],
    })
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
