//! Physical memory by descriptor, within the process: a descriptor names the memory, it does not hold it.
//!
//! ```text
//!   export ─► memory file with the session's number and the handle ─► (the program passes the descriptor on) ─► import
//! ```
//! What imports it in another process finds another session's number and is refused.

use core::ffi::{c_int, c_ulonglong, c_void};
use std::fs::File;
use std::io::Write;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use fermata_abi::sys::driver as sys;
use rustix::fs::MemfdFlags;

use crate::entry::{Result, driver_api, put};
use crate::session::session;

const MAGIC: &[u8; 8] = b"FERMSHAR";

/// The number of this session, which is in the image with the rest of the process.
static NUMBER: OnceLock<[u8; 16]> = OnceLock::new();

driver_api! {
    fn cuMemExportToShareableHandle(
        shareable: *mut c_void,
        handle: sys::CUmemGenericAllocationHandle,
        kind: sys::CUmemAllocationHandleType,
        flags: c_ulonglong,
    ) {
        let memory = session()?.physical.get(handle)?;
        if kind != sys::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
            return Err(sys::CUDA_ERROR_NOT_SUPPORTED);
        }
        if flags != 0 || memory.handle_types & kind == 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        put(shareable.cast::<c_int>(), export(handle)?.into_raw_fd())
    }

    /// The descriptor itself stands where a pointer to a handle would.
    fn cuMemImportFromShareableHandle(
        handle: *mut sys::CUmemGenericAllocationHandle,
        shareable: *mut c_void,
        kind: sys::CUmemAllocationHandleType,
    ) {
        let session = session()?;
        if kind != sys::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
            return Err(sys::CUDA_ERROR_NOT_SUPPORTED);
        }
        let memory = import(shareable.addr() as c_int)?;
        session.physical.share(memory)?;
        put(handle, memory)
    }
}

fn number() -> Result<&'static [u8; 16]> {
    if let Some(number) = NUMBER.get() {
        return Ok(number);
    }
    let mut fresh = [0u8; 16];
    // SAFETY: the buffer has as many bytes.
    let got = unsafe { libc::getrandom(fresh.as_mut_ptr().cast(), fresh.len(), 0) };
    if got != fresh.len() as isize {
        return Err(sys::CUDA_ERROR_OPERATING_SYSTEM);
    }
    Ok(NUMBER.get_or_init(|| fresh))
}

fn export(handle: u64) -> Result<File> {
    let failed = |_| sys::CUDA_ERROR_OPERATING_SYSTEM;
    let file = rustix::fs::memfd_create("fermata-memory", MemfdFlags::CLOEXEC);
    let mut file = File::from(file.map_err(|_| sys::CUDA_ERROR_OPERATING_SYSTEM)?);
    file.write_all(MAGIC).map_err(failed)?;
    file.write_all(number()?).map_err(failed)?;
    file.write_all(&handle.to_le_bytes()).map_err(failed)?;
    Ok(file)
}

fn import(descriptor: c_int) -> Result<u64> {
    if descriptor < 0 {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the program passes a descriptor that is open during the call; if it is not, the duplication fails.
    let given = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let own = given.try_clone_to_owned();
    let file = File::from(own.map_err(|_| sys::CUDA_ERROR_INVALID_VALUE)?);
    let mut bytes = [0; 32];
    file.read_exact_at(&mut bytes, 0)
        .map_err(|_| sys::CUDA_ERROR_INVALID_VALUE)?;
    let ours = bytes[..8] == *MAGIC && bytes[8..24] == *number()?;
    let handle = bytes[24..].try_into().map_or(0, u64::from_le_bytes);
    match ours {
        true => Ok(handle),
        // Of another process, or no memory at all.
        false => Err(sys::CUDA_ERROR_INVALID_VALUE),
    }
}
