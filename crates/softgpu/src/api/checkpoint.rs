//! The driver's own checkpoint. Only the calling process can be checkpointed.

use std::ffi::c_int;
use std::time::Duration;

use fermata_abi::sys::driver as cu;

use super::args::{In, Out};
use super::init::driver;
use crate::checkpoint;
use crate::error::{NOT_SUPPORTED, Result};

/// Refuses other processes.
fn own(pid: c_int) -> Result {
    if u32::try_from(pid) == Ok(std::process::id()) {
        Ok(())
    } else {
        Err(NOT_SUPPORTED)
    }
}

api! {
    fn cuCheckpointProcessGetState(pid: c_int, state: Out<cu::CUprocessState>) {
        own(pid)?;
        state.set(checkpoint::state())
    }

    fn cuCheckpointProcessGetRestoreThreadId(pid: c_int, thread: Out<c_int>) {
        own(pid)?;
        thread.set(pid)
    }

    fn cuCheckpointProcessLock(pid: c_int, args: In<cu::CUcheckpointLockArgs>) {
        own(pid)?;
        let limit = if args.is_null() { 0 } else { args.get()?.timeoutMs };
        let limit = (limit > 0).then(|| Duration::from_millis(limit.into()));
        checkpoint::lock(driver()?, limit)
    }

    fn cuCheckpointProcessCheckpoint(pid: c_int, args: In<cu::CUcheckpointCheckpointArgs>) {
        let _ = args;
        own(pid)?;
        checkpoint::checkpoint(driver()?)
    }

    fn cuCheckpointProcessRestore(pid: c_int, args: In<cu::CUcheckpointRestoreArgs>) {
        own(pid)?;
        if !args.is_null() && args.get()?.gpuPairsCount > 0 {
            return Err(NOT_SUPPORTED);
        }
        checkpoint::restore(driver()?)
    }

    fn cuCheckpointProcessUnlock(pid: c_int, args: In<cu::CUcheckpointUnlockArgs>) {
        let _ = args;
        own(pid)?;
        checkpoint::unlock()
    }
}
