//! The conversation between the daemon and a worker, over the socket the worker gets as descriptor 3.
//!
//! ```text
//!   daemon                               worker
//!     │ Open ─────────────────────────────► │  load the driver, make contexts ready
//!     │ ◄───────────────────────────── Ready│
//!     │ (Warm ────────────────────────────► │  workers that wait: staging buffers, made beside
//!     │ (◄────────────────────────── Warming │
//!     │ (Preload ─────────────────────────► │  workers that wait for an image: its contexts, modules and kernels
//!     │ (◄──────────────────────── Preloaded │
//!     │ (Keep ────────────────────────────► │  where a registered memory tier is kept; any time)
//!     │ (◄──────────────────────────── Kept │)
//!     │ Share ────────────────────────────► │  where the session's other workers are; again before a checkpoint
//!     │ ◄─────────────────────────── Sharing│
//!     │ (Common + socket ─────────────────► │  restore only: where data is that other workers have already)
//!     │ (◄────────────────────────── Common │)
//!     │ (Load ────────────────────────────► │  restore only: objects and data from an image)
//!     │ (◄──────────────── Progress* Loaded │)  data may come later: Restoring asks how far it is
//!     │ (HostMemoryThere ─────────────────► │  the disk is the worker's from now on)
//!     │ (◄───────────────────────── Noted │)
//!     │ Attach + ring, side socket ───────► │  serve the ring
//!     │ ◄────────────────────────── Attached│
//!     │ Detach ───────────────────────────► │  after the agent has quiesced
//!     │ ◄────────────────────────── Detached│
//!     │ Save ─────────────────────────────► │
//!     │ ◄────────────── Progress*, Captured │  the bytes are read: the program may go on
//!     │ (Attach ...)                        │
//!     │ Finish ───────────────────────────► │  the rest of the save, behind
//!     │ ◄───────────────────────────── Saved│
//!     │ Attach ...  or  (Vacate) Exit       │
//! ```
//! A checkpoint behind the running program makes ready what it can before the stop:
//! ```text
//!   attached:  Prepare ─► Prepared (Ahead ─► Begun, Look* ─► Ahead)
//!   detached:  Begin ─► Begun        or, after Ahead: Save ─► Saved
//!   attached:  Look* ─► Capturing*, then Saved, or Overtaken (a stop and Save then take the rest)
//!   any time:  Abandon ─► Abandoned
//! ```
//! A worker whose daemon has ended serves on, connects to the next daemon's socket and says Back.
//! Any request may be answered by `Failed`; the worker then is as it was before the request, but for Vacate.

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use fermata_terms::{
    LoadCheck, Miss, Pace, PrefetchOrder, Stall, Step, Timeline, Validate, Validation, Way,
};
use serde::{Deserialize, Serialize};

use crate::text::Text;

/// The file in a session's folder that is there once one of its workers could not load: the others wait for it no more.
pub const LOAD_FAILED: &str = "load-failed";

/// To the worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToWorker {
    /// The first message.
    Open {
        /// [`crate::PROTOCOL`].
        protocol: u32,
        /// Path of the driver library to load (NVIDIA's `libcuda.so.1` or softgpu's).
        #[serde(with = "crate::text::path")]
        driver: PathBuf,
        /// Whether that driver is softgpu.
        soft: bool,
        /// Whether our hash kernels are loaded now, before anything of a program, or at its first checkpoint.
        /// Where the driver puts a program's variables can depend on it, so a session's workers all do the same.
        kernels_first: bool,
    },
    /// Make ready beside, while no program is there, what the first checkpoint needs.
    Warm,
    /// Do ahead what a Load of an image begins with, in a worker that has served no program; only a Load of that image may follow.
    /// May come with the memory of the ring, as Load may, which then comes with the same.
    Preload {
        /// The chunk store's folder.
        #[serde(with = "crate::text::path")]
        store: PathBuf,
        /// The image folder.
        #[serde(with = "crate::text::path")]
        image: PathBuf,
        /// What the image's files must be.
        digests: ImageDigests,
    },
    /// Keep the packs of a store in memory, and copies of packs of other stores, mapped and registered, behind
    /// everything else; loads take what they can from the copies. Asked again it only answers.
    Keep {
        /// The chunk store's folder; empty if it is on a disk.
        #[serde(with = "crate::text::path")]
        store: PathBuf,
        /// The folder of copies; empty if there is none.
        #[serde(default, with = "crate::text::path")]
        copies: PathBuf,
        /// The most bytes that may be registered.
        limit: u64,
    },
    /// Serve a program. Comes with three descriptors: ring memory, side socket, and where the program's
    /// output goes, which gets what the driver prints too (device `printf` and `assert`).
    Attach,
    /// Keep the device from getting more, for a stop that is coming; or no more.
    Hold(Hold),
    /// Stop serving the ring; keep everything else.
    Detach,
    /// Read device data and state, and begin to write them. Waits for what an earlier save has left.
    Save {
        /// The chunk store's folder.
        #[serde(with = "crate::text::path")]
        store: PathBuf,
        /// The image folder being written; the worker writes `state` and `chunks` there.
        #[serde(with = "crate::text::path")]
        image: PathBuf,
    },
    /// Wait until what the last Save has captured is written and synced.
    Finish,
    /// Read device data and state from an image; only into a worker that has served no program. May come with the
    /// memory of the ring that the program will be served through, so that it is made ready meanwhile.
    Load {
        /// The chunk store's folder.
        #[serde(with = "crate::text::path")]
        store: PathBuf,
        /// The image folder.
        #[serde(with = "crate::text::path")]
        image: PathBuf,
        /// What the image's files must be.
        digests: ImageDigests,
        /// Whether the answer waits for the data, or data may come while the program runs.
        pace: Pace,
        /// What names kernels that use data before it is there.
        #[serde(default)]
        check: LoadCheck,
        /// Go on where the multiprocessors of a device lie elsewhere than the program was told.
        #[serde(default)]
        ignore_places: bool,
    },
    /// What the next Load brings behind the program may be mapped from other workers' memory. Comes with a socket to the keeper of
    /// that, see [`crate::common`].
    Common,
    /// How far the data is that comes while the program runs.
    Restoring,
    /// The program's host memory is there. Until then the worker leaves the disk to those who bring it from the same image. Only
    /// for a worker that this daemon has started: one of an earlier release knows no such message.
    HostMemoryThere,
    /// Make ready for a checkpoint behind the running program.
    Prepare {
        /// The chunk store's folder.
        #[serde(with = "crate::text::path")]
        store: PathBuf,
        /// How; none for the best that fits.
        way: Option<Way>,
        /// Bytes of each device's memory to set aside at most, for [`Way::Cow`]; none for a part of what is free.
        pool_bytes: Option<u64>,
        /// How mis-speculations are to be found.
        validate: Validate,
    },
    /// Copy ahead of a stop, for [`Way::Recopy`].
    Ahead,
    /// Take the session as it is now, detached; the program may run then.
    Begin {
        /// The image folder being written.
        #[serde(with = "crate::text::path")]
        image: PathBuf,
    },
    /// How far it is.
    Look,
    /// Give up what was prepared, begun or copied ahead.
    Abandon,
    /// What the session holds, for `ps` and `inspect`.
    Describe,
    /// Find the other workers of the session in this folder, for memory that its processes share. Asked of a session that
    /// has memory of others, it fails if a restore could not bring that back.
    Share {
        /// The session's folder.
        #[serde(with = "crate::text::path")]
        folder: PathBuf,
        /// This worker's number in the table, whose descriptor comes with it, by which the workers agree who stores a chunk of the
        /// next image that several have; without it each stores all of its own.
        #[serde(default)]
        number: Option<u16>,
    },
    /// Give all device memory of a session back whose program is detached; nothing but Exit may follow.
    Vacate,
    /// Free everything and end.
    Exit,
}

/// From the worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromWorker {
    /// The driver is loaded.
    Ready {
        /// [`crate::PROTOCOL`].
        protocol: u32,
        /// Devices found.
        devices: Vec<Device>,
        /// `cuDriverGetVersion`.
        driver_version: i32,
    },
    /// How the registered memory tier is.
    Kept(Tier),
    /// It does.
    Warming,
    /// Answer to Preload.
    Preloaded,
    /// The ring is served.
    Attached,
    /// Answer to Hold.
    Holding(Holding),
    /// The ring is no longer served.
    Detached,
    /// How far a Save or Load is.
    Progress {
        /// Bytes done.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// A Save has read everything; nothing of it is an image before Finish has been answered.
    Captured(Totals),
    /// A Save is complete and synced.
    Saved(Totals),
    /// It is ready, and will go this way.
    Prepared {
        /// The way.
        way: Way,
    },
    /// Copying has begun.
    Begun {
        /// How: a snapshot that does not fit any more goes as [`Way::Cow`].
        way: Way,
        /// What the stop was spent on.
        #[serde(default)]
        steps: Vec<Step>,
    },
    /// Copying goes on.
    Capturing {
        /// Bytes copied.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// What could be copied ahead of the stop has been.
    Ahead,
    /// Buffers were written before they were copied, by mis-speculation, or nothing has validated that none
    /// was: no image yet. What was copied is kept for a Save.
    Overtaken {
        /// How many buffers are known to have been.
        buffers: u64,
    },
    /// Nothing is prepared or under way any more.
    Abandoned,
    /// A Load is complete, but for data that may come later.
    Loaded {
        /// What the session holds.
        totals: Totals,
        /// What the time was spent on.
        steps: Vec<Step>,
    },
    /// Answer to Common.
    Common,
    /// The program has written to memory that other sessions have, too: only a rollback helps. Unasked.
    Missed {
        /// What the driver said.
        reason: String,
    },
    /// Answer to HostMemoryThere.
    Noted,
    /// Answer to Restoring.
    Restoring(Restoring),
    /// Answer to Share.
    Sharing,
    /// Answer to Describe.
    Description(Totals),
    /// Answer to Vacate.
    Vacated,
    /// A request failed.
    Failed(Failure),
    /// The session on the GPU has failed by itself (driver fault, device lost).
    Lost {
        /// What happened.
        reason: String,
    },
    /// The first message on a connection to a daemon that has taken an ended one's place. What that one had
    /// begun, the worker has given up. A worker that serves no program and belongs to no session is told
    /// Exit.
    Back(Back),
}

/// Which streams get nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hold {
    /// None any more.
    Off,
    /// Those that have work at this moment; the others go on.
    Busy,
    /// Those that have work at this moment; each of the others once it has been given the next piece of work that may wait
    /// for other streams or processes. Asked for again, those that have come to an end of that piece may get another.
    Step(Meeting),
    /// Those that are held now: none is let on, it is only looked how far they have come.
    Same,
    /// All.
    All,
    /// All, and whatever the program sends is taken: its threads are about to be parked.
    Closing,
}

/// What may wait for work of other streams or processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Meeting {
    /// Kernels of NCCL, and graphs, which may hold some.
    Collectives,
    /// Every kernel and every graph.
    Kernels,
}

/// How the device stands while streams are held.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Whether all streams are held and the device has nothing to do.
    pub idle: bool,
    /// What streams are at.
    pub busy: Vec<StreamWork>,
}

/// What a stream is at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamWork {
    /// In words.
    pub what: String,
    /// Its handle; 1 is the default stream.
    pub stream: u64,
    /// How much the stream had been given at the end of it.
    pub count: u64,
    /// Whether a kernel of NCCL, or a graph, is in it.
    #[serde(default)]
    pub collective: bool,
    /// Whether it is a wait for other streams or the host.
    #[serde(default)]
    pub waits: bool,
}

/// A worker that has outlived its daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Back {
    /// [`crate::PROTOCOL`].
    pub protocol: u32,
    /// Path of the driver library it has loaded.
    #[serde(with = "crate::text::path")]
    pub driver: PathBuf,
    /// Whether that is softgpu.
    pub soft: bool,
    /// Whether it has loaded our kernels before anything of a program.
    pub kernels_first: bool,
    /// Devices it has found.
    pub devices: Vec<Device>,
    /// `cuDriverGetVersion`.
    pub driver_version: i32,
    /// Whether it serves a program right now.
    pub serving: bool,
}

/// Environment variable of a worker: the socket at which it finds the next daemon; without it, it ends with
/// its daemon and its program.
pub const ENV_SOCKET: &str = "FERMATA_DAEMON_SOCKET";
/// Environment variable of a worker: [`NextDaemon`] as JSON; without it, it starts none.
pub const ENV_NEXT_DAEMON: &str = "FERMATA_NEXT_DAEMON";

/// How a worker starts the next daemon, when a parked program needs one and no command has started it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextDaemon {
    /// Its executable.
    pub program: Text,
    /// Variables in which the worker's environment differs from the daemon's, as the daemon has them.
    pub variables: BTreeMap<String, Option<Text>>,
}

/// How far a restore behind a running program is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Restoring {
    /// Bytes that are there.
    pub done: u64,
    /// Bytes that come or came while the program runs.
    pub total: u64,
    /// Seconds since the first of them was asked for; until the end, if it has ended.
    pub seconds: f64,
    /// What they were spent on.
    pub steps: Vec<Step>,
    /// How it stands.
    pub stand: Stand,
    /// Where kernels were caught using data before it was there, if they check themselves.
    #[serde(default)]
    pub misses: Vec<Miss>,
}

/// How a restore behind a running program stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stand {
    /// Data is coming.
    Coming,
    /// Everything is there, or always was.
    Complete,
    /// The program has ended before everything was there.
    GivenUp,
    /// The program has used memory before its data was there: only a rollback helps.
    Missed(String),
    /// The data cannot be brought: only a rollback helps.
    Failed(Failure),
}

/// A device, as recorded in images.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Name.
    pub name: String,
    /// UUID in the usual 8-4-4-4-12 form with the prefix `GPU-`.
    pub uuid: String,
    /// Bytes.
    pub memory: u64,
    /// 10 * major + minor.
    pub compute_capability: u32,
}

/// What keeps packs from being registered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TierState {
    /// Nothing: all packs are.
    Complete,
    /// It takes its time.
    #[default]
    Registering,
    /// A checkpoint or restore under way, which registering would slow down.
    Paused,
    /// The limit.
    Full,
    /// The trouble that is told; it is tried again.
    Failed,
}

/// A worker's registered memory tier.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tier {
    /// What keeps packs from being registered.
    #[serde(default)]
    pub state: TierState,
    /// Bytes registered with the driver.
    pub registered: u64,
    /// Of these, ready for the next checkpoint.
    pub ready: u64,
    /// Bytes of packs that are not registered.
    #[serde(default)]
    pub missing: u64,
    /// The most that may be registered.
    pub limit: u64,
    /// What the system, the store or the driver said, while that is so; else empty.
    pub trouble: String,
}

/// First argument of a worker's executable that is to be a monitor: [`MONITOR_SOFT`] or another word, the driver's path,
/// and NVML's if there is one, come next. It answers the questions that come through the socket at descriptor 3.
pub const MONITOR_ARGUMENT: &str = "monitor";
/// The second, where the driver is softgpu.
pub const MONITOR_SOFT: &str = "soft";

/// Totals of a session or an image's device part.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Live device allocations.
    pub allocations: u64,
    /// Their bytes.
    pub device_bytes: u64,
    /// Operations that wait for their turn, as part of the session.
    #[serde(default)]
    pub queued: u64,
    /// The same by device, in an answer to Describe.
    #[serde(default)]
    pub memory: Vec<u64>,
    /// Bytes by device that other processes of the session have allocated and this one uses, in an answer to Describe.
    #[serde(default)]
    pub fetched: Vec<u64>,
    /// Bytes by device that no process uses, as far as the worker has a context there, in an answer to Describe.
    #[serde(default)]
    pub free: Vec<Option<u64>>,
    /// Bytes of pinned, registered and managed memory.
    pub host_bytes: u64,
    /// Streams, events, modules, graphs alive.
    pub objects: u64,
    /// Chunks referred to.
    pub chunks: u64,
    /// Bytes newly written to the store (less than the total where content was there already).
    pub written_bytes: u64,
    /// Seconds spent.
    pub seconds: f64,
    /// Names of devices used.
    pub devices: Vec<String>,
    /// What a capture behind the program has cost it.
    #[serde(default)]
    pub stall: Stall,
    /// How what was copied behind the program was validated.
    #[serde(default)]
    pub validation: Validation,
    /// Why an image of the session may be refused where it is restored.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// What the stop was spent on, in an answer to Save.
    #[serde(default)]
    pub steps: Vec<Step>,
}

/// What the manifest of an image says of the files that a worker reads: their BLAKE3, 64 hexadecimal digits each. A worker
/// that finds another file in their place refuses the image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageDigests {
    /// Of `state`.
    pub state: String,
    /// Of `chunks`.
    pub chunks: String,
}

/// A failed request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What kind, for the exit status.
    pub kind: FailureKind,
    /// One sentence naming the operation and the object.
    pub message: String,
    /// The next step for the user; may be empty.
    pub hint: String,
}

/// Kinds of failure, mapped to exit statuses by the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// The user can mend it (exit 1): full disk, wrong argument, too little memory.
    User,
    /// A bug of ours or an unexpected state (exit 2).
    Internal,
    /// No such image or session (exit 10).
    NotFound,
    /// In use by another operation (exit 11).
    Locked,
    /// Damaged data (exit 12).
    Damaged,
    /// This host cannot (exit 13): no GPU, other model, CRIU missing.
    Host,
    /// The program cannot be checkpointed (exit 14).
    NotCheckpointable,
    /// A GPU of the program is lost (exit 15).
    DeviceLost,
}
