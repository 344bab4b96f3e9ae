//! The modes in which the daemon's executable runs as a helper process, and what passes between a helper and the daemon.

use std::path::PathBuf;
use std::process::ExitStatus;

use std::os::unix::process::ExitStatusExt;

use fermata_control::agent::INIT_ARGUMENT;
use fermata_store::FileVersion;
use serde::{Deserialize, Serialize};

use crate::open_files::temporary::Temporary;

/// First argument: start CRIU where this process's children live.
pub const ENTER: &str = "__enter";
/// First argument: make pid 1 and hand its status on.
pub const OUTER: &str = "__outer";
/// First argument: be pid 1.
pub const INIT: &str = INIT_ARGUMENT;

/// First argument: have CRIU ask the kernel what it can do.
pub const KERNDAT: &str = "__kerndat";
/// First argument of the helper; numbers of processes follow.
pub const TRACK: &str = "__track";

/// Descriptor of the session's log in CRIU; those of [`Job::nameless`] follow, then the program's input.
pub const LOG: i32 = 4;

/// What `__outer` and `__init` are to do; their second argument as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// What starts CRIU: a program and its first arguments.
    pub criu: Vec<PathBuf>,
    /// Folder with links to the image's files, where CRIU's logs and socket go.
    #[serde(with = "fermata_control::text::path")]
    pub dir: PathBuf,
    /// Bring pages in on demand.
    pub lazy: bool,
    /// Where these are, if not in files in `dir`.
    pub memory: Option<Memory>,
    /// The part of a disk's time that they may take until the lifeline ends.
    pub share: f64,
    /// Whether the program gets a network of its own.
    pub own_network: bool,
    /// Whether process 1 leads a session, which becomes the program's.
    pub shell_job: bool,
    /// The program's process id in the image.
    pub root: u32,
    /// The session's log. It is opened in the new mount namespace, for CRIU dumps only files of the
    /// program's own.
    #[serde(with = "fermata_control::text::path")]
    pub log: PathBuf,
    /// Memory shared by name that is made for the program alone, in this order. Like the log it is made in the new mount
    /// namespace.
    pub nameless: Vec<Temporary>,
    /// Whether there is a pipe for the program's input.
    pub input: bool,
    /// File that gets the program's status.
    #[serde(with = "fermata_control::text::path")]
    pub exit_file: PathBuf,
    /// The daemon's socket for agents. `__init` has it as an argument, where the program finds it.
    pub agents: PathBuf,
}

/// Where the memory of an image's processes is: in a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// The image, whose table names the chunks.
    #[serde(with = "fermata_control::text::path")]
    pub image: PathBuf,
    /// Folder of the store.
    #[serde(with = "fermata_control::text::path")]
    pub store: PathBuf,
    /// Folder with copies of its packs in memory.
    pub copies: Option<PathBuf>,
    /// Packs in which the image's chunks were found right not long ago.
    pub known: Vec<FileVersion>,
}

/// A line on the pipe from `__outer` to the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum HelperReport {
    /// Process id of `__init`, as the daemon sees it.
    Init(u32),
    /// Pages of the program cannot be brought: it is ended.
    PagesFailed(String),
    /// All pages are there: seconds since the program runs, and page faults that it has waited for.
    PagesThere { seconds: f64, faults: u64 },
}

/// A status as shells count it.
pub fn status_code(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
