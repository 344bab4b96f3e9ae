//! Processes that are killed at random moments of a checkpoint or restore: the program, its worker or a waiting one, the
//! daemon, CRIU, a helper of the daemon, the command.
//!
//! `deaths` meets every step surely; here the moment is drawn, and so is met what has no step.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use super::ground::{Ended, Ground, OLDER, check_answer};
use super::{Draw, Kind, Shown};
use crate::case::Mode;
use crate::command::Finished;
use crate::processes::{self, Process};
use crate::scene::{Scene, Which, kill_nine, wait_until};

/// The longest time between the begin of a command and a death: most commands are done by then.
const LONGEST: u64 = 500_000;
/// The neighbour is looked after once in so many cases.
const LOOK: u64 = 8;
const MODES: [Mode; 4] = [Mode::Stop, Mode::Snapshot, Mode::Cow, Mode::Recopy];
const KILLED: i32 = 137;

/// Who dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Program,
    Worker,
    Daemon,
    Criu,
    Helper,
    Command,
}

const VICTIMS: [(Victim, &str); 6] = [
    (Victim::Program, "program"),
    (Victim::Worker, "worker"),
    (Victim::Daemon, "daemon"),
    (Victim::Criu, "CRIU"),
    (Victim::Helper, "daemon's helper"),
    (Victim::Command, "command"),
];

/// See the module.
pub struct Kills {
    ground: Ground,
    /// A daemon has died since the last image was taken, which removes what it had begun.
    half: bool,
}

impl Kills {
    /// Sets the stage.
    ///
    /// # Errors
    /// When any of it fails.
    pub fn new() -> Result<Self> {
        let ground = Ground::new(Scene::new()?)?;
        Ok(Self {
            ground,
            half: false,
        })
    }

    /// The process that is to die, if there is one now.
    fn find(&self, victim: Victim, draw: &mut Draw) -> Option<Process> {
        let has = |it: &Process, word: &str| {
            let line = std::fs::read(format!("/proc/{}/cmdline", it.pid)).unwrap_or_default();
            line.split(|byte| *byte == 0)
                .any(|it| it == word.as_bytes())
        };
        let fits = |it: &Process| match victim {
            Victim::Program => it.name == "heat2d",
            Victim::Worker => it.name == "fermata-worker",
            Victim::Daemon => true,
            Victim::Criu => has(it, "swrk"),
            Victim::Helper => it.name == "fermatad" && !processes::has_no_arguments(it.pid),
            Victim::Command => it.name == "fermata",
        };
        let mut found = match victim {
            Victim::Daemon => self.ground.scene.sandbox().daemon().into_iter().collect(),
            _ => self.ground.others(),
        };
        found.retain(fits);
        (!found.is_empty()).then(|| draw.pick(&found).clone())
    }

    /// Runs a command, and kills the victim after a time; what the command said, and who was killed.
    fn beside(
        &self,
        words: &[&str],
        victim: Victim,
        draw: &mut Draw,
    ) -> Result<(Finished, Option<Process>)> {
        let delay = Duration::from_micros(draw.below(LONGEST));
        let fermata = self.ground.scene.fermata();
        let (done, killed) = std::thread::scope(|scope| {
            let attempt = scope.spawn(|| fermata.call(words));
            std::thread::sleep(delay);
            let mut found = self.find(victim, draw);
            // Those that live shortly are waited for as long as the command runs.
            while found.is_none() && !attempt.is_finished() {
                found = self.find(victim, draw);
            }
            let killed = found.as_ref().map_or(Ok(()), kill_nine);
            let done = attempt.join().map_err(|_| anyhow!("thread of a command"))?;
            killed.map(|()| (done, found))
        })?;
        let done = done?;
        // A command that is killed says nothing.
        if !(killed.is_some() && victim == Victim::Command && done.status == KILLED) {
            check_answer(&done)?;
        }
        Ok((done, killed))
    }

    fn take(&mut self, name: &str, victim: Victim, draw: &mut Draw) -> Result<String> {
        let scene = &self.ground.scene;
        self.ground.start(name)?;
        let own = [
            scene.process(name, Which::Program)?,
            scene.process(name, Which::Worker)?,
        ];
        let mode = draw.pick(&MODES).name();
        let path = scene.fermata().image(name);
        let image = path.to_str().context("path")?;
        let words = ["checkpoint", name, "--mode", mode, "-o", image];
        let (done, killed) = self.beside(&words, victim, draw)?;
        self.ground.let_go(name)?;
        let ended = self.ground.end_of(name)?.context("its session is gone")?;
        let lost = killed.as_ref().is_some_and(|it| own.contains(it));
        self.ground
            .check_ended(&ended, false, lost)
            .with_context(|| format!("{killed:?} was killed, {}", done.stderr))?;
        let taken = path.exists();
        self.half = !taken && (self.half || victim == Victim::Daemon);
        if !self.half {
            wait_until("a draft is gone", || Ok(self.ground.drafts()?.is_empty()))?;
        }
        if taken {
            self.ground
                .check_image(name, &format!("{name}-again"), draw)?;
            self.remove(name)?;
            return Ok(match killed {
                Some(_) => "an image all the same".to_owned(),
                None => "nobody to kill".to_owned(),
            });
        }
        ensure!(
            done.status != 0 && killed.is_some(),
            "status {}, and no image: {}",
            done.status,
            done.stderr
        );
        Ok(format!("no image, {}", how(&ended)))
    }

    fn bring(&self, name: &str, victim: Victim, draw: &mut Draw) -> Result<String> {
        let mut words = vec!["restore", OLDER, "--detach", "--name", name];
        if draw.below(2) == 0 {
            words.push("--eager");
        }
        let (done, killed) = self.beside(&words, victim, draw)?;
        let Some(ended) = self.ground.end_of(name)? else {
            ensure!(
                done.status != 0 && killed.is_some(),
                "status {}, and no session: {}",
                done.status,
                done.stderr
            );
            return Ok("no session".to_owned());
        };
        let may_be_lost =
            done.status != 0 || matches!(victim, Victim::Program | Victim::Worker | Victim::Helper);
        self.ground
            .check_ended(&ended, true, killed.is_some() && may_be_lost)
            .with_context(|| format!("{killed:?} was killed, {}", done.stderr))?;
        Ok(match killed {
            Some(_) => how(&ended).to_owned(),
            None => "nobody to kill".to_owned(),
        })
    }

    fn remove(&self, image: &str) -> Result<()> {
        let fermata = self.ground.scene.fermata();
        let done = fermata.call(&["images", "rm", image])?;
        done.success("fermata images rm").map(drop)
    }
}

fn how(ended: &Ended) -> &'static str {
    match ended.digest {
        Some(_) => "right digest",
        None => "the program ended",
    }
}

impl Kind for Kills {
    fn name(&self) -> &'static str {
        "kills"
    }

    fn perform(&mut self, number: u64, draw: &mut Draw) -> Result<Shown> {
        let (victim, who) = *draw.pick(&VICTIMS);
        let name = format!("case-{number}");
        // A dump and a running program have no helpers of the daemon.
        let restore = victim == Victim::Helper || draw.below(2) == 0;
        let harm = match restore {
            true => format!("{who} in a restore"),
            false => format!("{who} in a checkpoint"),
        };
        let came = match restore {
            true => self.bring(&name, victim, draw),
            false => self.take(&name, victim, draw),
        };
        let came = came.with_context(|| harm.clone())?;
        self.ground.check_nothing_left()?;
        if number.is_multiple_of(LOOK) {
            self.ground.check_neighbour()?;
            self.ground.check_files()?;
        }
        Ok(Shown { harm, came })
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.ground.close()
    }
}
