//! Program, worker or daemon dies at a step of a checkpoint or restore: what must be left.
//!
//! A step is met surely, not by speed: somebody is made to stand still there (`halt`, `held`, softgpu's `HOLD`), the
//! victim is killed, and the rest is let go. Then whatever was under way must end, with a reason; what is no whole image
//! is none; the older image and everybody who was not the victim must be as if nothing had happened, and nobody is left.
//! Programs stand still at a step of their own meanwhile, so that each has its digest to prove that it is whole.
//!
//! `taking`: the steps of a checkpoint, for each protocol. `bringing`: those of a restore.

pub mod bringing;
pub mod taking;

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use crate::case::{Device, Mode};
use crate::command::Finished;
use crate::halt::Halt;
use crate::held::HeldCriu;
use crate::hold::{COPIES, Hold};
use crate::output::Output;
use crate::processes::Process;
use crate::scene::{Scene, Which, wait_gone, wait_until};

/// The program that all cases take, and its steps: it prints one in [`PRINTED`].
const PROGRAM: &str = "heat2d";
const STEPS: u64 = 1200;
const PRINTED: u64 = 20;
/// 64 KiB a field: softgpu's `HOLD` lets less than 16 KiB pass.
const SIZE: &str = "128";
/// What was under way must have ended this long after a death: far less than it takes a step of it to be given up.
const END_LIMIT: Duration = Duration::from_secs(50);

/// Who dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// The user's program.
    Program,
    /// Its worker.
    Worker,
    /// The daemon.
    Daemon,
}

impl Victim {
    /// Demands that a command which has failed says who has died.
    fn check_named(self, attempt: &Finished) -> Result<()> {
        let said = attempt.stderr.trim();
        let reasons: &[&str] = match self {
            Self::Program => &["has ended", "the program"],
            Self::Worker => &["worker"],
            Self::Daemon => &["daemon"],
        };
        ensure!(
            reasons.iter().any(|reason| said.contains(reason)),
            "no reason: status {}, {said}",
            attempt.status
        );
        Ok(())
    }
}

/// All of them.
pub const VICTIMS: [Victim; 3] = [Victim::Program, Victim::Worker, Victim::Daemon];

/// A death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// While an image is taken.
    Taking(taking::Death),
    /// While one is restored.
    Bringing(bringing::Death),
}

/// Who is made to stand still, and how.
enum Held {
    Moment(Halt),
    Criu(HeldCriu),
    Copies,
}

impl Held {
    /// Waits until somebody stands still, and says who, if that is known; nobody need have come to held copies.
    fn wait(&self) -> Result<Option<Process>> {
        match self {
            Self::Moment(halt) => halt.wait().map(Some),
            Self::Criu(criu) => criu.wait().map(|()| None),
            Self::Copies => Ok(None),
        }
    }

    /// Lets everybody go on.
    fn release(self, stage: &Stage) -> Result<()> {
        match self {
            Self::Moment(halt) => drop(halt),
            Self::Criu(criu) => criu.release()?,
            Self::Copies => stage.copies.release(COPIES),
        }
        Ok(())
    }
}

/// Has these happen one after the other; `tell` hears of each, and what was not as it must be then.
///
/// # Errors
/// All that was not.
pub fn perform(
    deaths: impl IntoIterator<Item = Death>,
    mut tell: impl FnMut(Death, Option<&anyhow::Error>),
) -> Result<()> {
    let mut failures = Vec::new();
    let mut stage = None;
    for death in deaths {
        let on = match stage.take() {
            Some(stage) => stage,
            None => Stage::new()?,
        };
        let happened = match death {
            Death::Taking(death) => death.happen(&on),
            Death::Bringing(death) => death.happen(&on),
        };
        let happened = happened.with_context(|| {
            let log = on.scene.daemon_log().unwrap_or_default();
            format!("the daemons' log: {log}")
        });
        tell(death, happened.as_ref().err());
        match happened {
            Ok(()) => stage = Some(on),
            // What has gone wrong with one is not to spoil the next.
            Err(error) => failures.push(format!("{error:#}")),
        }
    }
    if let Some(stage) = stage {
        stage.close()?;
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// A scene with an image that must stay whole, for many cases one after the other.
pub struct Stage {
    scene: Scene,
    copies: Hold<PathBuf>,
    straight: Output,
    cases: AtomicU64,
}

impl Stage {
    /// Makes the image.
    ///
    /// # Errors
    /// When any of it fails.
    pub fn new() -> Result<Self> {
        let scene = Scene::new()?;
        let folder = scene.sandbox().work().join("hold");
        fs::create_dir(&folder)?;
        let straight = scene.straight(PROGRAM, &options())?;
        let stage = Self {
            scene,
            copies: Hold::at(folder),
            straight,
            cases: AtomicU64::new(0),
        };
        stage.straight.check_complete(&stage.straight)?;
        stage.start("older")?;
        let fermata = stage.scene.fermata();
        fermata.checkpoint("older", "older", Mode::Stop)?;
        fermata.kill("older")?;
        Ok(stage)
    }

    /// Starts the program as session `name`, and returns when it stands still, each time with other data.
    fn start(&self, name: &str) -> Result<()> {
        let nth = self.cases.fetch_add(1, Ordering::Relaxed) + 1;
        ensure!(nth < STEPS / PRINTED, "too many cases for one stage");
        let go = self.go(name).into_os_string().into_string();
        let go = go.map_err(|it| anyhow!("path {it:?}"))?;
        let (setting, folder) = self.copies.variable();
        let variables = [
            ("HOLD_AT", (nth * PRINTED).to_string()),
            ("HOLD_UNTIL", go),
            (setting, folder.to_owned()),
        ];
        let program = self.scene.tree().program(PROGRAM)?;
        let fermata = self.scene.fermata();
        fermata.run_with(&variables, name, Device::Soft, &program, &options())?;
        self.scene.wait_steps(name, nth as usize)
    }

    /// What lets the program go on that was started as session `name`, and whatever is restored from its images.
    fn go(&self, name: &str) -> PathBuf {
        self.scene.sandbox().work().join(format!("{name}.go"))
    }

    fn let_go(&self, name: &str) -> Result<()> {
        Ok(fs::write(self.go(name), "")?)
    }

    /// Whatever is restored from now on from images of session `name` stands still where that did.
    fn hold_again(&self, name: &str) -> Result<()> {
        match fs::remove_file(self.go(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Waits until session `name`, whose program has been let go, has ended with the bytes of a run without Fermata.
    fn check_ends_well(&self, name: &str) -> Result<()> {
        let fermata = self.scene.fermata();
        wait_until("a session ends", || {
            Ok(fermata.session(name)?.state == "exited")
        })?;
        // Only the daemon that has started a program knows its status.
        let status = fermata.session(name)?.exit_status.unwrap_or(0);
        let log = fermata.log(name)?;
        ensure!(status == 0, "`{name}` ended with {status}: {log}");
        Output::parse(&log)?.check_complete(&self.straight)
    }

    /// Demands that `image` is whole, and that what is restored from it ends as session `of` would have.
    fn check_image(&self, image: &str, of: &str) -> Result<()> {
        self.verify(image)?;
        self.let_go(of)?;
        let name = format!("{image}-again");
        let restored = self.scene.try_restore(image, &name)?;
        restored.success("fermata restore")?;
        self.check_ends_well(&name)
    }

    fn verify(&self, image: &str) -> Result<()> {
        let words = ["images", "verify", image];
        let done = self.scene.fermata().call(&words)?;
        done.success("fermata images verify").map(drop)
    }

    /// What is below the folder of images and not whole.
    fn halves(&self) -> Result<Vec<String>> {
        let entries = fs::read_dir(self.scene.sandbox().images())?.flatten();
        let names = entries.map(|it| it.file_name().to_string_lossy().into_owned());
        Ok(names.filter(|name| name.starts_with(".draft")).collect())
    }

    /// The process that is to die; its session is `name`.
    fn process(&self, victim: Victim, name: &str) -> Result<Process> {
        match victim {
            Victim::Program => self.scene.process(name, Which::Program),
            Victim::Worker => self.scene.process(name, Which::Worker),
            Victim::Daemon => self.scene.sandbox().daemon().context("no daemon runs"),
        }
    }

    /// Ends the stage: the image from the beginning gives what it should, and nothing is left.
    ///
    /// # Errors
    /// Names what is not as it should be.
    pub fn close(self) -> Result<()> {
        self.check_image("older", "older")?;
        self.scene.close()
    }
}

fn options() -> [&'static str; 4] {
    ["--steps", "1200", "--size", SIZE]
}

/// Demands that what was under way when somebody died has ended in time.
fn in_time(done: &Finished, since: std::time::Instant) -> Result<()> {
    let took = since.elapsed();
    ensure!(took < END_LIMIT, "it ended after {took:?}: {}", done.stderr);
    Ok(())
}

/// Waits until these are gone.
fn all_gone<'a>(processes: impl IntoIterator<Item = &'a Process>) -> Result<()> {
    processes.into_iter().try_for_each(wait_gone)
}
