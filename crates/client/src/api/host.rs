//! Exported functions for pinned, registered and managed memory.

use core::ffi::{c_uint, c_void};

use fermata_abi::op::{Address, HostKind};
use fermata_abi::sys::driver as sys;

use crate::args::Out;
use crate::frame::entry::driver_api;
use crate::link::fault;
use crate::object::context::current;
use crate::object::host;
use crate::object::mirror::{Block, Kind};
use crate::object::session::session;
use crate::result::Result;
use crate::work::capture;

const HOST_ALLOC_FLAGS: c_uint = sys::CU_MEMHOSTALLOC_PORTABLE
    | sys::CU_MEMHOSTALLOC_DEVICEMAP
    | sys::CU_MEMHOSTALLOC_WRITECOMBINED;
const HOST_REGISTER_FLAGS: c_uint = sys::CU_MEMHOSTREGISTER_PORTABLE
    | sys::CU_MEMHOSTREGISTER_DEVICEMAP
    | sys::CU_MEMHOSTREGISTER_IOMEMORY
    | sys::CU_MEMHOSTREGISTER_READ_ONLY;
/// The device number that stands for host memory.
const CPU: sys::CUdevice = -1;

driver_api! {
    fn cuMemAllocHost_v2(pointer: Out<*mut c_void>, size: usize) {
        pointer.set(pinned(size, 0)?)
    }

    fn cuMemHostAlloc(pointer: Out<*mut c_void>, size: usize, flags: c_uint) {
        if flags & !HOST_ALLOC_FLAGS != 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        pointer.set(pinned(size, flags)?)
    }

    fn cuMemFreeHost(pointer: *mut c_void) {
        let session = session()?;
        if pointer.is_null() {
            return Ok(());
        }
        capture::forbid_unsafe(session)?;
        host::free(&session.memory, Address::of(pointer), HostKind::Pinned)
    }

    fn cuMemHostRegister_v2(pointer: *mut c_void, size: usize, flags: c_uint) {
        fault::check_current()?;
        let session = session()?;
        let context = current()?;
        capture::forbid_unsafe(session)?;
        if flags & !HOST_REGISTER_FLAGS != 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        if flags & sys::CU_MEMHOSTREGISTER_IOMEMORY != 0 {
            return Err(sys::CUDA_ERROR_NOT_SUPPORTED);
        }
        let address = Address::from_raw(pointer.expose_provenance() as u64);
        // SAFETY: the program promises so much memory of its own, which it keeps for the time of the call.
        unsafe { host::register(&session.memory, &context, address, size as u64, flags) }
    }

    fn cuMemHostUnregister(pointer: *mut c_void) {
        host::unregister(&session()?.memory, Address::of(pointer))
    }

    fn cuMemAllocManaged(address: Out<sys::CUdeviceptr>, size: usize, flags: c_uint) {
        if !matches!(flags, sys::CU_MEM_ATTACH_GLOBAL | sys::CU_MEM_ATTACH_HOST) {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let session = session()?;
        capture::forbid_unsafe(session)?;
        address.set(host::alloc(&session.memory, &*current()?, size as u64, HostKind::Managed, flags)?.raw())
    }

    fn cuMemHostGetDevicePointer_v2(address: Out<sys::CUdeviceptr>, pointer: *mut c_void, flags: c_uint) {
        if flags != 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        find(pointer)?;
        address.set(pointer.addr() as u64)
    }

    fn cuMemHostGetFlags(flags: Out<c_uint>, pointer: *mut c_void) {
        flags.set(find(pointer)?.flags | sys::CU_MEMHOSTALLOC_DEVICEMAP)
    }

    fn cuMemPrefetchAsync(address: sys::CUdeviceptr, size: usize, device: sys::CUdevice, stream: sys::CUstream) {
        check_hint(address, size)?;
        check_place(device)?;
        session()?.streams.resolve(stream).map(|_| ())
    }

    fn cuMemPrefetchAsync_v2(
        address: sys::CUdeviceptr,
        size: usize,
        location: sys::CUmemLocation,
        flags: c_uint,
        stream: sys::CUstream,
    ) {
        if flags != 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        check_hint(address, size)?;
        check_location(&location)?;
        session()?.streams.resolve(stream).map(|_| ())
    }

    fn cuMemAdvise(address: sys::CUdeviceptr, size: usize, advice: sys::CUmem_advise, device: sys::CUdevice) {
        check_hint(address, size)?;
        if names_place(advice)? { check_place(device) } else { Ok(()) }
    }

    fn cuMemAdvise_v2(
        address: sys::CUdeviceptr,
        size: usize,
        advice: sys::CUmem_advise,
        location: sys::CUmemLocation,
    ) {
        check_hint(address, size)?;
        if names_place(advice)? { check_location(&location) } else { Ok(()) }
    }

    fn cuStreamAttachMemAsync(stream: sys::CUstream, address: sys::CUdeviceptr, _length: usize, flags: c_uint) {
        check_hint(address, 1)?;
        let known = [sys::CU_MEM_ATTACH_GLOBAL, sys::CU_MEM_ATTACH_HOST, sys::CU_MEM_ATTACH_SINGLE];
        if !known.contains(&flags) {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        session()?.streams.resolve(stream).map(|_| ())
    }
}

fn pinned(size: usize, flags: c_uint) -> Result<*mut c_void> {
    let session = session()?;
    capture::forbid_unsafe(session)?;
    let address = host::alloc(
        &session.memory,
        &*current()?,
        size as u64,
        HostKind::Pinned,
        flags,
    )?;
    Ok(std::ptr::with_exposed_provenance_mut(address.raw() as usize))
}

fn find(pointer: *mut c_void) -> Result<std::sync::Arc<Block>> {
    fault::check_current()?;
    let block = session()?.memory.find(Address::of(pointer));
    block
        .filter(|block| block.is_host())
        .ok_or(sys::CUDA_ERROR_INVALID_VALUE)
}

/// Whether an advice names a location: the others undo an advice, or hold for all devices.
fn names_place(advice: sys::CUmem_advise) -> Result<bool> {
    match advice {
        sys::CU_MEM_ADVISE_SET_PREFERRED_LOCATION
        | sys::CU_MEM_ADVISE_SET_ACCESSED_BY
        | sys::CU_MEM_ADVISE_UNSET_ACCESSED_BY => Ok(true),
        sys::CU_MEM_ADVISE_SET_READ_MOSTLY
        | sys::CU_MEM_ADVISE_UNSET_READ_MOSTLY
        | sys::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION => Ok(false),
        _ => Err(sys::CUDA_ERROR_INVALID_VALUE),
    }
}

fn check_place(device: sys::CUdevice) -> Result {
    match device {
        CPU => Ok(()),
        device => session()?.devices.get(device).map(|_| ()),
    }
}

fn check_location(location: &sys::CUmemLocation) -> Result {
    match location.type_ {
        sys::CU_MEM_LOCATION_TYPE_DEVICE => session()?.devices.get(location.id).map(|_| ()),
        sys::CU_MEM_LOCATION_TYPE_HOST
        | sys::CU_MEM_LOCATION_TYPE_HOST_NUMA
        | sys::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Ok(()),
        _ => Err(sys::CUDA_ERROR_INVALID_VALUE),
    }
}

/// Checks that a hint's range is managed memory. Hints have no effect: managed memory is memory shared with the worker.
pub(super) fn check_hint(address: sys::CUdeviceptr, size: usize) -> Result {
    fault::check_current()?;
    let managed = |block: &Block| block.kind == Kind::Host(HostKind::Managed);
    let fine = session()?
        .memory
        .holds(Address::from_raw(address), size as u64, managed);
    if fine {
        Ok(())
    } else {
        Err(sys::CUDA_ERROR_INVALID_VALUE)
    }
}
