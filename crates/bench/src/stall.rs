//! One checkpoint beside a running program: what it cost the program, and which part cost most.

use std::time::Duration;

use fermata_control::user::Checkpointed;

use crate::error::BenchError;
use crate::program::{Program, Seen, now, seen};
use crate::sandbox::Sandbox;

/// A longer step than this is no use for a bench.
pub const LONGEST_STEP: Duration = Duration::from_secs(60);

/// What a checkpoint cost, in milliseconds.
#[derive(Debug)]
pub struct Stall {
    /// What the program's own log says.
    pub seen: Seen,
    /// What the daemon says.
    pub done: Checkpointed,
    /// When the program stood still, microseconds since 1970.
    pub stopped_at: f64,
    /// The parts of it, by name.
    pub parts: Vec<(&'static str, f64)>,
}

impl Stall {
    /// Milliseconds that the GPU state cost the program: all but the host process.
    pub fn gpu(&self) -> f64 {
        let host = ["host process", "attaching again"];
        let gpu = self.parts.iter().filter(|(name, _)| !host.contains(name));
        gpu.map(|(_, ms)| ms).sum()
    }

    /// Bytes that were copied aside, and milliseconds that operations waited.
    pub fn aside(&self) -> (u64, f64) {
        let stall = &self.done.device.stall;
        (stall.isolated_bytes, 1e3 * stall.waited_seconds)
    }

    /// The part that cost most: what a shorter stall would have to begin with.
    pub fn limit(&self) -> &'static str {
        let most = self.parts.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        most.map_or("", |(name, _)| name)
    }
}

/// Checkpoints session `name` of `program` with these `options`, into a store that has nothing of it.
pub fn measure(
    sandbox: &Sandbox,
    program: &Program,
    name: &str,
    options: &[&str],
) -> Result<Stall, BenchError> {
    let begin = now();
    let done = sandbox.checkpoint(name, options)?;
    let end = now();
    // The step that was under way is to be in the log.
    sandbox.wait(LONGEST_STEP, "the program has logged no step", || {
        Ok(program.steps().last().is_some_and(|step| step.end > end))
    })?;
    let steps = program.steps();
    let missing = || BenchError::program("the program has logged no step during the checkpoint");
    let seen = seen(&steps, begin, end).ok_or_else(missing)?;
    let phase = |name: &str| done.phases.iter().find(|it| it.name == name);
    let quiesced = phase("quiesce").map_or(0.0, |it| it.start + it.seconds);
    let stopped_at = end - 1e6 * (done.seconds - quiesced);
    let parts = parts(&done);
    sandbox.forget_images()?;
    Ok(Stall {
        seen,
        done,
        stopped_at,
        parts,
    })
}

/// The host process is dumped beside the device's part; only what it takes longer is its own.
fn parts(done: &Checkpointed) -> Vec<(&'static str, f64)> {
    let of = |name: &str| {
        let phases = done.phases.iter().filter(|it| it.name == name);
        1e3 * phases.map(|it| it.seconds).sum::<f64>()
    };
    let stall = &done.device.stall;
    vec![
        ("quiescing", of("quiesce") + of("detach") + of("release")),
        ("hashing and copying in the stop", of("device")),
        ("host process", (of("host") - of("device")).max(0.0)),
        ("attaching again", of("reattach")),
        ("copying aside", 1e3 * stall.issuing_seconds),
        ("waiting for copies", 1e3 * stall.waited_seconds),
    ]
}
