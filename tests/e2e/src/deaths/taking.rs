//! Deaths at the steps of a checkpoint.

use std::ffi::OsStr;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};

use super::{Held, Stage, VICTIMS, Victim, all_gone, in_time};
use crate::case::{Mode, PROGRAM_LIMIT};
use crate::command::Finished;
use crate::halt::Halt;
use crate::scene::{Which, kill_nine};

/// What a checkpoint does when somebody dies; in their order, as far as there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The worker makes ready what can be before the stop.
    Prepare,
    /// The program stands still and is attached.
    Parked,
    /// It has let go of its worker, which does not know.
    Detached,
    /// The device's part in the stop begins: digests, copies. The program has been dumped.
    Stopped,
    /// CRIU is about to dump the program.
    Dump,
    /// The program is about to be woken.
    Reattach,
    /// It has come and was not welcomed.
    Welcome,
    /// It was welcomed, and its worker does not know.
    Serve,
    /// It goes on, which is not noted down yet.
    Resumed,
    /// The worker is about to copy: with `stop` in the stop, with `recopy` ahead of it, else behind the running program.
    Copy,
    /// It is about to write a chunk: with `recopy` ahead of the stop, else behind the running program.
    Write,
    /// It gives packs their names, and has not their indices.
    Packs,
    /// Nothing but the manifest is missing.
    Commit,
    /// Nothing but the image's name is missing.
    Manifest,
    /// It has its name, and nobody was told.
    Named,
}

/// All steps.
pub const STEPS: [Step; 15] = [
    Step::Prepare,
    Step::Parked,
    Step::Detached,
    Step::Stopped,
    Step::Dump,
    Step::Reattach,
    Step::Welcome,
    Step::Serve,
    Step::Resumed,
    Step::Copy,
    Step::Write,
    Step::Packs,
    Step::Commit,
    Step::Manifest,
    Step::Named,
];

impl Step {
    /// The protocols that have it.
    fn modes(self) -> &'static [Mode] {
        match self {
            Self::Prepare => &[Mode::Snapshot, Mode::Cow, Mode::Recopy],
            _ => &[Mode::Stop, Mode::Snapshot, Mode::Cow, Mode::Recopy],
        }
    }

    /// Where somebody stands still meanwhile.
    fn moment(self) -> &'static str {
        match self {
            Self::Dump => "dump",
            Self::Prepare => "prepare",
            Self::Parked => "parked",
            Self::Detached => "detached",
            Self::Stopped => "stopped",
            Self::Reattach => "reattach",
            Self::Welcome => "welcome",
            Self::Serve => "serve",
            Self::Resumed => "resumed",
            Self::Copy => "copy",
            Self::Write => "write",
            Self::Packs => "packs",
            Self::Commit => "commit",
            Self::Manifest => "manifest",
            Self::Named => "named",
        }
    }
}

/// A death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Death {
    /// When.
    pub step: Step,
    /// Of which protocol.
    pub mode: Mode,
    /// Whose.
    pub victim: Victim,
}

/// Every death at every step of every protocol.
pub fn all() -> Vec<Death> {
    let cross = |step: Step| {
        let modes = step.modes().iter();
        modes.flat_map(move |mode| {
            VICTIMS.map(|victim| Death {
                step,
                mode: *mode,
                victim,
            })
        })
    };
    STEPS.into_iter().flat_map(cross).collect()
}

/// So many of them that every step is met by every victim, and in every protocol that has it.
pub fn chosen() -> Vec<Death> {
    let some = |(nth, step): (usize, Step)| {
        let modes = step.modes();
        let most = modes.len().max(VICTIMS.len());
        (0..most).map(move |i| Death {
            step,
            mode: modes[i % modes.len()],
            victim: VICTIMS[(i + nth) % VICTIMS.len()],
        })
    };
    STEPS.into_iter().enumerate().flat_map(some).collect()
}

impl Death {
    /// Whether an image must come of it: what has been read from a program that was whole is one, if those live who
    /// have to write it, and the daemon does not give it up with the attempt to bring the program back.
    fn leaves_image(self) -> bool {
        let behind = matches!(self.mode, Mode::Snapshot | Mode::Cow);
        match (self.victim, self.step) {
            (_, Step::Named) => true,
            (Victim::Daemon, _) => false,
            (_, Step::Commit | Step::Manifest) => true,
            (Victim::Worker, _) => false,
            (Victim::Program, Step::Packs | Step::Resumed) => true,
            (Victim::Program, Step::Copy | Step::Write) => self.mode != Mode::Recopy,
            (Victim::Program, Step::Stopped | Step::Reattach | Step::Welcome | Step::Serve) => {
                !behind
            }
            (Victim::Program, _) => false,
        }
    }

    /// Has it happen.
    ///
    /// # Errors
    /// What is not as it must be then.
    pub(super) fn happen(self, stage: &Stage) -> Result<()> {
        self.try_happen(stage).with_context(|| format!("{self:?}"))
    }

    fn try_happen(self, stage: &Stage) -> Result<()> {
        let Self { step, mode, victim } = self;
        let (scene, fermata) = (&stage.scene, stage.scene.fermata());
        let name = format!("{step:?}-{}-{victim:?}", mode.name()).to_lowercase();
        stage.start(&name)?;
        let session = fermata.session(&name)?;
        let program = scene.process(&name, Which::Program)?;
        let worker = scene.process(&name, Which::Worker)?;
        let dead = stage.process(victim, &name)?;
        let held = Held::Moment(Halt::at(scene, step.moment())?);
        let (attempt, since) = std::thread::scope(|scope| {
            let attempt = scope.spawn(|| checkpoint(stage, &name, mode));
            let killed = self.wait(stage, &name, &held).and_then(|()| {
                ensure!(!attempt.is_finished(), "it was over");
                kill_nine(&dead)
            });
            let since = Instant::now();
            let released = held.release(stage);
            let attempt = attempt.join().map_err(|_| anyhow!("checkpoint thread"))?;
            killed.and(released)?;
            Ok::<_, anyhow::Error>((attempt?, since))
        })?;
        in_time(&attempt, since)?;
        self.check_answer(&attempt)?;
        let whole = fermata.image(&name).exists();
        ensure!(
            whole == self.leaves_image(),
            "image: {whole}; {}",
            attempt.stderr
        );
        stage.verify("older")?;
        if victim == Victim::Daemon {
            let back = scene.wait_back(&name)?;
            ensure!(
                (back.pid, back.worker_pid) == (session.pid, session.worker_pid),
                "other processes"
            );
            // The next daemon serves it, and what the last one has left goes.
            let next = format!("{name}-next");
            fermata.checkpoint(&name, &next, mode)?;
            stage.verify(&next)?;
        }
        let halves = stage.halves()?;
        ensure!(halves.is_empty(), "half images: {halves:?}");
        stage.let_go(&name)?;
        match victim {
            Victim::Daemon => stage.check_ends_well(&name)?,
            Victim::Worker => {
                let status = fermata.wait_exit(&name, PROGRAM_LIMIT)?;
                ensure!(status != 0, "it ended with success, its GPU being gone");
            }
            Victim::Program => {
                let status = fermata.wait_exit(&name, PROGRAM_LIMIT)?;
                ensure!(status == 137, "status {status}");
            }
        }
        all_gone([&program, &worker])?;
        if whole {
            stage.check_image(&name, &name)?;
        }
        Ok(())
    }

    /// Waits until the checkpoint is at the step, and whatever goes on beside it is done.
    fn wait(self, stage: &Stage, name: &str, held: &Held) -> Result<()> {
        held.wait()?;
        match self.step {
            Step::Copy | Step::Write if self.mode == Mode::Recopy => Ok(()),
            Step::Copy if self.mode == Mode::Stop => stage.scene.wait_dumped(name),
            Step::Stopped => stage.scene.wait_dumped(name),
            Step::Copy | Step::Write | Step::Packs => stage.scene.wait_behind(name, name),
            _ => Ok(()),
        }
    }

    /// The command says yes if there is an image and nobody was lost with it whom it needed.
    fn check_answer(self, attempt: &Finished) -> Result<()> {
        if attempt.status == 0 {
            ensure!(self.leaves_image(), "it succeeded");
            return Ok(());
        }
        self.victim.check_named(attempt)
    }
}

fn checkpoint(stage: &Stage, name: &str, mode: Mode) -> Result<Finished> {
    let fermata = stage.scene.fermata();
    let image = fermata.image(name);
    let words = ["checkpoint", name, "--mode", mode.name(), "-o"].map(OsStr::new);
    let words: Vec<_> = words.into_iter().chain([image.as_os_str()]).collect();
    fermata.call(&words)
}
