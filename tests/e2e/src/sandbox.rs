//! Folders of one case, and the proof that it leaves nothing behind.
//!
//! Each case has its own runtime and image folder, and so its own daemon. What
//! it starts carries a mark in the environment, and a group of its own that is
//! that of every file it makes: others use `/dev/shm` at the same time.
//! [`Sandbox::close`] stops the daemon as a user would, reports what is still
//! there, and ends it.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::statfs;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::processes::{self, MARK, Process};

const DAEMON: &str = "fermatad";
/// How long a daemon may take to end what it has started, on however busy a machine.
const STOP_LIMIT: Duration = Duration::from_secs(300);
/// Between two looks at what is left. A process that executes another program just then is not seen by one of them.
const TURN: Duration = Duration::from_millis(10);
/// Where shared memory with a name is.
pub const SHARED_MEMORY: &str = "/dev/shm";
/// What statfs(2) says of a file system in memory.
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// Groups from here on are nobody's.
const FREE_GROUPS: u32 = 10_000;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Isolated folders and environment of one case.
#[derive(Debug)]
pub struct Sandbox {
    folder: TempDir,
    mark: String,
    address: Ipv4Addr,
    /// None where this process cannot choose one: then shared memory is not looked for.
    group: Option<u32>,
}

impl Sandbox {
    /// Makes the folders.
    ///
    /// # Errors
    /// When the temporary folder cannot be written.
    pub fn new() -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("fe-")
            .tempdir_in(base())
            .context("folder of the case")?;
        for name in ["run", "images", "work", "moments"] {
            fs::create_dir(folder.path().join(name))?;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            folder,
            mark: format!("{}-{number}", std::process::id()),
            address: own_address(number),
            group: own_group(number),
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

    /// An address of this machine at which programs of other cases do not listen: a port there stays free between the end of a
    /// program and its restore.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Where a test has daemons and workers stand still (`crates/store/src/moments.rs`).
    pub fn moments(&self) -> PathBuf {
        self.folder.path().join("moments")
    }

    /// Gives `command` the folders and the mark.
    pub fn enter(&self, command: &mut Command) {
        if let Some(group) = self.group {
            command.gid(group);
        }
        command
            .current_dir(self.work())
            .env(MARK, &self.mark)
            .env("FERMATA_RUNTIME_DIR", self.runtime())
            .env("FERMATA_IMAGE_DIR", self.images())
            // No configuration file of this machine.
            .env("FERMATA_CONFIG", "/dev/null")
            .env("FERMATA_TEST_MOMENTS", self.moments())
            // Every image taken behind a program is compared with the stopped copy of its moment.
            .env("FERMATA_WORKER_FERMATA_TEST_REFERENCE", "1");
    }

    /// Live processes of the case.
    pub fn processes(&self) -> Vec<Process> {
        processes::marked(&self.mark)
    }

    /// The case's daemon, if it lives; its helpers have its name, and arguments.
    pub fn daemon(&self) -> Option<Process> {
        let is_daemon = |it: &Process| it.name == DAEMON && processes::has_no_arguments(it.pid);
        // One that it has just forked looks like it until it executes another program.
        let alike = self.processes().into_iter().filter(is_daemon);
        alike.min_by_key(|it| it.started)
    }

    /// Stops the daemon, then names all that is left: processes, shared memory,
    /// and sockets in the runtime folder. Everything left is ended.
    pub fn close(self) -> Vec<String> {
        let mut left: Vec<String> = self
            .stop_daemon()
            .iter()
            .map(|process| format!("process {} `{}`", process.pid, process.name))
            .collect();
        self.end_all();
        for path in self.group.map(made_by).unwrap_or_default() {
            left.push(format!("shared memory `{}`", path.display()));
            // It may be a folder; what cannot be removed was reported.
            fs::remove_file(&path)
                .or_else(|_| fs::remove_dir_all(&path))
                .ok();
        }
        left.extend(mounts_below(self.folder.path()));
        left
    }

    /// Tells the daemon to end, and waits until nothing runs; what does all the same.
    fn stop_daemon(&self) -> Vec<Process> {
        let begun = Instant::now();
        let mut told = None;
        let mut empty = 0;
        loop {
            let left = self.processes();
            empty = if left.is_empty() { empty + 1 } else { 0 };
            if empty == 2 || begun.elapsed() > STOP_LIMIT {
                return left;
            }
            // One that found another in its place ends by itself, and the other is to be told.
            let daemon = self.daemon().filter(|it| told.as_ref() != Some(it));
            if let Some(pid) = daemon.as_ref().and_then(|it| Pid::from_raw(it.pid)) {
                kill_process(pid, Signal::TERM).ok();
                told = daemon;
            }
            std::thread::sleep(TURN);
        }
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

/// Where folders are made: on a disk, if there is one. The path stays short, for sockets have at most 107 bytes of name.
fn base() -> &'static str {
    let in_memory = |folder: &&str| statfs(*folder).is_ok_and(|it| it.f_type == TMPFS_MAGIC);
    let mut places = ["/tmp", "/var/tmp"].into_iter();
    places.find(|it| !in_memory(it)).unwrap_or("/tmp")
}

/// A number that other cases of this machine seldom have.
fn seed(number: u32) -> u32 {
    std::process::id().wrapping_mul(512).wrapping_add(number)
}

/// An address in 127.64.0.0/10, all of which are this machine's.
fn own_address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x7f40_0000 | (seed(number) & 0x003f_ffff))
}

/// A group that no other case of this machine has: root may choose any that its user namespace knows.
pub fn own_group(number: u32) -> Option<u32> {
    let map = fs::read_to_string("/proc/self/gid_map").ok()?;
    let mut fields = map.split_whitespace();
    let (first, count) = (fields.next()?, fields.nth(1)?.parse::<u32>().ok()?);
    let free = count.min(i32::MAX as u32).checked_sub(FREE_GROUPS)?;
    let seed = seed(number);
    let may = first == "0" && free > 0 && rustix::process::geteuid().is_root();
    may.then(|| FREE_GROUPS + seed % free)
}

/// Shared memory that processes of `group` have made.
fn made_by(group: u32) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(SHARED_MEMORY) else {
        return Vec::new();
    };
    let made = |path: &PathBuf| path.symlink_metadata().is_ok_and(|it| it.gid() == group);
    let paths = entries.flatten().map(|it| it.path());
    paths.filter(made).collect()
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
