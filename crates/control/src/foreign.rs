//! The conversation between the daemon and the process that checkpoints foreign programs for it, by the CUDA driver's own
//! interface.
//!
//! ```text
//!   daemon                                   helper (a worker's executable)
//!     │ ToHelper ────────────────────────────► │  cuCheckpointProcess* of processes, by their numbers
//!     │ ◄────────────────────────── FromHelper │
//! ```
//! The helper lets go of what it has locked: when the daemon ends in the middle, it brings every process back that it has
//! locked or checkpointed itself, and ends.

use serde::{Deserialize, Serialize};

use crate::worker::Device;

/// First argument of a worker's executable that is to be this helper; the driver's path comes next, and NVML's if there is
/// one. The daemon's socket is at descriptor 3.
pub const FOREIGN_ARGUMENT: &str = "foreign";

/// From the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToHelper {
    /// What the driver is, and its devices [`FromHelper::Described`].
    Describe,
    /// How processes stand [`FromHelper::Stands`].
    Stands {
        /// Their numbers.
        pids: Vec<u32>,
    },
    /// Let no call of these begin any more; all, or none [`FromHelper::Done`]. After a refusal the helper holds none of them.
    Lock {
        /// Their numbers.
        pids: Vec<u32>,
        /// How long each may take.
        limit_ms: u64,
    },
    /// Move the device memory of these into their host memory [`FromHelper::Done`]. After a refusal some may be moved.
    Checkpoint {
        /// Their numbers.
        pids: Vec<u32>,
    },
    /// Move it back, on the GPUs of this host [`FromHelper::Done`]: their calls wait still. All are tried.
    Restore {
        /// Their numbers.
        pids: Vec<u32>,
        /// GPUs that take the place of others, by their UUIDs in the usual form; none: the same as before.
        pairs: Vec<(String, String)>,
    },
    /// Whatever these are, bring them to where they run [`FromHelper::Done`]. All are tried. One that has ended after its
    /// calls were let go on has run.
    BringBack {
        /// Their numbers.
        pids: Vec<u32>,
    },
    /// Bring those to where they run that the helper has locked itself [`FromHelper::Done`]. All are tried; what another one has
    /// locked stays so.
    BringBackHeld,
    /// These need not be brought back when the daemon ends [`FromHelper::Done`].
    Forget,
}

/// From the helper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromHelper {
    /// The driver.
    Described {
        /// `cuDriverGetVersion`.
        version: i32,
        /// Whether it can checkpoint processes.
        able: bool,
        /// All its devices.
        devices: Vec<Device>,
    },
    /// In the order of the question.
    Stands(Vec<DriverStand>),
    /// It is done.
    Done,
    /// The driver says no.
    Refused(Refusal),
    /// There is no driver.
    NoDriver(String),
}

/// How a process stands with the driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DriverStand {
    /// It does not use CUDA, or the driver says nothing of it, for this reason.
    Unknown(String),
    /// It runs.
    Running {
        /// Bytes of device memory that it has, as far as NVML tells.
        device_bytes: Option<u64>,
    },
    /// Its calls wait.
    Locked,
    /// Its device memory is in host memory.
    Checkpointed,
    /// It cannot go on.
    Failed,
}

/// What the driver has refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The process.
    pub pid: u32,
    /// The step.
    pub step: DriverStep,
    /// `CUresult`.
    pub code: u32,
    /// Its name, as the driver gives it.
    pub name: String,
}

/// A step of the driver's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DriverStep {
    /// `cuCheckpointProcessLock`.
    Lock,
    /// `cuCheckpointProcessCheckpoint`.
    Checkpoint,
    /// `cuCheckpointProcessRestore`.
    Restore,
    /// `cuCheckpointProcessUnlock`.
    Unlock,
}
