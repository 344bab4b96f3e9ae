//! One case: run, checkpoint at a moment, kill, restore, compare.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::command::{self, Finished};
use crate::fermata::{Fermata, Session};
use crate::moment::Moment;
use crate::output::Output;
use crate::processes::{self, Process};
use crate::programs::Program;
use crate::report::Timings;
use crate::sandbox::Sandbox;
use crate::tree::Tree;

/// No program may take longer than this to its end, on however busy a machine.
pub const PROGRAM_LIMIT: Duration = Duration::from_secs(300);

/// Where kernels run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// The software GPU.
    Soft,
    /// The GPU of this machine.
    Gpu,
}

impl Device {
    /// As the command line spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Soft => "soft",
            Self::Gpu => "gpu",
        }
    }
}

/// Checkpoint protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Copy while stopped.
    Stop,
    /// Copy on the device in the stop, drain behind.
    Snapshot,
    /// Copy on write.
    Cow,
    /// Copy, then copy again what changed.
    Recopy,
    /// Whatever Fermata picks.
    Auto,
}

impl Mode {
    /// As the command line spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Snapshot => "snapshot",
            Self::Cow => "cow",
            Self::Recopy => "recopy",
            Self::Auto => "auto",
        }
    }
}

/// What finds writes that nobody has foreseen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Validate {
    /// Digests.
    Content,
    /// Kernels that check their own stores.
    Ptx,
    /// Both.
    Both,
    /// Nothing. Images may then be wrong, and cases fail.
    Off,
}

impl Validate {
    /// As the command line spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Content => "content",
            Self::Ptx => "ptx",
            Self::Both => "both",
            Self::Off => "off",
        }
    }
}

/// How a checkpoint is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protocol {
    /// The way.
    pub mode: Mode,
    /// Bytes of device memory that `cow` may set aside.
    pub pool: u64,
    /// How the image is validated.
    pub validate: Validate,
}

impl Protocol {
    /// Without a pool, validated by content.
    pub fn of(mode: Mode) -> Self {
        Self {
            mode,
            pool: 0,
            validate: Validate::Content,
        }
    }
}

/// When a restored program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Restore {
    /// As soon as its process is there; data comes behind it.
    Concurrent,
    /// When everything is there.
    Eager,
    /// As soon as its process is there; until everything is, kernels check what they touch.
    Checked,
    /// As soon as its process is there, in workers that have loaded the image's modules ahead.
    Warm,
}

impl Restore {
    /// Options of `fermata restore`.
    pub fn options(self) -> &'static [&'static str] {
        match self {
            Self::Concurrent | Self::Warm => &[],
            Self::Eager => &["--eager"],
            Self::Checked => &["--validate", "ptx"],
        }
    }
}

/// A straight run of a program: what it printed and how long it took.
#[derive(Debug, Clone)]
pub struct Reference {
    /// What was printed.
    pub output: Output,
    /// Wall time.
    pub took: Duration,
}

/// Runs `program` on `device` without Fermata.
///
/// # Errors
/// When it fails, or its digest is not the recorded one.
pub fn straight(tree: &Tree, program: &Program, device: Device) -> Result<Reference> {
    let mut command = Command::new(tree.program(program.name)?);
    command
        .args(program.options(device))
        .env("LD_LIBRARY_PATH", tree.library_path(device));
    let done = command::run(command, PROGRAM_LIMIT)?.success(program.name)?;
    let output = Output::parse(&done.stdout)?;
    output.check_complete(&output)?;
    if let Some(recorded) = program.recorded_digest(device) {
        ensure!(
            output.digest.as_deref() == Some(recorded),
            "`{}` without Fermata: digest {:?}, recorded {recorded}",
            program.name,
            output.digest
        );
    }
    Ok(Reference {
        output,
        took: done.took,
    })
}

/// How many calls of the driver API `program` makes under Fermata.
///
/// # Errors
/// When it fails, or leaves no count.
pub fn count_calls(tree: &Tree, program: &Program, device: Device) -> Result<u64> {
    let sandbox = Sandbox::new()?;
    let fermata = Fermata::new(tree, &sandbox);
    let count = || {
        let (path, mark) = (tree.program(program.name)?, fermata.mark());
        let counts = fermata.stop_at(0)?;
        fermata.run_with(&counts, "count", device, &path, program.options(device))?;
        let status = fermata.wait_exit("count", PROGRAM_LIMIT)?;
        ensure!(status == 0, "`{}` ended with {status}", program.name);
        let bytes = std::fs::read(&mark).with_context(|| format!("`{}`", mark.display()))?;
        let bytes: [u8; 8] = bytes.as_slice().try_into().context("the count of calls")?;
        Ok(u64::from_le_bytes(bytes))
    };
    let counted = count();
    sandbox.close();
    counted
}

/// What is crossed.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// The program.
    pub program: Program,
    /// Where its kernels run.
    pub device: Device,
    /// How it is checkpointed.
    pub protocol: Protocol,
    /// When.
    pub moment: Moment,
    /// How it is restored.
    pub restore: Restore,
    /// Bytes a second of the software GPU's link to the host; 0 for as fast as it can.
    pub link: u64,
    /// Bytes a second that images are written with; 0 for as fast as the disk can.
    pub write_rate: u64,
}

/// How a case that broke no promise ended.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// Restored and compared.
    Restored(Timings),
    /// The program ended before the moment came; nothing was shown. With the error that said so, if there was one.
    TooLate(Option<String>),
}

/// What [`Case::run_in_time`] has shown.
#[derive(Debug)]
pub struct Shown {
    /// The case, with the moment that it was.
    pub case: Case,
    /// Errors of attempts that were too late.
    pub discarded: Vec<String>,
    /// How the last attempt ended.
    pub outcome: Result<Outcome>,
}

/// How often a case whose program ends before its moment tries an earlier one.
const EARLIER: usize = 4;

impl Case {
    /// Runs the case; where the program ends before its moment, at an earlier one, and at last exactly between
    /// two calls, where it waits however fast it is.
    pub fn run_in_time(mut self, tree: &Tree, reference: &Reference) -> Shown {
        let mut discarded = Vec::new();
        let mut outcome = self.run_earlier(tree, reference, &mut discarded);
        if self.moment.call.is_none() && matches!(outcome, Ok(Outcome::TooLate(_))) {
            outcome = count_calls(tree, &self.program, self.device).and_then(|calls| {
                self.moment = Moment::at_call(0, 1, 3, calls);
                self.run_earlier(tree, reference, &mut discarded)
            });
        }
        Shown {
            case: self,
            discarded,
            outcome,
        }
    }

    /// Runs the case, and again at earlier moments while it is too late.
    fn run_earlier(
        &mut self,
        tree: &Tree,
        reference: &Reference,
        discarded: &mut Vec<String>,
    ) -> Result<Outcome> {
        for attempt in 0..=EARLIER {
            if attempt > 0 {
                self.moment = self.moment.earlier();
            }
            match self.run(tree, reference)? {
                Outcome::TooLate(error) => discarded.extend(error),
                shown => return Ok(shown),
            }
        }
        Ok(Outcome::TooLate(None))
    }

    /// Runs the case in a sandbox of its own.
    ///
    /// # Errors
    /// The first broken promise, or what the case left behind.
    pub fn run(&self, tree: &Tree, reference: &Reference) -> Result<Outcome> {
        let sandbox = Sandbox::new()?;
        let result = self.run_in(&Fermata::new(tree, &sandbox), tree, reference);
        let left = sandbox.close();
        let outcome = result?;
        ensure!(left.is_empty(), "left behind: {}", left.join(", "));
        Ok(outcome)
    }

    fn run_in(&self, fermata: &Fermata, tree: &Tree, reference: &Reference) -> Result<Outcome> {
        let path = tree.program(self.program.name)?;
        let mark = fermata.mark();
        let options = self.program.options(self.device);
        let rates = [
            ("FERMATA_SOFTGPU_HOST_LINK", self.link.to_string()),
            ("FERMATA_WRITE_RATE", self.write_rate.to_string()),
        ];
        let mut variables: Vec<_> = rates.into_iter().filter(|(_, it)| it != "0").collect();
        if let Some(call) = self.moment.call {
            variables.extend(fermata.stop_at(call)?);
        }
        fermata.run_with(&variables, "first", self.device, &path, options)?;
        if !self.wait_for_moment(fermata, &mark)? {
            return Ok(Outcome::TooLate(None));
        }
        let before = match live(&fermata.session("first")?) {
            Err(error) if ended(fermata, "first") => return Ok(too_late(&error)),
            before => before?,
        };
        let Protocol {
            mode,
            pool,
            validate,
        } = self.protocol;
        let pool = pool.to_string();
        let options = ["--pool", &pool, "--validate", validate.name(), "--json"];
        let done = fermata.try_checkpoint("first", "image", mode, &options)?;
        let says_ended = says_ended(&done);
        let done = match done.success("fermata checkpoint") {
            Err(error) if says_ended && ended(fermata, "first") => return Ok(too_late(&error)),
            done => done?,
        };
        let (checkpoint, told) = (done.took, Told::parse(&done.stdout)?);
        before.iter().for_each(processes::end);
        fermata
            .call(&["images", "verify", "image"])?
            .success("fermata images verify")?;

        let begun = Instant::now();
        fermata.restore_as("image", "second", self.device, self.restore)?;
        let restore = begun.elapsed();
        let at_first = fermata.session("second")?;
        let coming = at_first.arrival.as_ref().map_or("", |it| &it.stand) == "coming";
        if let Ok(after) = live(&at_first) {
            for process in &after {
                ensure!(
                    !before.contains(process),
                    "process {} was not restored",
                    process.pid
                );
            }
        }
        let status = fermata.wait_exit("second", PROGRAM_LIMIT)?;
        let log = fermata.log("second")?;
        ensure!(
            status == 0,
            "the restored program ended with {status}; log: {log}"
        );
        Output::parse(&log)?
            .check_complete(&reference.output)
            .with_context(|| format!("log of the restored session: {log}"))?;
        // What the restore has learnt must not look like damage.
        fermata
            .call(&["images", "verify", "image"])?
            .success("fermata images verify")?;
        let arrival = fermata.session("second")?.arrival;
        let rolled_back = arrival.is_some_and(|it| it.stand == "rolled-back");
        Ok(Outcome::Restored(Timings {
            checkpoint,
            restore,
            coming,
            rolled_back,
            overtaken: told.overtaken,
            isolated: told.device.stall.isolated_bytes,
            waits: told.device.stall.waits,
            violations: told.device.validation.violations,
            by: told.device.validation.by,
        }))
    }

    /// Waits for the moment; false if the program ended before it.
    fn wait_for_moment(&self, fermata: &Fermata, mark: &Path) -> Result<bool> {
        if self.moment.call.is_some() {
            return fermata.wait_mark("first", PROGRAM_LIMIT, mark);
        }
        let steps = self.moment.steps;
        let reached = |log: &str| {
            Output::parse(log).is_ok_and(|out| out.nonce.is_some() && out.steps.len() >= steps)
        };
        let in_time = fermata.wait_log("first", PROGRAM_LIMIT, reached)?;
        std::thread::sleep(Duration::from_micros(self.moment.delay_us));
        Ok(in_time)
    }
}

/// What a checkpoint tells of its validation.
#[derive(Deserialize)]
struct Told {
    overtaken: u64,
    device: ToldDevice,
}

#[derive(Deserialize)]
struct ToldDevice {
    stall: ToldStall,
    validation: ToldValidation,
}

#[derive(Deserialize)]
struct ToldStall {
    isolated_bytes: u64,
    waits: u64,
}

#[derive(Deserialize)]
struct ToldValidation {
    by: Validate,
    violations: u64,
}

impl Told {
    fn parse(document: &str) -> Result<Self> {
        serde_json::from_str(document).with_context(|| format!("checkpoint's answer: {document}"))
    }
}

fn too_late(error: &anyhow::Error) -> Outcome {
    Outcome::TooLate(Some(format!("{error:#}")))
}

/// Status of the tool for a session or program that is not there.
const NOT_FOUND: i32 = 10;

/// Whether a checkpoint was refused because the program, or one of its processes, has ended.
fn says_ended(done: &Finished) -> bool {
    done.status == NOT_FOUND && done.stderr.contains("has ended")
}

/// Whether the program has come to its end.
fn ended(fermata: &Fermata, name: &str) -> bool {
    fermata.log(name).is_ok_and(|log| log.contains("\ndigest "))
}

/// Program and worker of a session; before its first CUDA call it has no worker.
fn live(session: &Session) -> Result<Vec<Process>> {
    let program = session.pid.context("`ps` tells no pid")?;
    [Some(program), session.worker_pid]
        .into_iter()
        .flatten()
        .map(|pid| processes::look_up(pid).with_context(|| format!("process {pid} is gone")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: i32, stderr: &str) -> Finished {
        Finished {
            status,
            stdout: String::new(),
            stderr: stderr.to_owned(),
            took: Duration::ZERO,
        }
    }

    #[test]
    fn only_a_checkpoint_of_a_program_that_has_ended_is_too_late() {
        for message in [
            "error: session `first` has ended",
            "error: process 7 has ended",
            "error: the program has ended",
        ] {
            assert!(says_ended(&refused(NOT_FOUND, message)), "{message}");
        }
        for (status, message) in [
            (
                2,
                "error: the session's worker is lost: its process has ended",
            ),
            (NOT_FOUND, "error: there is no session `first`"),
            (
                11,
                "error: session `first` is being checkpointed\n\nhint: try again when that has ended",
            ),
            (
                14,
                "error: CRIU cannot dump the program: it gives no reason",
            ),
        ] {
            assert!(!says_ended(&refused(status, message)), "{message}");
        }
    }
}
