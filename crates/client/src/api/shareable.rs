//! Exported functions that share memory between processes of a session ([`crate::object::shared`]).
//!
//! ```text
//!   cuIpcGetMemHandle ─► 64 bytes ─────────► (the program passes them on) ─► cuIpcOpenMemHandle
//!   export ─► memory file with the 64 bytes ─► (it passes the descriptor on) ─► import
//! ```
//! Handle and file name the memory; they do not keep it allocated.

use core::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::fs::File;
use std::io::Write;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::os::unix::fs::FileExt;

use fermata_abi::op::{Address, MemoryId, SHARED, SharedMemory};
use fermata_abi::sys::driver as sys;
use rustix::fs::MemfdFlags;

use crate::args::Out;
use crate::frame::entry::driver_api;
use crate::link::fault;
use crate::object::mirror::Kind;
use crate::object::session::session;
use crate::object::shared;
use crate::result::Result;

driver_api! {
    fn cuIpcGetMemHandle(handle: Out<sys::CUipcMemHandle>, address: sys::CUdeviceptr) {
        let session = session()?;
        let block = session.memory.find(Address::from_raw(address)).filter(|block| block.kind == Kind::Device);
        let block = block.ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        if handle.is_null() {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        fault::check(block.context)?;
        // Libraries for messages ask before every message. It stays what it is until the memory is freed.
        let shared = match block.shared.get() {
            Some(shared) => *shared,
            None => {
                let made = shared::share(block.start, MemoryId::NULL)?;
                *block.shared.get_or_init(|| made)
            }
        };
        handle.set(sys::CUipcMemHandle { reserved: shared.map(|byte| byte as core::ffi::c_char) })
    }

    fn cuIpcOpenMemHandle_v2(
        address: Out<sys::CUdeviceptr>,
        handle: sys::CUipcMemHandle,
        flags: c_uint,
    ) {
        let session = session()?;
        if address.is_null() || flags & !sys::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS != 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let given = SharedMemory::decode(&handle.reserved.map(|byte| byte as u8));
        let given = given.filter(|it| it.memory == MemoryId::NULL).ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        let call = ("cuIpcOpenMemHandle", Kind::Opened);
        address.set(session.opened.open(call, (&session.devices, &session.memory), given, &[])?.raw())
    }

    fn cuIpcCloseMemHandle(address: sys::CUdeviceptr) {
        let session = session()?;
        session.opened.close(&session.memory, Address::from_raw(address), Kind::Opened)
    }

    fn cuMemExportToShareableHandle(
        shareable: Out<c_void>,
        handle: sys::CUmemGenericAllocationHandle,
        kind: sys::CUmemAllocationHandleType,
        flags: c_ulonglong,
    ) {
        let handle = MemoryId::from_raw(handle);
        let memory = session()?.physical.get(handle)?;
        if kind != sys::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
            return Err(sys::CUDA_ERROR_NOT_SUPPORTED);
        }
        if flags != 0 || memory.handle_types & kind == 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        shareable.cast::<c_int>().set(export(handle)?.into_raw_fd())
    }

    /// The pointer argument holds the descriptor itself.
    fn cuMemImportFromShareableHandle(
        handle: Out<sys::CUmemGenericAllocationHandle>,
        shareable: *mut c_void,
        kind: sys::CUmemAllocationHandleType,
    ) {
        let session = session()?;
        if kind != sys::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
            return Err(sys::CUDA_ERROR_NOT_SUPPORTED);
        }
        let given = import(shareable.addr() as c_int)?;
        let memory = match shared::is_own(&given.sharer) {
            true => session.physical.share(given.memory).map(|()| given.memory)?,
            false => session.physical.fetch(&session.devices, &given)?,
        };
        handle.set(memory.raw())
    }
}

fn export(handle: MemoryId) -> Result<File> {
    file_with("fermata-memory", &shared::share(Address::NULL, handle)?)
}

/// A memory file with a handle, whose descriptor the program passes on.
pub(super) fn file_with(name: &str, handle: &[u8; SHARED]) -> Result<File> {
    let failed = |_| sys::CUDA_ERROR_OPERATING_SYSTEM;
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC);
    let mut file = File::from(file.map_err(|_| sys::CUDA_ERROR_OPERATING_SYSTEM)?);
    file.write_all(handle).map_err(failed)?;
    Ok(file)
}

fn import(descriptor: c_int) -> Result<SharedMemory> {
    let given = SharedMemory::decode(&handle_in(descriptor)?);
    let given = given.filter(|it| it.memory != MemoryId::NULL);
    given.ok_or(sys::CUDA_ERROR_INVALID_VALUE)
}

/// The handle in a file that the program was passed.
pub(super) fn handle_in(descriptor: c_int) -> Result<[u8; SHARED]> {
    if descriptor < 0 {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the program passes a descriptor that is open during the call; if it is not, the duplication fails.
    let given = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let own = given.try_clone_to_owned();
    let file = File::from(own.map_err(|_| sys::CUDA_ERROR_INVALID_VALUE)?);
    let mut bytes = [0; SHARED];
    file.read_exact_at(&mut bytes, 0)
        .map_err(|_| sys::CUDA_ERROR_INVALID_VALUE)?;
    Ok(bytes)
}
