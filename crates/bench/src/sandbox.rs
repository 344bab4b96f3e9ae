//! A daemon and folders of a bench's own, and the commands it is asked with: those that a user gives.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fermata_control::user::{Checkpointed, ENV_IMAGE_DIR, ENV_RUNTIME_DIR, Session, Status};
use fermata_control::wait;
use rustix::fs::Advice;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::BenchError;
use crate::settings::Settings;

/// How long the daemon, and what it holds, may take to go.
const END: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);
/// How long a worker may take to be ready, and how long nothing is registered any more by then.
const WARM: Duration = Duration::from_secs(60);
const STILL: Duration = Duration::from_millis(1500);
/// The same where less is registered than was made ready: there may be no room for more.
const SHORT: Duration = Duration::from_secs(8);

/// Variable: bytes a second between host and software GPU.
const SOFT_LINK: &str = "FERMATA_SOFTGPU_HOST_LINK";

/// Folders and daemon of one bench; dropping it ends and removes everything.
pub struct Sandbox {
    work: PathBuf,
    images: PathBuf,
    device: &'static str,
    room: Cell<u64>,
    link: Option<String>,
    /// Has something to read once a signal asks for the end.
    interrupts: UnixStream,
}

#[derive(Deserialize)]
struct Listing {
    sessions: Vec<Session>,
}

#[derive(Deserialize)]
struct Versions {
    daemon: Option<Status>,
}

impl Sandbox {
    /// Makes the folders.
    pub fn new(settings: &Settings) -> Result<Self, BenchError> {
        Self::beside(settings, &settings.images, "")
    }

    /// As [`Sandbox::new`], with images in another folder, and a name that tells it from others of this bench.
    pub fn beside(settings: &Settings, images: &Path, name: &str) -> Result<Self, BenchError> {
        let catch = || BenchError::io("catch signals");
        let (interrupts, told) = UnixStream::pair().map_err(catch())?;
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            let told = told.try_clone().map_err(catch())?;
            signal_hook::low_level::pipe::register(signal, told).map_err(catch())?;
        }
        let name = format!("fermata-bench-{}{name}", std::process::id());
        // The daemon works in another folder.
        let absolute = |folder: &Path| {
            std::path::absolute(folder)
                .map(|folder| folder.join(&name))
                .map_err(BenchError::io(format!("find `{}`", folder.display())))
        };
        let sandbox = Self {
            work: absolute(&std::env::temp_dir())?,
            images: absolute(images)?,
            room: Cell::new(0),
            link: None,
            device: if settings.is_soft { "soft" } else { "gpu" },
            interrupts,
        };
        for folder in [&sandbox.work, &sandbox.images] {
            std::fs::create_dir_all(folder)
                .map_err(BenchError::io(format!("make `{}`", folder.display())))?;
        }
        Ok(sandbox)
    }

    /// Gives programs on the software GPU, whose link is else as fast as memory, one that moves `bytes` in a quarter of
    /// a second, so that copies last. The environment may name another.
    pub fn with_slow_link(mut self, bytes: u64) -> Self {
        let asked = std::env::var_os(SOFT_LINK).is_some();
        self.link = (self.device == "soft" && !asked).then(|| (bytes * 4).to_string());
        self
    }

    /// A file of the bench's own.
    pub fn file(&self, name: &str) -> PathBuf {
        self.work.join(name)
    }

    /// A file beside the images, which is none.
    pub fn file_beside_images(&self, name: &str) -> PathBuf {
        self.images.join(format!(".{name}"))
    }

    /// Lets the system forget what it holds in memory of the images' files. Nobody's permission is needed: they are written,
    /// and no process uses them.
    pub fn forget_pages(&self) -> Result<(), BenchError> {
        let mut folders = vec![self.images.clone()];
        while let Some(folder) = folders.pop() {
            let what = || format!("list `{}`", folder.display());
            let entries = std::fs::read_dir(&folder).map_err(BenchError::io(what()))?;
            for entry in entries.flatten() {
                let path = entry.path();
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => folders.push(path),
                    Ok(kind) if kind.is_file() => forget(&path)?,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Has memory for images of `bytes` made ready, where they are kept in memory.
    pub fn prepare(&self, bytes: u64) -> Result<(), BenchError> {
        if self.images.starts_with("/dev/shm") {
            self.room.set(bytes);
            let gib = bytes.div_ceil(1 << 30) + 1;
            self.command(&["images", "prepare", &gib.to_string()])?;
        }
        Ok(())
    }

    /// Starts `program` as session `name`.
    pub fn start<A: AsRef<OsStr>>(
        &self,
        name: &str,
        program: &[A],
        variables: &[(&str, &Path)],
    ) -> Result<(), BenchError> {
        let mut command = self.fermata();
        command.args([
            "--quiet",
            "run",
            "--detach",
            "--device",
            self.device,
            "--name",
            name,
            "--",
        ]);
        command.args(program).envs(variables.iter().copied());
        command.envs(self.link.iter().map(|link| (SOFT_LINK, link)));
        self.finish(command).map(drop)
    }

    /// Checkpoints session `name`.
    pub fn checkpoint(&self, name: &str, options: &[&str]) -> Result<Checkpointed, BenchError> {
        self.ask(&[&["checkpoint", name][..], options].concat())
    }

    /// Session `name` as it is now.
    pub fn session(&self, name: &str) -> Result<Session, BenchError> {
        let listing: Listing = self.ask(&["ps"])?;
        let found = listing.sessions.into_iter().find(|it| it.name == name);
        found.ok_or_else(|| BenchError::Unexpected(format!("session `{name}` is gone")))
    }

    /// What `fermata ARGUMENTS --json` says.
    pub fn ask<T: DeserializeOwned>(&self, arguments: &[&str]) -> Result<T, BenchError> {
        let mut command = self.fermata();
        command.args(arguments).arg("--json");
        let text = self.finish(command)?;
        serde_json::from_slice(&text).map_err(|e| {
            let words = arguments.join(" ");
            BenchError::Unexpected(format!("`fermata {words}` said something else: {e}"))
        })
    }

    /// Does `fermata ARGUMENTS`.
    pub fn command(&self, arguments: &[&str]) -> Result<(), BenchError> {
        let mut command = self.fermata();
        command.args(arguments);
        self.finish(command).map(drop)
    }

    /// Removes every image and what only they held; memory for the next is made ready again.
    pub fn forget_images(&self) -> Result<(), BenchError> {
        let entries = std::fs::read_dir(&self.images);
        let names = entries.map_err(BenchError::io("list the bench's images"))?;
        for entry in names.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with('.') {
                self.command(&["images", "rm", &name])?;
            }
        }
        self.command(&["images", "gc"])?;
        if self.room.get() > 0 {
            self.prepare(self.room.get())?;
            // The session's worker registers it as this one does.
            self.warm(Duration::ZERO)?;
        }
        Ok(())
    }

    /// Waits until a worker is ready for the next session, and has registered what it can of the memory for
    /// images: then a restore is not one of a cold machine.
    pub fn warm(&self, rest: Duration) -> Result<(), BenchError> {
        self.pause(rest)?;
        let (mut last, mut since) = (None, Instant::now());
        self.wait(WARM, "no worker is ready", || {
            self.pause(POLL * 20)?;
            let versions: Versions = self.ask(&["version"])?;
            let Some(daemon) = versions.daemon.filter(|it| it.spare_workers > 0) else {
                return Ok(false);
            };
            let Some(tier) = daemon.memory_tier else {
                return Ok(true);
            };
            if last != Some(tier.registered) {
                (last, since) = (Some(tier.registered), Instant::now());
            }
            // What was registered before goes first, and takes its time.
            let patience = match tier.ready >= self.room.get() {
                true => STILL,
                false => SHORT,
            };
            Ok(since.elapsed() > patience)
        })
    }

    /// Waits until `ready`, at most `limit`; fails with `otherwise`.
    pub fn wait(
        &self,
        limit: Duration,
        otherwise: &str,
        mut ready: impl FnMut() -> Result<bool, BenchError>,
    ) -> Result<(), BenchError> {
        let until = Instant::now() + limit;
        while !ready()? {
            if Instant::now() > until {
                return Err(BenchError::program(format!("{otherwise} after {limit:?}")));
            }
            self.pause(POLL)?;
        }
        Ok(())
    }

    /// Lets `time` pass.
    pub fn pause(&self, time: Duration) -> Result<(), BenchError> {
        match wait::becomes_readable(&self.interrupts, time) {
            true => Err(BenchError::Interrupted),
            false => Ok(()),
        }
    }

    fn fermata(&self) -> Command {
        let own = std::env::current_exe().unwrap_or_else(|_| "fermata".into());
        let mut command = Command::new(own);
        command
            .env(ENV_RUNTIME_DIR, self.work.join("run"))
            .env(ENV_IMAGE_DIR, &self.images)
            .stdin(Stdio::null());
        command
    }

    fn finish(&self, mut command: Command) -> Result<Vec<u8>, BenchError> {
        let done = command
            .output()
            .map_err(BenchError::io("start `fermata`"))?;
        if done.status.success() {
            return Ok(done.stdout);
        }
        let said = String::from_utf8_lossy(&done.stderr);
        let reason = said.lines().find_map(|line| line.strip_prefix("error: "));
        let status = done.status.code().and_then(|code| u8::try_from(code).ok());
        let words: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
        let message = format!(
            "`fermata {}`: {}",
            words.join(" "),
            reason.unwrap_or(said.trim())
        );
        Err(BenchError::Command { message, status })
    }
}

fn forget(path: &Path) -> Result<(), BenchError> {
    let what = || format!("read past the page cache `{}`", path.display());
    let file = File::open(path).map_err(BenchError::io(what()))?;
    file.sync_data().map_err(BenchError::io(what()))?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)
        .map_err(|error| BenchError::io(what())(error.into()))
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // Whatever cannot be ended or removed has been named by the failure that led here, or is gone.
        if let Ok(listing) = self.ask::<Listing>(&["ps"]) {
            for session in listing
                .sessions
                .iter()
                .filter(|it| it.exit_status.is_none())
            {
                let _ = self.command(&["kill", &session.name]);
            }
        }
        let daemon = self.ask::<Versions>(&["version"]).ok();
        let daemon = daemon.and_then(|it| it.daemon).map(|it| it.pid);
        if let Some(pid) = daemon.and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed()))
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let lives = || rustix::process::test_kill_process(pid).is_ok();
            wait::process_ends(pid, END, lives);
        }
        for folder in [&self.work, &self.images] {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}
