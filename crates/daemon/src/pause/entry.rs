//! The data of a paused session: a folder that belongs to it, from before it is made until after it is removed.
//!
//! ```text
//!  noted in the session's folder ─► made ─► written, checked ─► complete: the workers end ─► resumed ─► removed
//!               └───────────── a failure, the next daemon ─► removed
//! ```
//! An entry is never in use by two sessions, and nothing else refers to it. The session's notes name it as long as it may be
//! there, so that a daemon that finds the session knows what to do with it, whenever the last one has died.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fermata_control::user::{PausedData, Text};
use fermata_control::worker::{FailureKind, ImageDigests, Totals};
use fermata_store::image::{DeviceRecord, PROFILE, part_name, unix_now};
use fermata_store::{Left, Store, is_memory, paused_part};
use serde::{Deserialize, Serialize};

use crate::daemon::{Daemon, remove_all};
use crate::failure::{Hint, OrFail, Result, fail, from_store};
use crate::proc::ProcessId;
use crate::session::{Session, token};

/// Where memory is that is meant to be shared.
const MEMORY: &str = "/dev/shm";
/// How names of entries begin that are not in the store of images.
const PREFIX: &str = "fermata-paused";
/// How long files may come to a folder that is being removed: a worker is about to end that was writing there.
const REMOVE_TIME: Duration = Duration::from_secs(10);
/// Beside chunks.
const MARGIN: u64 = 16 << 20;

/// See the module.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Where it is, and what it holds.
    pub data: PausedData,
    /// Whether the session can be resumed from it; before that its workers hold the data.
    pub complete: bool,
    /// Its parts, the first being number 1.
    pub parts: Vec<EntryPart>,
    /// What it holds, as an image says it.
    pub totals: Totals,
    /// The devices that its program saw.
    pub devices: Vec<DeviceRecord>,
}

/// What was the part of one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryPart {
    /// The process, which is parked.
    pub process: ProcessId,
    /// Whether its worker had our kernels before the program's modules.
    pub kernels_first: bool,
    /// BLAKE3 of its `state`.
    pub state: String,
    /// BLAKE3 of its `chunks`.
    pub chunks: String,
}

impl Entry {
    /// An entry for session `session` in folder `to`, or in host memory, with so many parts; nothing is made yet.
    ///
    /// # Errors
    /// `User`: the folder cannot be one.
    pub fn plan(daemon: &Daemon, session: &Session, to: Option<&Text>) -> Result<Self> {
        let unique = token().or_fail(FailureKind::Internal, || "cannot make a name".into())?;
        let unique = format!("{}-{}", session.name, &unique[..12]);
        let folder = match to {
            Some(folder) => {
                let folder = folder.to_path();
                if !folder.is_absolute() || !folder.is_dir() {
                    let message = format!("`{}` is not a folder", folder.display());
                    return Err(fail(FailureKind::User, message)
                        .hint("make it, and give it as an absolute path"));
                }
                folder.join(format!("{PREFIX}-{unique}"))
            }
            None if is_memory(&daemon.paths.images) => daemon.store()?.paused_dir().join(unique),
            None => {
                let user = rustix::process::geteuid().as_raw();
                Path::new(MEMORY).join(format!("{PREFIX}-{user}-{unique}"))
            }
        };
        let data = PausedData {
            in_memory: is_memory(&folder),
            folder,
            device_bytes: 0,
            host_bytes: 0,
            since: unix_now(),
        };
        Ok(Self {
            data,
            complete: false,
            parts: Vec::new(),
            totals: Totals::default(),
            devices: Vec::new(),
        })
    }

    /// Refuses where so many bytes do not fit.
    ///
    /// # Errors
    /// `User`, with the numbers.
    pub fn check_room(&self, daemon: &Daemon, session: &Session, bytes: u64) -> Result<()> {
        let folder = &self.data.folder;
        let store = daemon.paths.store();
        let ready = daemon.tier.as_ref().map_or(0, |tier| tier.ready_bytes());
        let ready = if folder.starts_with(&store) { ready } else { 0 };
        let needed = (bytes + MARGIN).saturating_sub(ready);
        let mut free = Left::of(folder).map_or(u64::MAX, |it| it.bytes);
        if self.data.in_memory {
            free = free.min(available_memory().unwrap_or(u64::MAX));
        }
        if needed <= free {
            return Ok(());
        }
        let what = match self.data.in_memory {
            true => "of host memory",
            false => "of disk",
        };
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let message = format!(
            "session `{}` cannot be paused: its data needs up to {} MiB {what} for `{}`, where {} MiB are left",
            session.name,
            mib(needed),
            folder.display(),
            mib(free)
        );
        Err(fail(FailureKind::User, message)
            .hint("free some, or name a folder with more room: `fermata pause --to FOLDER`"))
    }

    /// Makes the folder, with a store and room for so many parts.
    ///
    /// # Errors
    /// It cannot be made, or is there already.
    pub fn make(&self, parts: usize) -> Result<Vec<PathBuf>> {
        let folder = &self.data.folder;
        let what = || format!("cannot make `{}`", folder.display());
        if let Some(parent) = folder.parent() {
            fs::create_dir_all(parent).or_fail(FailureKind::User, what)?;
        }
        let mut own = fs::DirBuilder::new();
        own.mode(0o700)
            .create(folder)
            .or_fail(FailureKind::User, what)?;
        Store::open(folder, true).map_err(|e| from_store(&e))?;
        let parts: Vec<PathBuf> = (1..=parts).map(|it| paused_part(folder, it)).collect();
        for part in &parts {
            fermata_store::make_folder(part).map_err(|e| from_store(&e))?;
        }
        Ok(parts)
    }

    /// Checks that these processes' parts are whole, and makes it complete.
    ///
    /// # Errors
    /// Something of them is missing, or cannot be read.
    pub fn complete(
        mut self,
        served: &[(ProcessId, bool)],
        (totals, devices): (Totals, Vec<DeviceRecord>),
    ) -> Result<Self> {
        let folder = &self.data.folder;
        let store = Store::open(folder, false).map_err(|e| from_store(&e))?;
        for (at, (process, kernels_first)) in served.iter().enumerate() {
            let digests = store.check_part(&paused_part(folder, at + 1));
            let digests = digests.map_err(|e| from_store(&e))?;
            self.parts.push(EntryPart {
                process: *process,
                kernels_first: *kernels_first,
                state: digests.state,
                chunks: digests.chunks,
            });
        }
        self.data.device_bytes = totals.device_bytes;
        self.data.host_bytes = totals.host_bytes;
        (self.totals, self.devices) = (totals, devices);
        self.complete = true;
        Ok(self)
    }

    /// The part of a process, and its folder. Of a session that was restored from `image` it knows which kernels were
    /// caught in a restore.
    pub fn part(&self, process: ProcessId, image: Option<&Path>) -> Option<(&EntryPart, PathBuf)> {
        let at = self.parts.iter().position(|it| it.process == process)?;
        let folder = paused_part(&self.data.folder, at + 1);
        if let Some(image) = image {
            let learnt = image.join(part_name(at)).join(PROFILE);
            // Where nothing was learnt there is none.
            let _ = fs::copy(learnt, folder.join(PROFILE));
        }
        Some((&self.parts[at], folder))
    }

    /// Every part, the first being that of the first process, and its folder.
    pub fn all(&self) -> impl Iterator<Item = (&EntryPart, PathBuf)> {
        let parts = self.parts.iter().enumerate();
        parts.map(|(at, part)| (part, paused_part(&self.data.folder, at + 1)))
    }

    /// Whether it has the part of a process.
    pub fn has(&self, process: ProcessId) -> bool {
        self.complete && self.parts.iter().any(|it| it.process == process)
    }

    /// Removes it; that it is not there is fine.
    ///
    /// # Errors
    /// What cannot be removed.
    pub fn remove(&self) -> Result<()> {
        remove_all(&self.data.folder, REMOVE_TIME)
    }
}

impl EntryPart {
    /// As a worker wants them.
    pub fn digests(&self) -> ImageDigests {
        ImageDigests {
            state: self.state.clone(),
            chunks: self.chunks.clone(),
        }
    }
}

/// Bytes of memory that the host can still give.
fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|it| it.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::scene;

    #[test]
    fn an_entry_is_made_once_and_removed_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = scene::daemon(folder.path());
        let session = daemon.add(Some("x"), "", scene::plan).expect("added");
        let to: Text = folder.path().into();
        let entry = Entry::plan(&daemon, &session, Some(&to)).expect("planned");
        assert!(!entry.data.folder.exists() && entry.data.folder.starts_with(folder.path()));
        entry.remove().expect("nothing is there");
        assert_eq!(entry.make(2).expect("made").len(), 2);
        entry.make(2).expect_err("it is there");
        let unwritten = entry.clone().complete(&[], Default::default());
        assert!(unwritten.expect("no part, nothing missing").complete);
        let process = ProcessId::of(std::process::id()).expect("it runs");
        let missing = entry
            .clone()
            .complete(&[(process, true)], Default::default());
        missing.expect_err("its part is empty");
        let other = Entry::plan(&daemon, &session, Some(&to)).expect("planned");
        assert_ne!(other.data.folder, entry.data.folder);
        entry.remove().expect("removed");
        assert!(!entry.data.folder.exists());
        session.ended(None);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_way_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = scene::daemon(folder.path());
        let session = daemon.add(Some("x"), "", scene::plan).expect("added");
        let to: Text = folder.path().into();
        let entry = Entry::plan(&daemon, &session, Some(&to)).expect("planned");
        entry.check_room(&daemon, &session, 1).expect("it fits");
        let refused = entry.check_room(&daemon, &session, 1 << 60);
        assert!(refused.expect_err("too much").hint.contains("--to"));
        let relative = Entry::plan(&daemon, &session, Some(&"somewhere".into()));
        relative.expect_err("not absolute");
        session.ended(None);
    }
}
