//! How long a checkpoint holds a program, by the size of the pool that copies aside may take (PhoenixOS, figure
//! 19): from none to half as much again as the program keeps hot.

use fermata_report::units;
use serde_json::json;

use crate::error::BenchError;
use crate::findings::{Cell, Findings};
use crate::program::{HOT, Program};
use crate::sandbox::Sandbox;
use crate::settings::Settings;
use crate::stall::{Stall, measure};

/// Sizes of the pool as shares of what the program keeps hot.
const SHARES: [f64; 7] = [0.0, 0.125, 0.25, 0.5, 0.75, 1.0, 1.5];
const MIB: f64 = (1 << 20) as f64;
/// Host memory for images, in terms of the program's: an image, and the next one while the first is removed.
const ROOM: f64 = 1.3;

pub fn run(settings: &Settings, note: &dyn Fn(&str)) -> Result<Findings, BenchError> {
    let sandbox = Sandbox::new(settings)?.with_slow_link(settings.bytes);
    let period = if settings.is_soft { "100" } else { "10" };
    let program = Program::hot(settings, &sandbox, &["--period", period])?;
    sandbox.prepare((settings.bytes as f64 * ROOM) as u64)?;
    program.start(&sandbox, "hot")?;
    // The first checkpoint of a process loads what later ones use.
    measure(&sandbox, &program, "hot", &["--mode", "cow"])?;
    let hot = settings.bytes as f64 * HOT;
    let mut rows = Vec::new();
    for run in 0..settings.runs {
        for share in SHARES {
            let pool = (hot * share) as u64;
            let size = units::bytes(pool);
            note(&format!(
                "run {} of {}: a pool of {size}",
                run + 1,
                settings.runs
            ));
            program.settle(&sandbox)?;
            let options = ["--mode", "cow", "--pool", &pool.to_string()];
            let stall = measure(&sandbox, &program, "hot", &options)?;
            rows.push(row(pool, share, &stall));
        }
    }
    let soft = sandbox.session("hot")?;
    program.release()?;
    Ok(Findings {
        name: "pool",
        title: "Stall of a copy-on-write checkpoint by the size of its pool",
        facts: vec![
            ("devices", json!(soft.devices)),
            ("bytes", json!(settings.bytes)),
            ("hot_bytes", json!(hot)),
        ],
        columns: vec![
            "pool_mib", "of_hot", "stall_ms", "longest_step_ms", "stopped_ms", "gpu_state_ms",
            "aside_mib", "waited_ms", "complete_ms", "limit",
        ],
        rows,
        drawn: ("pool_mib", vec!["stall_ms", "stopped_ms", "gpu_state_ms"]),
        lines: None,
        remarks: vec![
            "stall: all time the program's steps took longer, the stop included; limit: the part that cost most".into(),
        ],
    })
}

fn row(pool: u64, share: f64, stall: &Stall) -> Vec<Cell> {
    let (aside, waited) = stall.aside();
    vec![
        (pool as f64 / MIB).into(),
        share.into(),
        (stall.seen.lost / 1e3).into(),
        (stall.seen.longest / 1e3).into(),
        (1e3 * stall.done.stopped_seconds).into(),
        stall.gpu().into(),
        (aside as f64 / MIB).into(),
        waited.into(),
        (1e3 * stall.done.seconds).into(),
        stall.limit().into(),
    ]
}
