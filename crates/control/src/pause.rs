//! What pausing a session is asked with, and where its data is then: part of the conversation with users' tools (`user`).

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::text::Text;

/// A session to pause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// A session's name, or a process id inside a session.
    pub session: String,
    /// The folder in which its data is kept, an absolute path; none for host memory.
    #[serde(default)]
    pub to: Option<Text>,
}

/// A session to resume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// As [`Pause::session`].
    pub session: String,
    /// Bring all data back before the program goes on.
    #[serde(default)]
    pub eager: bool,
    /// Let a kernel run when what its text shows it to touch is there, instead of all data.
    #[serde(default)]
    pub on_demand: bool,
}

/// The GPU data of a paused session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PausedData {
    /// The folder that holds it.
    #[serde(with = "crate::text::path")]
    pub folder: PathBuf,
    /// Whether that is in host memory.
    pub in_memory: bool,
    /// Bytes of device memory, which were given back.
    pub device_bytes: u64,
    /// Bytes of memory that program and worker share: pinned and managed memory.
    pub host_bytes: u64,
    /// Bytes that were written there: neither what images in the same store have, nor zeros, nor twice what is there twice.
    #[serde(default)]
    pub written_bytes: u64,
    /// Seconds since 1970 when the session was paused.
    pub since: u64,
}
