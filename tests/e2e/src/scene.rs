//! What the tests of single promises share: a tree, a sandbox, a program at work.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::case::{Device, Mode, PROGRAM_LIMIT};
use crate::command::Finished;
use crate::fermata::{Fermata, Session};
use crate::output::Output;
use crate::processes::{self, Process};
use crate::sandbox::Sandbox;
use crate::tree::Tree;

/// A program that is slow enough to be caught at work: about four seconds.
pub const SLOW: &[&str] = &["--steps", "400", "--pause-ms", "200", "--size", "128"];

/// How long a session may take to come back to the next daemon.
pub const RETURN_LIMIT: Duration = Duration::from_secs(40);

/// A sandbox with the software GPU.
#[derive(Debug)]
pub struct Scene {
    tree: Tree,
    sandbox: Sandbox,
}

impl Scene {
    /// A fresh one.
    ///
    /// # Errors
    /// When there is no build tree.
    pub fn new() -> Result<Self> {
        Ok(Self {
            tree: Tree::find()?,
            sandbox: Sandbox::new()?,
        })
    }

    /// The command line tool.
    pub fn fermata(&self) -> Fermata<'_> {
        Fermata::new(&self.tree, &self.sandbox)
    }

    /// The build tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The sandbox.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Starts `heat2d`, slowed down, as session `name`; returns once it works.
    ///
    /// # Errors
    /// When it does not begin.
    pub fn start_slow(&self, name: &str) -> Result<()> {
        let program = self.tree.program("heat2d")?;
        self.fermata().run(name, Device::Soft, &program, SLOW)?;
        self.wait_steps(name, 2)
    }

    /// As [`Scene::start_slow`], for minutes.
    ///
    /// # Errors
    /// When it does not begin.
    pub fn start_long(&self, name: &str) -> Result<()> {
        let program = self.tree.program("heat2d")?;
        let arguments = ["--steps", "20000", "--pause-ms", "100", "--size", "128"];
        self.fermata()
            .run(name, Device::Soft, &program, &arguments)?;
        self.wait_steps(name, 2)
    }

    /// Ends the daemon with signal 9.
    ///
    /// # Errors
    /// When none runs.
    pub fn kill_daemon(&self) -> Result<()> {
        kill_nine(&self.sandbox.daemon().context("no daemon runs")?)
    }

    /// Waits until session `name` runs for a new daemon, which the question starts if nobody else has.
    ///
    /// # Errors
    /// When it does not come back in time, or `ps` fails.
    pub fn wait_back(&self, name: &str) -> Result<Session> {
        let begun = Instant::now();
        loop {
            let session = self.fermata().session(name)?;
            if session.state == "running" {
                return Ok(session);
            }
            ensure!(
                begun.elapsed() < RETURN_LIMIT,
                "session `{name}` is still {}: {:?}",
                session.state,
                session.note
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until session `name` has printed `steps` steps.
    ///
    /// # Errors
    /// When it ended before, or at the deadline.
    pub fn wait_steps(&self, name: &str, steps: usize) -> Result<()> {
        let reached = |log: &str| Output::parse(log).is_ok_and(|out| out.steps.len() >= steps);
        ensure!(
            self.fermata().wait_log(name, PROGRAM_LIMIT, reached)?,
            "session `{name}` ended before step {steps}"
        );
        Ok(())
    }

    /// Demands that session `name` goes on working.
    ///
    /// # Errors
    /// When it prints no further step.
    pub fn check_goes_on(&self, name: &str) -> Result<()> {
        let now = Output::parse(&self.fermata().log(name)?)?.steps.len();
        self.wait_steps(name, now + 2)
    }

    /// Makes image `image` of a working program, and ends that.
    ///
    /// # Errors
    /// When any of it fails.
    pub fn make_image(&self, image: &str) -> Result<()> {
        self.start_slow("source")?;
        self.fermata().checkpoint("source", image, Mode::Stop)?;
        self.fermata().kill("source")?;
        Ok(())
    }

    /// Tries to restore `image`, without judging the result.
    ///
    /// # Errors
    /// When the tool passes the deadline.
    pub fn try_restore(&self, image: &str, name: &str) -> Result<Finished> {
        let path = self.fermata().image(image);
        let path = path.to_str().context("image path")?;
        self.fermata().call(&[
            "restore", path, "--name", name, "--device", "soft", "--detach",
        ])
    }

    /// Demands that `image` can still be restored and works.
    ///
    /// # Errors
    /// When it cannot.
    pub fn check_restorable(&self, image: &str) -> Result<()> {
        self.try_restore(image, "proof")?
            .success("fermata restore")?;
        self.check_goes_on("proof")?;
        self.fermata().kill("proof")?;
        Ok(())
    }

    /// The live process of session `name`: the program's, or the worker's.
    ///
    /// # Errors
    /// When `ps` tells none.
    pub fn process(&self, name: &str, which: Which) -> Result<Process> {
        let session = self.fermata().session(name)?;
        let pid = match which {
            Which::Program => session.pid,
            Which::Worker => session.worker_pid,
        };
        let pid = pid.with_context(|| format!("`ps` tells no {which:?} of `{name}`"))?;
        processes::look_up(pid).with_context(|| format!("process {pid} is gone"))
    }

    /// Every regular file below the image folder.
    ///
    /// # Errors
    /// When it cannot be listed.
    pub fn image_files(&self) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        collect(&self.sandbox.images(), &mut files)?;
        files.sort();
        Ok(files)
    }

    /// Ends the scene and demands that nothing is left.
    ///
    /// # Errors
    /// Names what is left.
    pub fn close(self) -> Result<()> {
        let left = self.sandbox.close();
        ensure!(left.is_empty(), "left behind: {}", left.join(", "));
        Ok(())
    }
}

/// A process of a session.
#[derive(Debug, Clone, Copy)]
pub enum Which {
    /// The user's program.
    Program,
    /// Its worker.
    Worker,
}

/// Ends `process` with signal 9 and waits until it is gone.
///
/// # Errors
/// When it survives for ten seconds.
pub fn kill_nine(process: &Process) -> Result<()> {
    let pid = Pid::from_raw(process.pid).context("process number 0")?;
    kill_process(pid, Signal::KILL).ok();
    let begun = Instant::now();
    while processes::look_up(process.pid).as_ref() == Some(process) {
        if begun.elapsed() > Duration::from_secs(10) {
            bail!(
                "process {} `{}` survives signal 9",
                process.pid,
                process.name
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("`{}`", folder.display()))? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            collect(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}
