//! Starting the next daemon for a parked program.
//!
//! A program that was stopped for a checkpoint when its daemon died stands still until a daemon wakes it. Usually the
//! user's next command starts one; where none comes, its worker does. Programs that run need no daemon, and are left
//! to the user's next command.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fermata_control::worker::{ENV_NEXT_DAEMON, ENV_SOCKET, NextDaemon};

use crate::{files, output};

/// How long the user's commands have to start one.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long one may take to listen before another is started; it ends by itself when there is one.
const AGAIN: Duration = Duration::from_secs(10);

/// What a worker that has lost its daemon has done for the next.
pub(crate) struct Starter {
    due: Instant,
    started: Option<Child>,
}

impl Starter {
    /// The daemon is gone now.
    pub fn new() -> Self {
        Self {
            due: Instant::now() + PATIENCE,
            started: None,
        }
    }

    /// Starts the daemon when it is time to.
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

/// Starts it as a user's command does, in the environment of the last one.
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
        // SAFETY: plain system calls, safe between fork and exec. What the driver has opened stays here, and the
        // fixed address space (see `layout`) is this process's alone.
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
