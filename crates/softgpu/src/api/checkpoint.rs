//! Exported functions for the driver's own checkpoint, of the calling process or of another one.

use std::ffi::c_int;
use std::time::Duration;

use fermata_abi::sys::driver as cu;

use super::args::{In, Out};
use super::init::driver;
use crate::checkpoint;
use crate::error::{INVALID_VALUE, Result};
use crate::remote::caller::Other;
use crate::remote::helper::Command;

/// Process `pid`, if it is another than this one.
fn other(pid: c_int) -> Result<Option<Other>> {
    if u32::try_from(pid) == Ok(std::process::id()) {
        return Ok(None);
    }
    Other::find(pid).map(Some)
}

/// The pairs of UUIDs that a caller gives.
fn pairs(args: In<cu::CUcheckpointRestoreArgs>) -> Result<Vec<cu::CUcheckpointGpuPair>> {
    if args.is_null() || args.get()?.gpuPairsCount == 0 {
        return Ok(Vec::new());
    }
    let args = args.get()?;
    if args.gpuPairs.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller vouches for that many pairs there.
    let pairs = unsafe { std::slice::from_raw_parts(args.gpuPairs, args.gpuPairsCount as usize) };
    Ok(pairs.to_vec())
}

api! {
    fn cuCheckpointProcessGetState(pid: c_int, state: Out<cu::CUprocessState>) {
        match other(pid)? {
            None => state.set(checkpoint::state()),
            Some(other) => state.set(other.state()?),
        }
    }

    fn cuCheckpointProcessGetRestoreThreadId(pid: c_int, thread: Out<c_int>) {
        match other(pid)? {
            None => thread.set(pid),
            Some(other) => thread.set(other.thread()? as c_int),
        }
    }

    fn cuCheckpointProcessLock(pid: c_int, args: In<cu::CUcheckpointLockArgs>) {
        let limit = if args.is_null() { 0 } else { args.get()?.timeoutMs };
        if let Some(other) = other(pid)? {
            return other.ask(Command::Lock, limit);
        }
        let limit = (limit > 0).then(|| Duration::from_millis(limit.into()));
        checkpoint::lock(driver()?, limit)
    }

    fn cuCheckpointProcessCheckpoint(pid: c_int, args: In<cu::CUcheckpointCheckpointArgs>) {
        let _ = args;
        match other(pid)? {
            None => checkpoint::checkpoint(driver()?),
            Some(other) => other.ask(Command::Checkpoint, 0),
        }
    }

    fn cuCheckpointProcessRestore(pid: c_int, args: In<cu::CUcheckpointRestoreArgs>) {
        let pairs = pairs(args)?;
        if let Some(other) = other(pid)? {
            other.leave(&pairs)?;
            return other.ask(Command::Restore, pairs.len() as u32);
        }
        let bytes = |uuid: &cu::CUuuid| uuid.bytes.map(|byte| byte as u8);
        let pairs = pairs.iter().map(|it| (bytes(&it.oldUuid), bytes(&it.newUuid)));
        checkpoint::restore(driver()?, &pairs.collect::<Vec<_>>())
    }

    fn cuCheckpointProcessUnlock(pid: c_int, args: In<cu::CUcheckpointUnlockArgs>) {
        let _ = args;
        match other(pid)? {
            None => checkpoint::unlock(),
            Some(other) => other.ask(Command::Unlock, 0),
        }
    }
}
