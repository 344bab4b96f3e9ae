//! The record of a session that outlives the daemon: `meta.json` in the session's folder, replaced as a whole.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use fermata_control::user::{Device, DeviceChoice, SessionState, Text};
use serde::{Deserialize, Serialize};

use crate::pause::data::Entry;
use crate::priority::yielded::Yielded;
use crate::proc::ProcessId;
use crate::session::MemberMeta;

/// Name of the file in a session's folder.
const FILE: &str = "meta.json";
/// Its version.
const VERSION: u32 = 2;

/// A session as stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionMeta {
    /// Version of the file.
    pub version: u32,
    /// Name.
    pub name: String,
    /// The token in the program's environment.
    pub token: String,
    /// State.
    pub state: SessionState,
    /// The program.
    pub root: Option<ProcessId>,
    /// Process 1 of its namespace, if it was restored.
    pub init: Option<ProcessId>,
    /// Its processes that use CUDA.
    pub members: Vec<MemberMeta>,
    /// Workers that load an image for processes that do not exist yet.
    pub loading: Vec<ProcessId>,
    /// Workers that have saved their part of a paused session, and have not ended yet.
    #[serde(default)]
    pub leaving: Vec<ProcessId>,
    /// Status, once it has ended.
    pub exit_status: Option<i32>,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Working folder.
    pub cwd: String,
    /// Seconds since 1970.
    pub started: u64,
    /// Whether it runs on softgpu.
    pub soft: Option<bool>,
    /// Devices.
    pub devices: Vec<Device>,
    /// The pipe that is its standard input.
    #[serde(default)]
    pub input: Option<u64>,
    /// The image it came from.
    #[serde(default, with = "fermata_control::text::some_path")]
    pub image: Option<PathBuf>,
    /// Whether it has a network of its own.
    #[serde(default)]
    pub own_network: bool,
    /// Its priority.
    #[serde(default)]
    pub priority: i32,
    /// Whether its program is a foreign program, which holds the GPU itself.
    #[serde(default)]
    pub foreign: bool,
    /// The entry of a pause that is complete or under way.
    #[serde(default)]
    pub entry: Option<Entry>,
    /// The session that it was paused for.
    #[serde(default)]
    pub yielded: Option<Yielded>,
    /// Why its program is being rolled back to that image, if it is.
    #[serde(default)]
    pub again: Option<String>,
    /// Note for users.
    pub note: Option<String>,
    /// Which driver was asked for.
    #[serde(default)]
    pub device: DeviceChoice,
    /// Variables of its workers.
    #[serde(default)]
    pub variables: BTreeMap<String, Text>,
    /// The GPUs that replace those that its programs name (`--gpus`).
    #[serde(default)]
    pub gpus: Option<String>,
}

impl SessionMeta {
    /// Writes it into the session's folder.
    ///
    /// # Errors
    /// The folder is gone or full; what was there before stays.
    pub fn save(&self, dir: &Path) -> io::Result<()> {
        let temporary = dir.join(".meta.new");
        let stored = Self {
            version: VERSION,
            ..self.clone()
        };
        // It holds the token: its mode does not depend on the umask.
        let _ = fs::remove_file(&temporary);
        let mut file = OpenOptions::new()
            .create_new(true)
            .write(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(&serde_json::to_vec_pretty(&stored)?)?;
        fs::rename(&temporary, dir.join(FILE))
    }

    /// Whether a session's folder has this file, of any release.
    pub fn is_in(dir: &Path) -> bool {
        dir.join(FILE).exists()
    }

    /// Reads it from a session's folder; `None` if there is none that this release can read.
    pub fn load(dir: &Path) -> Option<Self> {
        let meta: Self = serde_json::from_slice(&fs::read(dir.join(FILE)).ok()?).ok()?;
        Some(meta).filter(|m| m.version == VERSION)
    }
}
