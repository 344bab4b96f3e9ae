//! The conversation between the daemon and a worker, over the socket the worker gets as descriptor 3.
//!
//! ```text
//!   daemon                               worker
//!     │ Open ─────────────────────────────► │  load the driver, make contexts ready
//!     │ ◄───────────────────────────── Ready│
//!     │ (Load ────────────────────────────► │  restore only: objects and data from an image)
//!     │ (◄──────────────── Progress* Loaded │)  data may come later: Restoring asks how far it is
//!     │ Attach + ring, side socket ───────► │  serve the ring
//!     │ ◄────────────────────────── Attached│
//!     │ Detach ───────────────────────────► │  after the agent has quiesced
//!     │ ◄────────────────────────── Detached│
//!     │ Save ─────────────────────────────► │
//!     │ ◄────────────── Progress*, Captured │  the bytes are read: the program may go on
//!     │ (Attach ...)                        │
//!     │ Finish ───────────────────────────► │  the rest of the save, behind
//!     │ ◄───────────────────────────── Saved│
//!     │ Attach ...  or  Exit                │
//! ```
//! Any request may be answered by `Failed`; the worker then is as it was before the request.

use serde::{Deserialize, Serialize};

/// To the worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToWorker {
    /// The first message.
    Open {
        /// [`crate::PROTOCOL`].
        protocol: u32,
        /// Path of the driver library to load (NVIDIA's `libcuda.so.1` or softgpu's).
        driver: String,
        /// Whether that driver is softgpu.
        soft: bool,
    },
    /// Serve a program. Comes with three descriptors: ring memory, side socket, the program's
    /// standard output (device `printf`).
    Attach,
    /// Stop serving the ring; keep everything else.
    Detach,
    /// Read device data and state, and begin to write them. Waits for what an earlier save has left.
    Save {
        /// The chunk store's folder.
        store: String,
        /// The image folder being written; the worker writes `state` and `chunks` there.
        image: String,
    },
    /// Wait until what the last Save has captured is written and synced.
    Finish,
    /// Read device data and state from an image; only into a worker that has served nobody.
    Load {
        /// The chunk store's folder.
        store: String,
        /// The image folder.
        image: String,
        /// Whether the answer waits for the data, or data may come while the program runs.
        pace: Pace,
    },
    /// How far the data is that comes while the program runs.
    Restoring,
    /// What the session holds, for `ps` and `inspect`.
    Describe,
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
    /// The ring is served.
    Attached,
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
    /// A Load is complete, but for data that may come later.
    Loaded(Totals),
    /// Answer to Restoring.
    Restoring(Restoring),
    /// Answer to Describe.
    Description(Totals),
    /// A request failed.
    Failed(Failure),
    /// The session on the GPU has failed by itself (driver fault, device lost).
    Lost {
        /// What happened.
        reason: String,
    },
}

/// When the data of an image is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pace {
    /// Before the program runs.
    Eager,
    /// While it runs, in this order; what an operation needs comes first.
    Behind(Order),
}

/// The order of data that no operation waits for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// As earlier restores of the image have used it.
    #[default]
    Profile,
    /// By address.
    Default,
    /// The profile backwards, for comparison.
    Worst,
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
    /// How it stands.
    pub stand: Stand,
}

/// How a restore behind a running program stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stand {
    /// Data is coming.
    Coming,
    /// Everything is there, or always was.
    Complete,
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

/// Totals of a session or an image's device part.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Live device allocations.
    pub allocations: u64,
    /// Their bytes.
    pub device_bytes: u64,
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
}
