//! The JSON document of a run of the matrix.

use std::process::Command;
use std::time::Duration;

use serde::Serialize;

use crate::case::{Device, Mode, Validate};
use crate::moment::Moment;

/// Version of the document; raised when a field changes its meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// Times of one restored case.
#[derive(Debug, Clone, Copy)]
pub struct Timings {
    /// The checkpoint command, from start to end.
    pub checkpoint: Duration,
    /// The restore command, until it returned.
    pub restore: Duration,
    /// Whether data was still coming when the program ran.
    pub coming: bool,
    /// Whether the program was rolled back.
    pub rolled_back: bool,
    /// Buffers that unforeseen writes have reached before their copy.
    pub overtaken: u64,
    /// Bytes copied aside before the program wrote them.
    pub isolated: u64,
    /// Operations that had to wait for copies.
    pub waits: u64,
    /// Stores that nobody had foreseen, told by kernels that check themselves.
    pub violations: u64,
    /// How the image is validated.
    pub by: Validate,
}

/// Result of one case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Every promise held.
    Passed,
    /// The program had ended before the moment.
    TooLate,
    /// A promise was broken.
    Failed,
}

/// One case and what came of it.
#[derive(Debug, Clone, Serialize)]
pub struct CaseReport {
    /// Program name.
    pub program: String,
    /// Device.
    pub device: Device,
    /// Protocol.
    pub mode: Mode,
    /// Bytes of device memory that `cow` could set aside.
    pub pool: u64,
    /// What was to vouch for the image.
    pub validate: Validate,
    /// What did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validated_by: Option<Validate>,
    /// Buffers that unforeseen writes have reached before their copy.
    pub overtaken: u64,
    /// Bytes copied aside before the program wrote them.
    pub isolated: u64,
    /// Operations that had to wait for copies.
    pub waits: u64,
    /// Stores that nobody had foreseen, told by kernels that check themselves.
    pub violations: u64,
    /// Moment of the checkpoint.
    pub moment: Moment,
    /// Result.
    pub verdict: Verdict,
    /// The broken promise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Errors of attempts that were too late: what said that the program had ended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub discarded: Vec<String>,
    /// Seconds of the checkpoint command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_s: Option<f64>,
    /// Seconds of the restore command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_s: Option<f64>,
    /// Whether data was still coming when the restored program ran.
    pub coming: bool,
    /// Whether the restored program was rolled back.
    pub rolled_back: bool,
}

/// The whole document.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// When it was written, UTC.
    pub date: String,
    /// Kernel and processor of this machine.
    pub host: String,
    /// GPUs and driver of this machine, whether or not they were used.
    pub gpu: String,
    /// What was tested: `FERMATA_REVISION`, which a tree that has left its repository cannot tell by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The command line.
    pub command: String,
    /// Seed of the moments.
    pub seed: u64,
    /// Cases that held every promise.
    pub passed: usize,
    /// Cases in which the program ended too early.
    pub too_late: usize,
    /// Cases in which a promise was broken.
    pub failed: usize,
    /// Cases that were not begun, since no time was left.
    pub left_out: usize,
    /// Cases in which data was still coming when the restored program ran.
    pub coming: usize,
    /// Cases in which the restored program was rolled back.
    pub rolled_back: usize,
    /// Cases whose copying was overtaken; a stop has taken the rest.
    pub overtaken: usize,
    /// Cases in which the program wrote what was not copied yet: aside first, or after a wait.
    pub overlapped: usize,
    /// Seconds for all of them.
    pub took_s: f64,
    /// Every case.
    pub cases: Vec<CaseReport>,
}

impl Report {
    /// Counts the verdicts of `cases`; `left_out` more were not begun.
    pub fn new(seed: u64, cases: Vec<CaseReport>, left_out: usize, took: Duration) -> Self {
        let count = |verdict| cases.iter().filter(|case| case.verdict == verdict).count();
        Self {
            schema_version: SCHEMA_VERSION,
            date: said(&["date", "-u", "+%Y-%m-%dT%H:%M:%SZ"]).unwrap_or_default(),
            host: host(),
            gpu: said(&[
                "nvidia-smi",
                "--query-gpu=name,driver_version",
                "--format=csv,noheader",
            ])
            .unwrap_or_else(|| "none".into()),
            revision: std::env::var("FERMATA_REVISION").ok(),
            command: command(),
            seed,
            passed: count(Verdict::Passed),
            too_late: count(Verdict::TooLate),
            failed: count(Verdict::Failed),
            left_out,
            coming: cases.iter().filter(|case| case.coming).count(),
            rolled_back: cases.iter().filter(|case| case.rolled_back).count(),
            overtaken: cases.iter().filter(|case| case.overtaken > 0).count(),
            overlapped: cases
                .iter()
                .filter(|case| case.isolated + case.waits > 0)
                .count(),
            took_s: took.as_secs_f64(),
            cases,
        }
    }

    /// One line: `e2e: 20 passed (...), 0 too late, 0 failed in 31.2 s`.
    pub fn summary(&self) -> String {
        format!(
            "e2e: {} passed ({} wrote what was not copied yet, {} overtaken, {} ran before their data, {} rolled \
             back), {} too late, {} failed{} in {:.1} s",
            self.passed,
            self.overlapped,
            self.overtaken,
            self.coming,
            self.rolled_back,
            self.too_late,
            self.failed,
            if self.left_out == 0 {
                String::new()
            } else {
                format!(", {} left out", self.left_out)
            },
            self.took_s
        )
    }
}

/// The first line of what a command prints; `None` if there is no such command, or it fails.
fn said(words: &[&str]) -> Option<String> {
    let output = Command::new(words[0]).args(&words[1..]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let line = text.lines().next().filter(|_| output.status.success())?;
    Some(line.to_owned())
}

/// The command line of this process, wherever the runner lies.
fn command() -> String {
    let words = std::env::args().skip(1);
    std::iter::once("e2e".to_owned())
        .chain(words)
        .collect::<Vec<_>>()
        .join(" ")
}

fn host() -> String {
    let uname = rustix::system::uname();
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "{} {} {}, {cpus} processors",
        uname.sysname().to_string_lossy(),
        uname.release().to_string_lossy(),
        uname.machine().to_string_lossy()
    )
}
