//! Deaths at the steps of a restore.

use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};

use super::{Held, Stage, VICTIMS, Victim, all_gone, in_time};
use crate::case::PROGRAM_LIMIT;
use crate::command::Finished;
use crate::halt::Halt;
use crate::held::HeldCriu;
use crate::hold::COPIES;
use crate::processes::{self, Process};
use crate::scene::{kill_nine, wait_until};

/// What a restore does when somebody dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// CRIU is about to restore the program; the worker is ready.
    Host,
    /// The worker has the session's objects and nothing of its data; the program is there, parked.
    Objects,
    /// The program is there, parked; the worker is ready.
    Restored,
    /// The program is about to be woken.
    Reattach,
    /// It has come and was not welcomed.
    Welcome,
    /// It goes on, which is not noted down yet.
    Resumed,
    /// The command is done; data comes behind the program, which does not ask for it.
    Data,
    /// The same, and the program waits for it.
    Gate,
}

/// All steps.
pub const STEPS: [Step; 8] = [
    Step::Host,
    Step::Objects,
    Step::Restored,
    Step::Reattach,
    Step::Welcome,
    Step::Resumed,
    Step::Data,
    Step::Gate,
];

/// What must become of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// There is none: the command fails.
    None,
    /// It ends with the status of a killed program.
    Killed,
    /// It goes on, from the beginning of the image if its worker is gone.
    GoesOn,
}

/// A death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Death {
    /// When.
    pub step: Step,
    /// Whose.
    pub victim: Victim,
}

/// Every death at every step at which the victim is there.
pub fn all() -> Vec<Death> {
    let cross = |step: Step| VICTIMS.map(|victim| Death { step, victim });
    let deaths = STEPS.into_iter().flat_map(cross);
    deaths
        .filter(|it| it.step != Step::Host || it.victim != Victim::Program)
        .collect()
}

impl Death {
    fn fate(self) -> Fate {
        match (self.step, self.victim) {
            (Step::Resumed | Step::Data | Step::Gate, Victim::Program) => Fate::Killed,
            (Step::Data | Step::Gate, _) => Fate::GoesOn,
            // From when data may be coming: what is lost is taken from the image once more.
            (Step::Reattach | Step::Welcome | Step::Resumed, Victim::Worker) => Fate::GoesOn,
            _ => Fate::None,
        }
    }

    /// Has it happen to a restore of the stage's image.
    ///
    /// # Errors
    /// What is not as it must be then.
    pub(super) fn happen(self, stage: &Stage) -> Result<()> {
        self.try_happen(stage).with_context(|| format!("{self:?}"))
    }

    fn try_happen(self, stage: &Stage) -> Result<()> {
        let Self { step, victim } = self;
        let (scene, fermata) = (&stage.scene, stage.scene.fermata());
        let name = format!("{step:?}-{victim:?}").to_lowercase();
        let moment = |moment| Ok::<_, anyhow::Error>(Held::Moment(Halt::at(scene, moment)?));
        let held = match step {
            Step::Host => {
                let criu = HeldCriu::install(scene)?;
                criu.hold()?;
                Held::Criu(criu)
            }
            Step::Objects => moment("objects")?,
            Step::Restored => moment("restored")?,
            Step::Reattach => moment("reattach")?,
            Step::Welcome => moment("welcome")?,
            Step::Resumed => moment("resumed")?,
            Step::Data | Step::Gate => {
                stage.copies.only(COPIES, 0);
                Held::Copies
            }
        };
        let answered = matches!(held, Held::Copies);
        let (attempt, since, there) = std::thread::scope(|scope| {
            let attempt = scope.spawn(|| scene.try_restore("older", &name));
            let there = self.wait(stage, &name, &held).and_then(|there| {
                ensure!(answered || !attempt.is_finished(), "it was over");
                kill_nine(
                    there
                        .process(stage, victim)?
                        .as_ref()
                        .context("no victim")?,
                )?;
                Ok(there)
            });
            let since = Instant::now();
            let released = held.release(stage);
            let attempt = attempt.join().map_err(|_| anyhow!("restore thread"))?;
            released?;
            Ok::<_, anyhow::Error>((attempt?, since, there?))
        })?;
        in_time(&attempt, since)?;
        self.check_answer(&attempt)?;
        stage.verify("older")?;
        match self.fate() {
            Fate::None => {
                wait_until("half a session goes", || {
                    let session = fermata.find(&name)?;
                    Ok(session.is_none_or(|it| it.state == "exited"))
                })?;
                all_gone(there.program.iter().chain([&there.worker]))?;
            }
            Fate::Killed => {
                let status = fermata.wait_exit(&name, PROGRAM_LIMIT)?;
                ensure!(status == 137, "status {status}");
                all_gone(there.program.iter().chain([&there.worker]))?;
            }
            Fate::GoesOn => {
                stage.let_go("older")?;
                stage.check_ends_well(&name)?;
                let arrival = fermata.session(&name)?.arrival.map(|it| it.stand);
                let rolled_back = arrival.as_deref() == Some("rolled-back");
                ensure!(rolled_back == (victim == Victim::Worker), "{arrival:?}");
                all_gone(there.program.iter().chain([&there.worker]))?;
            }
        }
        stage.hold_again("older")
    }

    /// Waits until the restore is at the step, and whatever goes on beside it is done; who is there then.
    fn wait(self, stage: &Stage, name: &str, held: &Held) -> Result<There> {
        let fermata = stage.scene.fermata();
        let halted = held.wait()?;
        if self.step == Step::Gate {
            stage.let_go("older")?;
        }
        let mut there = None;
        wait_until("program and worker are there", || {
            let Some(session) = fermata.find(name)? else {
                return Ok(false);
            };
            let worker = match (self.step, &halted) {
                (Step::Objects, Some(worker)) => Some(worker.clone()),
                _ => session.worker_pid.and_then(processes::look_up),
            };
            let program = session.pid.and_then(processes::look_up);
            let complete = match self.step {
                Step::Host => true,
                Step::Data => session.state == "running",
                Step::Gate => session.arrival.is_some_and(|it| it.waits()),
                _ => program.is_some(),
            };
            there = worker.map(|worker| There { program, worker });
            Ok(complete && there.is_some())
        })?;
        there.context("nobody is there")
    }

    fn check_answer(self, attempt: &Finished) -> Result<()> {
        if self.fate() != Fate::None {
            let said = attempt.stderr.trim();
            ensure!(attempt.status == 0, "{}: {said}", attempt.status);
            return Ok(());
        }
        ensure!(attempt.status != 0, "half a session counts as one");
        self.victim.check_named(attempt)
    }
}

/// Who is there when somebody is to die.
struct There {
    program: Option<Process>,
    worker: Process,
}

impl There {
    fn process(&self, stage: &Stage, victim: Victim) -> Result<Option<Process>> {
        Ok(match victim {
            Victim::Program => self.program.clone(),
            Victim::Worker => Some(self.worker.clone()),
            Victim::Daemon => stage.scene.sandbox().daemon(),
        })
    }
}
