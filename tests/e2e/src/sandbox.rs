//! Folders of one case, and the proof that it leaves nothing behind.
//!
//! Each case has its own runtime and image folder, and so its own daemon. What
//! it starts carries a mark in the environment; [`Sandbox::close`] stops the
//! daemon as a user would, reports what is still there, and ends it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::processes::{self, MARK, Process};

const DAEMON: &str = "fermatad";
const STOP_LIMIT: Duration = Duration::from_secs(10);

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Isolated folders and environment of one case.
#[derive(Debug)]
pub struct Sandbox {
    folder: TempDir,
    mark: String,
    shared_memory_before: BTreeSet<String>,
}

impl Sandbox {
    /// Makes the folders.
    ///
    /// # Errors
    /// When the temporary folder cannot be written.
    pub fn new() -> Result<Self> {
        // The path stays short: sockets have at most 107 bytes of name.
        let folder = tempfile::Builder::new()
            .prefix("fe-")
            .tempdir_in("/tmp")
            .context("folder of the case")?;
        for name in ["run", "images", "work"] {
            fs::create_dir(folder.path().join(name))?;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            folder,
            mark: format!("{}-{number}", std::process::id()),
            shared_memory_before: shared_memory(),
        })
    }

    /// The folder that holds the images.
    pub fn images(&self) -> PathBuf {
        self.folder.path().join("images")
    }

    /// The daemon's folder: socket, sessions, logs.
    pub fn runtime(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// The folder in which programs run.
    pub fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    /// Gives `command` the folders and the mark.
    pub fn enter(&self, command: &mut Command) {
        command
            .current_dir(self.work())
            .env(MARK, &self.mark)
            .env("FERMATA_RUNTIME_DIR", self.runtime())
            .env("FERMATA_IMAGE_DIR", self.images())
            // Every image taken behind a program is compared with the stopped copy of its moment.
            .env("FERMATA_WORKER_FERMATA_TEST_REFERENCE", "1");
    }

    /// Live processes of the case.
    pub fn processes(&self) -> Vec<Process> {
        processes::marked(&self.mark)
    }

    /// The case's daemon, if it lives.
    pub fn daemon(&self) -> Option<Process> {
        self.processes().into_iter().find(|p| p.name == DAEMON)
    }

    /// Stops the daemon, then names all that is left: processes, shared memory,
    /// and sockets in the runtime folder. Everything left is ended.
    pub fn close(self) -> Vec<String> {
        if let Some(pid) = self.daemon().and_then(|d| Pid::from_raw(d.pid)) {
            kill_process(pid, Signal::TERM).ok();
        }
        let begun = Instant::now();
        while !self.processes().is_empty() && begun.elapsed() < STOP_LIMIT {
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut left = Vec::new();
        for process in self.processes() {
            left.push(format!("process {} `{}`", process.pid, process.name));
        }
        self.end_all();
        for name in shared_memory().difference(&self.shared_memory_before) {
            if name.to_lowercase().contains("fermata") {
                left.push(format!("shared memory `{name}`"));
            }
        }
        left.extend(mounts_below(self.folder.path()));
        left
    }

    fn end_all(&self) {
        // A process may start another while it is being ended: look again.
        for _ in 0..20 {
            let live = self.processes();
            if live.is_empty() {
                return;
            }
            live.iter().for_each(processes::end);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.end_all();
    }
}

fn shared_memory() -> BTreeSet<String> {
    let Ok(entries) = fs::read_dir("/dev/shm") else {
        return BTreeSet::new();
    };
    entries
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect()
}

fn mounts_below(folder: &Path) -> Vec<String> {
    let folder = folder.display().to_string();
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    table
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .filter(|point| point.starts_with(&folder))
        .map(|point| format!("mount `{point}`"))
        .collect()
}
