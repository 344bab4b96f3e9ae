//! Exported functions for device memory and host memory.

use std::ffi::{c_uint, c_void};

use fermata_abi::sys::driver as cu;

use super::args::Out;
use super::init::driver;
use super::to_pointer;
use crate::attributes::PITCH;
use crate::capture;
use crate::context;
use crate::error::{CuError, INVALID_VALUE, OUT_OF_MEMORY, Result};
use crate::hold::HeldWork;
use crate::memory::{Kind, Range};
use crate::opened;

fn allocate(bytes: u64) -> Result<u64> {
    let context = context::current()?;
    capture::forbid_unsafe()?;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    context.device.count_allocation()?;
    driver()?
        .memory
        .allocate(&context.device, context.handle, bytes, Kind::Device)
}

fn allocate_host(out: Out<*mut c_void>, bytes: usize, flags: c_uint) -> Result {
    let context = context::current()?;
    capture::forbid_unsafe()?;
    let known = cu::CU_MEMHOSTALLOC_PORTABLE
        | cu::CU_MEMHOSTALLOC_DEVICEMAP
        | cu::CU_MEMHOSTALLOC_WRITECOMBINED;
    if out.is_null() || flags & !known != 0 {
        return Err(INVALID_VALUE);
    }
    if bytes == 0 {
        return out.set(std::ptr::null_mut());
    }
    let (device, kind) = (context.device.ordinal, Kind::Host { flags });
    let address = driver()?
        .memory
        .allocate_host(device, context.handle, bytes as u64, kind)?;
    out.set(std::ptr::with_exposed_provenance_mut(address as usize))
}

/// Frees what a predicate accepts once all work of its context is done.
fn free(address: u64, may: impl Fn(&Range) -> bool) -> Result<Range> {
    let driver = driver()?;
    capture::forbid_unsafe()?;
    let fits = |range: &Range| range.base == address && !range.retired && may(range);
    let range = driver
        .memory
        .find(address)
        .filter(fits)
        .ok_or(INVALID_VALUE)?;
    // Work that may still use it comes first. A context that is dead has none.
    match driver.contexts().get(range.context) {
        Some(owner) => drop(owner.synchronize()),
        None => drop(context::current().and_then(|context| context.synchronize())),
    }
    driver.memory.free(address, may)
}

api! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let device = &context::current()?.device;
        free.set_if_wanted(device.free() as usize);
        total.set_if_wanted(device.settings.memory as usize);
        Ok(())
    }

    fn cuMemAlloc_v2(out: Out<cu::CUdeviceptr>, bytes: usize) {
        if out.is_null() {
            return Err(INVALID_VALUE);
        }
        out.set(allocate(bytes as u64)?)
    }

    fn cuMemAllocPitch_v2(
        out: Out<cu::CUdeviceptr>,
        pitch: Out<usize>,
        width: usize,
        height: usize,
        element: c_uint,
    ) {
        if out.is_null() || pitch.is_null() || !matches!(element, 4 | 8 | 16) {
            return Err(INVALID_VALUE);
        }
        let row = (width as u64).checked_next_multiple_of(PITCH).ok_or(OUT_OF_MEMORY)?;
        let bytes = row.checked_mul(height as u64).ok_or(OUT_OF_MEMORY)?;
        out.set(allocate(bytes)?)?;
        pitch.set(row as usize)
    }

    /// Waits for the context's work, so that memory in use is not unmapped.
    fn cuMemFree_v2(address: cu::CUdeviceptr) {
        context::current()?;
        if address == 0 {
            return Ok(());
        }
        if driver()?.memory.find(address).is_some_and(|r| r.base == address && matches!(r.kind, Kind::Graph)) {
            return Ok(());
        }
        if opened::is_pooled(address) {
            context::current()?.synchronize()?;
            return opened::close(address, true)?.map_or(Ok(()), |whole| whole.unmap());
        }
        let range = free(address, |range| {
            matches!(range.kind, Kind::Device | Kind::Pool { .. } | Kind::Managed { .. })
        })?;
        if let Kind::Pool { pool } = range.kind
            && let Some(pool) = driver()?.pools().get(pool)
        {
            pool.freed(range.size);
        }
        Ok(())
    }

    fn cuMemGetAddressRange_v2(base: Out<cu::CUdeviceptr>, size: Out<usize>, address: cu::CUdeviceptr) {
        context::current()?;
        let range = driver()?.memory.find(address).ok_or(crate::error::NOT_FOUND)?;
        base.set_if_wanted(range.base);
        size.set_if_wanted(range.size as usize);
        Ok(())
    }

    fn cuMemAllocHost_v2(out: Out<*mut c_void>, bytes: usize) {
        allocate_host(out, bytes, 0)
    }

    fn cuMemHostAlloc(out: Out<*mut c_void>, bytes: usize, flags: c_uint) {
        allocate_host(out, bytes, flags)
    }

    fn cuMemFreeHost(pointer: Out<c_void>) {
        context::current()?;
        let address = pointer.as_ptr().addr() as u64;
        if address == 0 {
            return Ok(());
        }
        free(address, |range| matches!(range.kind, Kind::Host { .. })).map(drop)
    }

    fn cuMemHostGetDevicePointer_v2(out: Out<cu::CUdeviceptr>, pointer: Out<c_void>, flags: c_uint) {
        context::current()?;
        let address = pointer.as_ptr().addr() as u64;
        let range = driver()?.memory.find(address).ok_or(INVALID_VALUE)?;
        let host = matches!(range.kind, Kind::Host { .. } | Kind::Registered { .. } | Kind::Managed { .. });
        if flags != 0 || !host {
            return Err(INVALID_VALUE);
        }
        out.set(address)
    }

    fn cuMemHostGetFlags(flags: Out<c_uint>, pointer: Out<c_void>) {
        context::current()?;
        let range = driver()?.memory.find(pointer.as_ptr().addr() as u64).ok_or(INVALID_VALUE)?;
        match range.kind {
            Kind::Host { flags: set } => flags.set(set | cu::CU_MEMHOSTALLOC_DEVICEMAP),
            Kind::Registered { flags: set } => flags.set(set & 3 | cu::CU_MEMHOSTALLOC_DEVICEMAP),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuMemHostRegister_v2 | fn cuMemHostRegister(pointer: Out<c_void>, bytes: usize, flags: c_uint) {
        let context = context::current()?;
        capture::forbid_unsafe()?;
        let known = cu::CU_MEMHOSTREGISTER_PORTABLE
            | cu::CU_MEMHOSTREGISTER_DEVICEMAP
            | cu::CU_MEMHOSTREGISTER_IOMEMORY
            | cu::CU_MEMHOSTREGISTER_READ_ONLY;
        if flags & !known != 0 {
            return Err(INVALID_VALUE);
        }
        let address = pointer.as_ptr().expose_provenance() as u64;
        let driver = driver()?;
        driver.hold.pass(HeldWork::Registers, bytes as u64);
        driver.memory.register(context.device.ordinal, context.handle, address, bytes as u64, flags)
    }

    fn cuMemHostUnregister(pointer: Out<c_void>) {
        context::current()?;
        let address = pointer.as_ptr().addr() as u64;
        let registered = |range: &Range| matches!(range.kind, Kind::Registered { .. });
        match driver()?.memory.find(address).filter(registered) {
            Some(range) if range.base == address => free(address, registered).map(drop),
            Some(_) => Err(INVALID_VALUE),
            None => Err(CuError(cu::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)),
        }
    }

    fn cuMemAllocManaged(out: Out<cu::CUdeviceptr>, bytes: usize, flags: c_uint) {
        let context = context::current()?;
        capture::forbid_unsafe()?;
        if out.is_null() || !matches!(flags, cu::CU_MEM_ATTACH_GLOBAL | cu::CU_MEM_ATTACH_HOST) {
            return Err(INVALID_VALUE);
        }
        let (device, kind) = (context.device.ordinal, Kind::Managed { attach: flags });
        out.set(driver()?.memory.allocate_host(device, context.handle, bytes as u64, kind)?)
    }
}

/// The context that owns a range, as a handle for the program.
pub fn owner(range: &Range) -> cu::CUcontext {
    to_pointer(range.context)
}
