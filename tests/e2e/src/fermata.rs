//! The command line tool as a test sees it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::case::{Device, Mode, Restore};
use crate::command::{self, Finished};
use crate::sandbox::Sandbox;
use crate::tree::Tree;

/// No single command may take longer than this, on however busy a machine.
pub const COMMAND_LIMIT: Duration = Duration::from_secs(300);

/// Fermata within one sandbox.
#[derive(Debug)]
pub struct Fermata<'a> {
    tree: &'a Tree,
    sandbox: &'a Sandbox,
}

/// One line of `fermata ps --json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Session {
    /// Name of the session.
    pub name: String,
    /// The program's process as this machine numbers it.
    #[serde(default)]
    pub pid: Option<i32>,
    /// The process of its first worker.
    #[serde(default)]
    pub worker_pid: Option<i32>,
    /// Its processes that use CUDA.
    #[serde(default)]
    pub processes: Vec<GpuProcess>,
    /// `running`, `exited`, ...
    pub state: String,
    /// Exit status once it ended.
    #[serde(default)]
    pub exit_status: Option<i32>,
    /// File with what the program prints.
    pub log: PathBuf,
    /// Data that came, or comes, while the program ran.
    #[serde(default)]
    pub arrival: Option<Arrival>,
    /// What a user should know.
    #[serde(default)]
    pub note: Option<String>,
}

/// A process of a session that uses CUDA, and its worker.
#[derive(Debug, Clone, Deserialize)]
pub struct GpuProcess {
    /// The process.
    pub pid: i32,
    /// Its worker's.
    pub worker_pid: i32,
}

/// Data that comes while a restored program runs.
#[derive(Debug, Clone, Deserialize)]
pub struct Arrival {
    /// `coming`, `complete`, `rolling-back`, `rolled-back`.
    pub stand: String,
    /// Bytes in all.
    pub total: u64,
    /// What the time was spent on.
    #[serde(default)]
    pub steps: Vec<Spent>,
    /// Where kernels were caught using data before it was there.
    #[serde(default)]
    pub misses: Vec<Miss>,
}

/// Time that a restore has spent on something.
#[derive(Debug, Clone, Deserialize)]
pub struct Spent {
    /// On what.
    pub name: String,
    /// Seconds.
    pub seconds: f64,
}

impl Arrival {
    /// Whether the program has waited for data, or does.
    pub fn waits(&self) -> bool {
        let waited = |it: &Spent| it.name == "waits" && it.seconds > 0.0;
        self.steps.iter().any(waited)
    }
}

/// An access to data that was not there.
#[derive(Debug, Clone, Deserialize)]
pub struct Miss {
    /// The kernel.
    pub kernel: String,
    /// Where.
    pub address: u64,
    /// Number of the buffer there.
    pub buffer: u64,
}

#[derive(Deserialize)]
struct SessionList {
    sessions: Vec<Session>,
}

/// The sum over the devices of a session's memory: `bytes`, `common`, `common_part` or `shared`.
///
/// # Errors
/// When one of them does not say.
pub fn on_devices(memory: &Value, what: &str) -> Result<u64> {
    let devices = memory["devices"].as_array().context("devices")?;
    let bytes = devices.iter().map(|it| it[what].as_u64());
    let sum = bytes.sum::<Option<u64>>();
    sum.with_context(|| format!("no {what} in {memory}"))
}

impl<'a> Fermata<'a> {
    /// The tool of `tree`, working in `sandbox`.
    pub fn new(tree: &'a Tree, sandbox: &'a Sandbox) -> Self {
        Self { tree, sandbox }
    }

    /// Runs the tool with `args`.
    ///
    /// # Errors
    /// When it cannot be started or passes the deadline.
    pub fn call<S: AsRef<OsStr>>(&self, args: &[S]) -> Result<Finished> {
        self.call_with(args, &[])
    }

    /// Runs the tool with `args` and more variables.
    ///
    /// # Errors
    /// As [`Fermata::call`].
    pub fn call_with<S: AsRef<OsStr>>(
        &self,
        args: &[S],
        variables: &[(&str, &str)],
    ) -> Result<Finished> {
        let mut command = Command::new(self.tree.fermata());
        command.args(args).envs(variables.iter().copied());
        self.sandbox.enter(&mut command);
        command::run(command, COMMAND_LIMIT)
    }

    /// Starts a program in the background as session `name`.
    ///
    /// # Errors
    /// When the tool refuses.
    pub fn run(
        &self,
        name: &str,
        device: Device,
        program: &Path,
        args: &[&str],
    ) -> Result<Finished> {
        self.run_with::<&str>(&[], name, device, program, args)
    }

    /// As [`Fermata::run`], with variables of its own.
    ///
    /// # Errors
    /// When the tool refuses.
    pub fn run_with<V: AsRef<OsStr>>(
        &self,
        variables: &[(&str, V)],
        name: &str,
        device: Device,
        program: &Path,
        args: &[&str],
    ) -> Result<Finished> {
        let mut words: Vec<&OsStr> = [
            "run",
            "--device",
            device.name(),
            "--name",
            name,
            "--detach",
            "--",
        ]
        .map(OsStr::new)
        .into();
        words.push(program.as_os_str());
        words.extend(args.iter().map(OsStr::new));
        let mut command = Command::new(self.tree.fermata());
        command.args(words);
        for (name, value) in variables {
            command.env(name, value);
        }
        self.sandbox.enter(&mut command);
        command::run(command, COMMAND_LIMIT)?.success("fermata run")
    }

    /// Variables with which a program waits before its `call`-th call until it is stopped, and makes
    /// [`Self::mark`] when it has come there; with 0 it counts its calls in that.
    ///
    /// # Errors
    /// When the path cannot be a variable.
    pub fn stop_at(&self, call: u64) -> Result<[(&'static str, String); 2]> {
        let mark = self.mark().into_os_string().into_string();
        let mark = mark.map_err(|it| anyhow!("path {it:?}"))?;
        Ok([
            ("FERMATA_TEST_QUIESCE_AT", call.to_string()),
            ("FERMATA_TEST_QUIESCE_MARK", mark),
        ])
    }

    /// Where a program marks that it has come to its call.
    pub fn mark(&self) -> PathBuf {
        self.sandbox.runtime().join("call")
    }

    /// Takes an image of session `name` and says where it lies.
    ///
    /// # Errors
    /// When the tool refuses.
    pub fn checkpoint(&self, name: &str, image: &str, mode: Mode) -> Result<Finished> {
        self.checkpoint_with(name, image, mode, &[])
    }

    /// As [`Fermata::checkpoint`], with more options.
    ///
    /// # Errors
    /// When the tool refuses.
    pub fn checkpoint_with(
        &self,
        name: &str,
        image: &str,
        mode: Mode,
        options: &[&str],
    ) -> Result<Finished> {
        let done = self.try_checkpoint(name, image, mode, options)?;
        done.success("fermata checkpoint")
    }

    /// As [`Fermata::checkpoint_with`], also if the tool refuses: the status says so.
    ///
    /// # Errors
    /// When it cannot be started or passes the deadline.
    pub fn try_checkpoint(
        &self,
        name: &str,
        image: &str,
        mode: Mode,
        options: &[&str],
    ) -> Result<Finished> {
        let path = self.image(image);
        let words = ["checkpoint", name, "-o"].map(OsStr::new);
        let tail = ["--mode", mode.name()].map(OsStr::new);
        let all: Vec<&OsStr> = words
            .into_iter()
            .chain([path.as_os_str()])
            .chain(tail)
            .chain(options.iter().map(OsStr::new))
            .collect();
        self.call(&all)
    }

    /// Ends a session.
    ///
    /// # Errors
    /// There is no such session, or it has ended.
    pub fn kill(&self, name: &str) -> Result<Finished> {
        self.call(&["kill", name])?.success("fermata kill")
    }

    /// Starts `image` again as session `name`, as users do.
    ///
    /// # Errors
    /// When the tool refuses.
    pub fn restore(&self, image: &str, name: &str, device: Device) -> Result<Finished> {
        self.restore_as(image, name, device, Restore::Concurrent)
    }

    /// Starts `image` again as session `name`.
    ///
    /// # Errors
    /// When the tool refuses.
    pub fn restore_as(
        &self,
        image: &str,
        name: &str,
        device: Device,
        how: Restore,
    ) -> Result<Finished> {
        if how == Restore::Warm {
            self.warm(image)?;
        }
        let path = self.image(image);
        let tail = ["--name", name, "--device", device.name(), "--detach"].map(OsStr::new);
        let all: Vec<&OsStr> = [OsStr::new("restore"), path.as_os_str()]
            .into_iter()
            .chain(tail)
            .chain(how.options().iter().map(OsStr::new))
            .collect();
        self.call(&all)?.success("fermata restore")
    }

    /// The workers that wait for sessions: `pool` of `fermata ps --pool --json`.
    ///
    /// # Errors
    /// When the tool refuses.
    pub fn pool(&self) -> Result<serde_json::Value> {
        let told = self.call(&["ps", "--pool", "--json"])?;
        let told: serde_json::Value =
            serde_json::from_str(&told.success("fermata ps --pool")?.stdout)?;
        Ok(told["pool"].clone())
    }

    /// Has workers wait for `image`, one for each of its processes that use CUDA.
    ///
    /// # Errors
    /// When the tool refuses, or one of them is not ready.
    pub fn warm(&self, image: &str) -> Result<()> {
        let path = self.image(image);
        let verb = ["images", "warm", "--json"].map(OsStr::new);
        let told = self.call(&[&verb[..], &[path.as_os_str()]].concat())?;
        let told: serde_json::Value =
            serde_json::from_str(&told.success("fermata images warm")?.stdout)?;
        let [ready, wanted] = ["workers", "workers_wanted"].map(|it| told[it].as_u64());
        ensure!(ready.is_some() && ready == wanted, "{told}");
        Ok(())
    }

    /// Where image `name` lies.
    pub fn image(&self, name: &str) -> PathBuf {
        self.sandbox.images().join(name)
    }

    /// What the session has printed so far.
    ///
    /// # Errors
    /// When there is no such session.
    pub fn log(&self, name: &str) -> Result<String> {
        Ok(self.call(&["logs", name])?.success("fermata logs")?.stdout)
    }

    /// The session's line in `ps`.
    ///
    /// # Errors
    /// When there is none.
    pub fn session(&self, name: &str) -> Result<Session> {
        let found = self.find(name)?;
        found.with_context(|| format!("`ps` does not list session `{name}`"))
    }

    /// What `ps --memory` says of every session.
    ///
    /// # Errors
    /// When `ps` fails.
    pub fn memory(&self) -> Result<Vec<Value>> {
        let out = self.call(&["ps", "--memory", "--json"])?;
        let out = out.success("fermata ps --memory")?.stdout;
        let told: Value = serde_json::from_str(&out)?;
        Ok(told["memory"].as_array().context("memory")?.clone())
    }

    /// What `ps --memory` says of session `name`.
    ///
    /// # Errors
    /// When `ps` fails, or does not list it.
    pub fn memory_of(&self, name: &str) -> Result<Value> {
        let all = self.memory()?;
        let found = all.into_iter().find(|it| it["session"] == name);
        found.with_context(|| format!("`ps` has no memory of `{name}`"))
    }

    /// The session's line in `ps`, if there is one.
    ///
    /// # Errors
    /// When `ps` fails.
    pub fn find(&self, name: &str) -> Result<Option<Session>> {
        let out = self.call(&["ps", "--json"])?.success("fermata ps")?.stdout;
        let list: SessionList = serde_json::from_str(&out)
            .with_context(|| format!("`fermata ps --json` said {out}"))?;
        Ok(list.sessions.into_iter().find(|s| s.name == name))
    }

    /// Waits until the session's program has ended, and gives its status.
    ///
    /// # Errors
    /// At the deadline, with the session's state.
    pub fn wait_exit(&self, name: &str, limit: Duration) -> Result<i32> {
        let begun = Instant::now();
        loop {
            let session = self.session(name)?;
            if let Some(status) = session.exit_status {
                return Ok(status);
            }
            ensure!(
                begun.elapsed() < limit,
                "session `{name}` is still {} after {limit:?}; log: {}",
                session.state,
                self.log(name).unwrap_or_default()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the program has made `mark`; false if it has ended before.
    ///
    /// # Errors
    /// At the deadline.
    pub fn wait_mark(&self, name: &str, limit: Duration, mark: &Path) -> Result<bool> {
        let begun = Instant::now();
        let mut next_look = Duration::from_millis(200);
        while !mark.is_dir() {
            if begun.elapsed() > next_look {
                next_look = begun.elapsed() + Duration::from_millis(200);
                if self.session(name)?.exit_status.is_some() {
                    return Ok(false);
                }
            }
            ensure!(
                begun.elapsed() < limit,
                "session `{name}` has not come to its call after {limit:?}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(true)
    }

    /// Waits until `condition` holds for the session's log; false if the
    /// program printed its digest before. Reads the file that `ps` names, so
    /// that waiting costs the program little.
    ///
    /// # Errors
    /// At the deadline, or when the session has ended without a digest.
    pub fn wait_log(
        &self,
        name: &str,
        limit: Duration,
        condition: impl Fn(&str) -> bool,
    ) -> Result<bool> {
        let begun = Instant::now();
        let path = self.session(name)?.log;
        let mut next_look = Duration::from_secs(1);
        loop {
            let log = std::fs::read_to_string(&path).unwrap_or_default();
            if log.lines().any(|line| line.starts_with("digest ")) {
                return Ok(false);
            }
            if condition(&log) {
                return Ok(true);
            }
            if begun.elapsed() > next_look {
                next_look = begun.elapsed() + Duration::from_secs(1);
                let status = self.session(name)?.exit_status;
                // Its last lines may have come since the log was read.
                let whole = std::fs::read_to_string(&path).unwrap_or_default();
                ensure!(
                    status.is_none() || whole.len() > log.len(),
                    "session `{name}` ended with {status:?}: {log}"
                );
            }
            if begun.elapsed() > limit {
                bail!("session `{name}` printed only: {log}");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
