//! Starts the next daemon for a parked program whose daemon has died.
//!
//! A program that was stopped for a checkpoint when its daemon died stands still until another daemon wakes it. Usually
//! the user's next command starts one; if no command comes, the worker does. For a running program the worker starts no
//! daemon, because the program needs none.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fermata_control::worker::{ENV_NEXT_DAEMON, ENV_SOCKET, NextDaemon};

use crate::{files, output};

/// How long the worker waits for a command to start the daemon.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a started daemon may take to listen before another is started; a second daemon ends by itself.
const AGAIN: Duration = Duration::from_secs(10);

/// A worker's attempts to start the next daemon.
pub(crate) struct Starter {
    due: Instant,
    started: Option<Child>,
}

impl Starter {
    /// To be made when the daemon is gone.
    pub fn new() -> Self {
        Self {
            due: Instant::now() + PATIENCE,
            started: None,
        }
    }

    /// Starts the daemon when it is due.
    pub fn look(&mut self) {
        if let Some(child) = &mut self.started {
            // Collected when it has ended.
            let _ = child.try_wait();
        }
        if Instant::now() < self.due {
            return;
        }
        self.due = Instant::now() + AGAIN;
        let text = std::env::var(ENV_NEXT_DAEMON).unwrap_or_default();
        let Ok(next) = serde_json::from_str::<NextDaemon>(&text) else {
            return;
        };
        match start(&next) {
            Ok(child) => self.started = Some(child),
            Err(error) => output::tell(&format!(
                "cannot start the next daemon `{}`: {error}",
                next.program.lossy()
            )),
        }
    }
}

/// Starts the daemon as a user's command does, in the environment of the last daemon.
fn start(next: &NextDaemon) -> io::Result<Child> {
    let mut command = Command::new(next.program.to_path());
    for (name, value) in &next.variables {
        match value {
            Some(value) => command.env(name, value.to_os()),
            None => command.env_remove(name),
        };
    }
    command
        .env_remove(ENV_NEXT_DAEMON)
        .env_remove(ENV_SOCKET)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(output::log())
        .stderr(output::log());
    let apart = || {
        // SAFETY: only system calls that are async-signal-safe, as required between fork and exec. In the child alone they
        // mark the driver's descriptors close-on-exec and undo the fixed address layout (see `layout`).
        unsafe {
            libc::setsid();
            libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int);
            libc::personality(0);
        }
        files::former_limit();
        Ok(())
    };
    // SAFETY: the hook allocates nothing and takes no lock.
    unsafe { command.pre_exec(apart) };
    command.spawn()
}
