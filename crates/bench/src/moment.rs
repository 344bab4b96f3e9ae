//! How long a checkpoint holds a program, by the moment within an iteration at which it is taken (PhoenixOS, figure
//! 20). An iteration reads for most of its time, and rewrites a quarter of the memory at its end: what is
//! copied before that costs nothing.

use std::time::Duration;

use serde_json::json;

use crate::error::BenchError;
use crate::findings::{Cell, Findings, median};
use crate::program::{Program, now};
use crate::sandbox::Sandbox;
use crate::settings::Settings;
use crate::stall::{LONGEST_STEP, Stall, measure};

/// Moments at which a checkpoint is asked for, as shares of an iteration.
const MOMENTS: [f64; 8] = [0.02, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 0.97];
const MIB: f64 = (1 << 20) as f64;

pub fn run(settings: &Settings, note: &dyn Fn(&str)) -> Result<Findings, BenchError> {
    let sandbox = Sandbox::new(settings)?.with_slow_link(4 * settings.bytes);
    // An iteration shall last as long as copying everything, about: 0.3 s on a GPU, and a fifth of that where processors compute it.
    let reads = if settings.is_soft { "6" } else { "80" };
    let options = ["--period", "0", "--hot", "25", "--reads", reads];
    let program = Program::hot(settings, &sandbox, &options)?;
    sandbox.prepare(settings.bytes + settings.bytes / 3)?;
    program.start(&sandbox, "hot")?;
    measure(&sandbox, &program, "hot", &["--mode", "cow"])?;
    let mut rows = Vec::new();
    for run in 0..settings.runs {
        for moment in MOMENTS {
            note(&format!(
                "run {} of {}: asked for at {moment}",
                run + 1,
                settings.runs
            ));
            program.settle(&sandbox)?;
            let length = wait_for(&sandbox, &program, moment)?;
            let stall = measure(&sandbox, &program, "hot", &["--mode", "cow"])?;
            rows.push(row(moment, length, &program, &stall));
        }
    }
    let session = sandbox.session("hot")?;
    program.release()?;
    Ok(Findings {
        name: "moment",
        title: "Stall of a copy-on-write checkpoint by its moment within an iteration",
        facts: vec![
            ("devices", json!(session.devices)),
            ("bytes", json!(settings.bytes)),
        ],
        columns: vec![
            "asked_at", "stopped_at", "iteration_ms", "stall_ms", "of_iteration", "stopped_ms",
            "gpu_state_ms", "aside_mib", "waited_ms", "limit",
        ],
        rows,
        drawn: ("stopped_at", vec!["stall_ms", "stopped_ms", "waited_ms"]),
        lines: None,
        remarks: vec![
            "asked_at, stopped_at: shares of an iteration, of which the last part rewrites a quarter of the memory".into(),
        ],
    })
}

/// Waits for the moment of an iteration; its usual length in microseconds.
fn wait_for(sandbox: &Sandbox, program: &Program, moment: f64) -> Result<f64, BenchError> {
    let steps = program.steps();
    let lengths: Vec<f64> = steps
        .windows(2)
        .map(|it| it[1].begin - it[0].begin)
        .collect();
    let usual = median(&lengths[lengths.len().saturating_sub(20)..])
        .ok_or_else(|| BenchError::program("the program has logged no steps"))?;
    sandbox.wait(LONGEST_STEP, "no iteration has ended", || {
        Ok(program.steps().len() > steps.len())
    })?;
    let begun = program.steps().last().map_or(0.0, |step| step.end);
    let left = begun + moment * usual - now();
    sandbox.pause(Duration::from_secs_f64(left.max(0.0) / 1e6))?;
    Ok(usual)
}

fn row(moment: f64, length: f64, program: &Program, stall: &Stall) -> Vec<Cell> {
    let steps = program.steps();
    // Between two steps it is at the end of the first.
    let within = steps.iter().rfind(|step| step.begin <= stall.stopped_at);
    let (aside, waited) = stall.aside();
    vec![
        moment.into(),
        within
            .map(|step| ((stall.stopped_at - step.begin) / length).min(1.0))
            .into(),
        (length / 1e3).into(),
        (stall.seen.lost / 1e3).into(),
        (stall.seen.lost / length).into(),
        (1e3 * stall.done.stopped_seconds).into(),
        stall.gpu().into(),
        (aside as f64 / MIB).into(),
        waited.into(),
        stall.limit().into(),
    ]
}
