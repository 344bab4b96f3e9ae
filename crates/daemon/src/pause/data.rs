//! The entry of a paused session: the folder with its GPU data.
//!
//! ```text
//!  noted in the session's folder ─► made ─► written, checked ─► complete: the workers end ─► resumed ─► removed
//!               └───────────── a failure, the next daemon ─► removed
//! ```
//! An entry belongs to one session, and nothing else refers to it. One in the store of images may refer to chunks of theirs, which a
//! collection of garbage keeps. The session's record names it from before the folder is made
//! until after it is removed. So a new daemon knows what to do with it, whenever the last one has died.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fermata_control::user::PausedData;
use fermata_control::worker::{FailureKind, ImageDigests, Totals};
use fermata_store::image::{DeviceRecord, PROFILE, part_name};
use fermata_store::{SharedLock, Store, paused_part};
use serde::{Deserialize, Serialize};

use crate::failure::{OrFail, Result, from_store};
use crate::folder_removal::remove_all;
use crate::proc::ProcessId;

/// How long files may still appear in a folder that is being removed, written by a worker that is about to end.
const REMOVE_TIME: Duration = Duration::from_secs(10);

/// The entry of one session; see the module.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its folder, and the bytes in it.
    pub data: PausedData,
    /// Whether the session can be resumed from it; before that its workers hold the data.
    pub complete: bool,
    /// Its parts, the first being number 1.
    pub parts: Vec<EntryPart>,
    /// Totals of its content, as in an image's manifest.
    pub totals: Totals,
    /// The devices that its program saw.
    pub devices: Vec<DeviceRecord>,
}

/// The part of one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryPart {
    /// The process, which is parked.
    pub process: ProcessId,
    /// Whether its worker had loaded Fermata's kernels before the program's modules.
    pub kernels_first: bool,
    /// BLAKE3 of its `state`.
    pub state: String,
    /// BLAKE3 of its `chunks`.
    pub chunks: String,
}

/// An entry in the making.
#[derive(Debug)]
pub struct NewEntry {
    /// A folder for each part.
    pub parts: Vec<PathBuf>,
    store: Store,
    /// Keeps chunks of images in the store around, which the parts may refer to, until the entry is complete.
    _held: SharedLock,
}

impl Entry {
    /// Makes the folder, with a store and a folder for each of `parts` parts.
    ///
    /// # Errors
    /// It cannot be made, or is there already.
    pub fn make(&self, parts: usize) -> Result<NewEntry> {
        let folder = &self.data.folder;
        let what = || format!("cannot make `{}`", folder.display());
        if let Some(parent) = folder.parent() {
            fs::create_dir_all(parent).or_fail(FailureKind::User, what)?;
        }
        let mut own = fs::DirBuilder::new();
        own.mode(0o700)
            .create(folder)
            .or_fail(FailureKind::User, what)?;
        let store = Store::open(folder, true).map_err(|e| from_store(&e))?;
        let _held = store.share().map_err(|e| from_store(&e))?;
        let parts: Vec<PathBuf> = (1..=parts).map(|it| paused_part(folder, it)).collect();
        for part in &parts {
            fermata_store::make_folder(part).map_err(|e| from_store(&e))?;
        }
        Ok(NewEntry {
            parts,
            store,
            _held,
        })
    }

    /// Checks that the parts of these processes are whole, and marks the entry as complete. What is `made` was opened before the
    /// program stood still, so only the index of what was written since is read.
    ///
    /// # Errors
    /// A part lacks data, or cannot be read.
    pub fn complete(
        mut self,
        made: &NewEntry,
        served: &[(ProcessId, bool)],
        (totals, devices): (Totals, Vec<DeviceRecord>),
    ) -> Result<Self> {
        for ((process, kernels_first), part) in served.iter().zip(&made.parts) {
            let digests = made.store.check_part(part);
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
        self.data.written_bytes = totals.written_bytes;
        (self.totals, self.devices) = (totals, devices);
        self.complete = true;
        Ok(self)
    }

    /// The part of a process, and its folder. For a session that was restored from `image`, copies the image's first-use profile
    /// into that folder.
    pub fn part(&self, process: ProcessId, image: Option<&Path>) -> Option<(&EntryPart, PathBuf)> {
        let at = self.parts.iter().position(|it| it.process == process)?;
        let folder = paused_part(&self.data.folder, at + 1);
        if let Some(image) = image {
            let learnt = image.join(part_name(at)).join(PROFILE);
            // An image may have no profile.
            let _ = fs::copy(learnt, folder.join(PROFILE));
        }
        Some((&self.parts[at], folder))
    }

    /// Every part, the first being that of the first process, and its folder.
    pub fn all(&self) -> impl Iterator<Item = (&EntryPart, PathBuf)> {
        let parts = self.parts.iter().enumerate();
        parts.map(|(at, part)| (part, paused_part(&self.data.folder, at + 1)))
    }

    /// Whether it is complete and has the part of a process.
    pub fn has(&self, process: ProcessId) -> bool {
        self.complete && self.parts.iter().any(|it| it.process == process)
    }

    /// Removes it; succeeds if it does not exist.
    ///
    /// # Errors
    /// The folder cannot be removed.
    pub fn remove(&self) -> Result<()> {
        remove_all(&self.data.folder, REMOVE_TIME)
    }
}

impl EntryPart {
    /// The digests of the part, for a worker.
    pub fn digests(&self) -> ImageDigests {
        ImageDigests {
            state: self.state.clone(),
            chunks: self.chunks.clone(),
        }
    }
}
