//! What cases stand on: a sound image, a program beside that nothing may happen to, and what may be there between cases.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::Draw;
use crate::case::{Device, Mode};
use crate::command::Finished;
use crate::output::Output;
use crate::processes::{self, Process};
use crate::scene::{SHORT, Scene, Which, wait_until};

/// The program beside.
pub const NEIGHBOUR: &str = "neighbour";
/// An image that must stay whole; what is restored from it works to its end at once.
pub const OLDER: &str = "older";
/// Statuses that docs/settings.md and `fermata --help` name for a refusal.
const REFUSALS: [i32; 10] = [1, 2, 3, 10, 11, 12, 13, 14, 125, 126];
/// A program that works for a second or more, and then waits at this step to be let go.
const MOVING: [&str; 6] = ["--steps", "400", "--size", "128", "--pause-ms", "3"];
const WAITS_AT: u64 = 300;
/// The name of that program, and of the neighbour.
const PROGRAM: &str = "heat2d";
/// Workers that may wait: one for any program, one for each of the two images restored last, and one that is being started in the place
/// of one of them.
const SPARES: usize = 4;

/// Logs of failed restores that a daemon keeps.
const KEPT_LOGS: usize = 8;

/// See the module.
pub struct Ground {
    /// Where it all is.
    pub scene: Scene,
    /// What a restored program prints.
    restored: String,
    /// What a started one prints.
    started: String,
    neighbour: [Process; 2],
    /// Names in the runtime folder.
    names: BTreeSet<PathBuf>,
}

/// How a session has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Status of its program; unknown to a daemon that has not started it.
    pub status: Option<i32>,
    /// What it has printed.
    pub digest: Option<String>,
}

impl Ground {
    /// Sets up the scene, with its daemon.
    ///
    /// # Errors
    /// When any of it fails.
    pub fn new(scene: Scene) -> Result<Self> {
        let digest = |options: &[&str]| -> Result<String> {
            let printed = scene.straight(PROGRAM, options)?.digest;
            printed.context("no digest")
        };
        let (restored, started) = (digest(SHORT)?, digest(&MOVING[..4])?);
        scene.start_slow(NEIGHBOUR)?;
        scene.start_held("source")?;
        let fermata = scene.fermata();
        fermata.checkpoint("source", OLDER, Mode::Stop)?;
        fermata.kill("source")?;
        scene.let_go()?;
        let neighbour = [
            scene.process(NEIGHBOUR, Which::Program)?,
            scene.process(NEIGHBOUR, Which::Worker)?,
        ];
        let mut ground = Self {
            scene,
            restored,
            started,
            neighbour,
            names: BTreeSet::new(),
        };
        ground.check_nothing_left()?;
        ground.names = ground.names_now()?;
        Ok(ground)
    }

    /// Starts a program as session `name`, which does not end before [`Ground::let_go`]; returns when it is at work.
    ///
    /// # Errors
    /// When it does not begin.
    pub fn start(&self, name: &str) -> Result<()> {
        let program = self.scene.tree().program(PROGRAM)?;
        let fermata = self.scene.fermata();
        let variables = [
            ("HOLD_AT", OsString::from(WAITS_AT.to_string())),
            ("HOLD_UNTIL", self.go(name).into_os_string()),
        ];
        fermata.run_with(&variables, name, Device::Soft, &program, &MOVING)?;
        wait_until("a program works", || {
            Ok(!Output::parse(&fermata.log(name)?)?.steps.is_empty())
        })
    }

    /// Lets the program of session `name`, and what is restored from its images, work to its end.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn let_go(&self, name: &str) -> Result<()> {
        Ok(fs::write(self.go(name), "")?)
    }

    fn go(&self, name: &str) -> PathBuf {
        self.scene.sandbox().work().join(format!("{name}.go"))
    }

    /// Waits until session `name` has ended; `None` if there is none.
    ///
    /// # Errors
    /// At the deadline.
    pub fn end_of(&self, name: &str) -> Result<Option<Ended>> {
        let fermata = self.scene.fermata();
        let mut last = None;
        wait_until("a session ends", || {
            last = fermata.find(name)?;
            Ok(last.as_ref().is_none_or(|it| it.state == "exited"))
        })?;
        let Some(session) = last else { return Ok(None) };
        let digest = Output::parse(&fs::read_to_string(session.log).unwrap_or_default())?.digest;
        Ok(Some(Ended {
            status: session.exit_status,
            digest,
        }))
    }

    /// Demands of a session that it is as if nothing had happened, or, if it may have been lost, that it says so.
    ///
    /// # Errors
    /// What is not so.
    pub fn check_ended(&self, ended: &Ended, was_restored: bool, may_be_lost: bool) -> Result<()> {
        let right = match was_restored {
            true => &self.restored,
            false => &self.started,
        };
        match &ended.digest {
            Some(digest) => {
                let well = ended.status.is_none_or(|it| it == 0) || may_be_lost;
                ensure!(digest == right && well, "{ended:?} instead of {right}");
            }
            None => ensure!(
                may_be_lost && ended.status != Some(0),
                "{ended:?}, and nothing has happened to it"
            ),
        }
        Ok(())
    }

    /// Demands that `image` is sound, and gives the right digest.
    ///
    /// # Errors
    /// What is not so.
    pub fn check_image(&self, image: &str, session: &str, draw: &mut Draw) -> Result<()> {
        let fermata = self.scene.fermata();
        fermata
            .call(&["images", "verify", image])?
            .success("fermata images verify")?;
        let mut words = vec!["restore", image, "--detach", "--name", session];
        if draw.below(2) == 0 {
            words.push("--eager");
        }
        fermata.call(&words)?.success("fermata restore")?;
        let ended = self.end_of(session)?.context("it is not there")?;
        self.check_ended(&ended, image == OLDER, false)
            .with_context(|| format!("restored from `{image}`"))
    }

    /// Demands that the neighbour works, in the same processes.
    ///
    /// # Errors
    /// When it does not.
    pub fn check_neighbour(&self) -> Result<()> {
        self.scene.check_goes_on(NEIGHBOUR)?;
        let session = self.scene.fermata().session(NEIGHBOUR)?;
        let found = [session.pid, session.worker_pid];
        let before = self.neighbour.each_ref().map(|it| Some(it.pid));
        ensure!(found == before, "{found:?} instead of {before:?}");
        Ok(())
    }

    /// Processes beside the daemon and the neighbour's.
    pub fn others(&self) -> Vec<Process> {
        let daemon = self.scene.sandbox().daemon();
        let mut found = self.scene.sandbox().processes();
        found.retain(|it| !self.neighbour.contains(it) && Some(it) != daemon.as_ref());
        found
    }

    /// Waits until there is no process but the daemon, the neighbour's, and workers and a monitor that wait for programs.
    ///
    /// # Errors
    /// Names what is left at the deadline.
    pub fn check_nothing_left(&self) -> Result<()> {
        let mut left = String::new();
        let gone = wait_until("nothing runs any more", || {
            let (workers, rest): (Vec<_>, Vec<_>) = self
                .others()
                .into_iter()
                .partition(|it| it.name == "fermata-worker");
            let spares = workers
                .iter()
                .filter(|it| processes::has_no_arguments(it.pid))
                .count();
            left = format!("{spares} spare workers, {rest:?}");
            Ok(rest.is_empty() && spares <= SPARES)
        });
        gone.with_context(|| left)
    }

    /// Demands that the runtime folder holds what it did.
    ///
    /// # Errors
    /// Names what is new or gone.
    pub fn check_files(&self) -> Result<()> {
        let mut now = BTreeSet::new();
        wait_until("the runtime folder is as before", || {
            now = self.names_now()?;
            Ok(now == self.names)
        })
        .with_context(|| format!("{now:?} instead of {:?}", self.names))
    }

    /// Drafts of images: what is left of a checkpoint that came to nothing.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn drafts(&self) -> Result<Vec<String>> {
        let entries = fs::read_dir(self.scene.sandbox().images())?.flatten();
        let names = entries.map(|it| it.file_name().to_string_lossy().into_owned());
        Ok(names.filter(|name| name.starts_with(".draft")).collect())
    }

    /// The sockets in the runtime folder.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn sockets(&self) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(self.scene.sandbox().runtime())?.flatten();
        let sockets = entries.filter(|it| it.file_type().is_ok_and(|it| it.is_socket()));
        let mut sockets: Vec<_> = sockets.map(|it| it.path()).collect();
        sockets.sort();
        Ok(sockets)
    }

    fn names_now(&self) -> Result<BTreeSet<PathBuf>> {
        let entries = fs::read_dir(self.scene.sandbox().runtime())?;
        let (logs, names): (BTreeSet<_>, BTreeSet<_>) = entries
            .flatten()
            .map(|it| it.path())
            .partition(|it| it.extension().is_some_and(|it| it == "log") && is_of_restore(it));
        // What CRIU said of restores that failed is kept on purpose, of the last ones.
        ensure!(logs.len() <= KEPT_LOGS, "{logs:?}");
        Ok(names)
    }

    /// Demands that all is as before the first case, and that nothing is left.
    ///
    /// # Errors
    /// What is not so.
    pub fn close(self) -> Result<()> {
        self.close_over(())
    }

    /// The same, for a scene that lies on file systems of its own, which are dropped before it is left.
    ///
    /// # Errors
    /// As [`Ground::close`].
    pub fn close_over<T>(self, disks: T) -> Result<()> {
        let mut draw = Draw::of(0, 0);
        self.check_image(OLDER, "last", &mut draw)?;
        self.check_neighbour()?;
        // What killed daemons have left goes with the next image.
        let fermata = self.scene.fermata();
        fermata.checkpoint(NEIGHBOUR, "last", Mode::Stop)?;
        let drafts = self.drafts()?;
        ensure!(drafts.is_empty(), "half images: {drafts:?}");
        fermata
            .call(&["images", "verify", "--all"])?
            .success("fermata images verify")?;
        fermata.kill(NEIGHBOUR)?;
        drop(disks);
        self.scene.close()
    }
}

fn is_of_restore(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("restore-")
}

/// Demands that a command has succeeded, or says with a documented status why not.
///
/// # Errors
/// It has another status, or says nothing.
pub fn check_answer(done: &Finished) -> Result<()> {
    let refused = REFUSALS.contains(&done.status) && !done.stderr.trim().is_empty();
    ensure!(
        done.status == 0 || refused,
        "status {}: {}",
        done.status,
        done.stderr
    );
    Ok(())
}

/// What came of a command, in a word.
pub fn told(done: &Finished) -> String {
    match done.status {
        0 => "done".to_owned(),
        status => format!("refused with status {status}"),
    }
}
