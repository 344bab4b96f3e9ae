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

use fermata_control::user::PausedData;
use fermata_control::worker::{FailureKind, ImageDigests, Totals};
use fermata_store::image::{DeviceRecord, PROFILE, part_name};
use fermata_store::{Store, paused_part};
use serde::{Deserialize, Serialize};

use crate::failure::{OrFail, Result, from_store};
use crate::folder_removal::remove_all;
use crate::proc::ProcessId;

/// How long files may come to a folder that is being removed: a worker is about to end that was writing there.
const REMOVE_TIME: Duration = Duration::from_secs(10);

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
