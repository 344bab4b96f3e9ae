//! The driver's own checkpoint of another process, by its number ("CUDA Checkpointing" in the driver API's reference).
//!
//! ```text
//!   running ──lock──► locked ──checkpoint──► checkpointed
//!      ▲                │ ▲                       │
//!      └────unlock──────┘ └──────restore──────────┘
//! ```
//! Checkpointed, a process has no device file open: its device memory is in its host memory, and CRIU can dump it.

use std::ffi::{c_int, c_uint};
use std::time::Duration;

use fermata_abi::sys::driver as cu;

use crate::Driver;
use crate::driver::Result;

/// How a process stands with the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessStand {
    /// It uses CUDA as it likes.
    Running,
    /// Its calls wait.
    Locked,
    /// Its device memory is in host memory.
    Checkpointed,
    /// It cannot go on.
    Failed,
}

/// UUIDs of a GPU that a process has had and of the one that takes its place.
pub type UuidPair = ([u8; 16], [u8; 16]);

impl Driver {
    /// Whether the driver has this interface (570 and newer).
    pub fn has_process_checkpoint(&self) -> bool {
        self.f.has_process_checkpoint()
    }

    /// How process `pid` stands.
    ///
    /// # Errors
    /// It does not use CUDA, or what else the driver says.
    pub fn process_stand(&self, pid: u32) -> Result<ProcessStand> {
        let mut state = cu::CU_PROCESS_STATE_FAILED;
        // SAFETY: the pointer refers to a live local.
        unsafe { self.f.cuCheckpointProcessGetState(number(pid), &mut state) }?;
        Ok(match state {
            cu::CU_PROCESS_STATE_RUNNING => ProcessStand::Running,
            cu::CU_PROCESS_STATE_LOCKED => ProcessStand::Locked,
            cu::CU_PROCESS_STATE_CHECKPOINTED => ProcessStand::Checkpointed,
            _ => ProcessStand::Failed,
        })
    }

    /// Lets no call of the process begin any more; it runs on if that takes longer than `limit`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn lock_process(&self, pid: u32, limit: Duration) -> Result<()> {
        let mut args = cu::CUcheckpointLockArgs {
            timeoutMs: c_uint::try_from(limit.as_millis()).unwrap_or(c_uint::MAX),
            ..Default::default()
        };
        // SAFETY: the pointer refers to a live local.
        unsafe { self.f.cuCheckpointProcessLock(number(pid), &mut args) }
    }

    /// Moves the device memory of a locked process into its host memory, and has it give everything of the GPUs back.
    ///
    /// # Errors
    /// What the driver says; the process is locked still.
    pub fn checkpoint_process(&self, pid: u32) -> Result<()> {
        let mut args = cu::CUcheckpointCheckpointArgs::default();
        // SAFETY: the pointer refers to a live local.
        unsafe { self.f.cuCheckpointProcessCheckpoint(number(pid), &mut args) }
    }

    /// The reverse. `pairs` name every GPU of the checkpoint with the one that takes its place; none: the same.
    ///
    /// # Errors
    /// What the driver says; the process is checkpointed still, or has failed for good.
    pub fn restore_process(&self, pid: u32, pairs: &[UuidPair]) -> Result<()> {
        let uuid = |bytes: &[u8; 16]| cu::CUuuid {
            bytes: bytes.map(|byte| byte as _),
        };
        let pair = |(old, new): &UuidPair| cu::CUcheckpointGpuPair {
            oldUuid: uuid(old),
            newUuid: uuid(new),
        };
        let mut pairs: Vec<_> = pairs.iter().map(pair).collect();
        let mut args = cu::CUcheckpointRestoreArgs::default();
        if !pairs.is_empty() {
            args.gpuPairs = pairs.as_mut_ptr();
            args.gpuPairsCount = c_uint::try_from(pairs.len()).unwrap_or(c_uint::MAX);
        }
        // SAFETY: the arguments are a live local, and so are the pairs that they name.
        unsafe { self.f.cuCheckpointProcessRestore(number(pid), &mut args) }
    }

    /// Lets a locked process make calls again.
    ///
    /// # Errors
    /// What the driver says.
    pub fn unlock_process(&self, pid: u32) -> Result<()> {
        let mut args = cu::CUcheckpointUnlockArgs::default();
        // SAFETY: the pointer refers to a live local.
        unsafe { self.f.cuCheckpointProcessUnlock(number(pid), &mut args) }
    }
}

/// The driver's type for it; what is no number of a process is none.
fn number(pid: u32) -> c_int {
    c_int::try_from(pid).unwrap_or(-1)
}
