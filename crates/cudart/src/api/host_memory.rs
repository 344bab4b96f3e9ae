//! Host memory the device can reach: pinned, mapped, registered.
use core::ffi::{c_uint, c_void};

use crate::api::memory::pointer;
use crate::context;
use crate::error::{Error, Result, export, put};

/// # Safety
/// `place` is null or writable.
unsafe fn allocate(place: *mut *mut c_void, size: usize, flags: c_uint) -> Result {
    if place.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let calls = context::ready()?;
    let mut start = core::ptr::null_mut();
    if size > 0 {
        // SAFETY: a place for the result.
        unsafe { calls.cuMemHostAlloc(&mut start, size, flags) }?;
    }
    // SAFETY: not null, and writable by the caller's promise.
    unsafe { put(place, start) }
}

export! {
    /// Allocates pinned host memory.
    fn cudaMallocHost(place: *mut *mut c_void, size: usize) {
        allocate(place, size, 0)
    }

    /// Allocates pinned host memory with flags, which are the driver's.
    fn cudaHostAlloc(place: *mut *mut c_void, size: usize, flags: c_uint) {
        allocate(place, size, flags)
    }

    /// Frees pinned host memory; null is nothing.
    fn cudaFreeHost(start: *mut c_void) {
        let calls = context::ready()?;
        if start.is_null() {
            return Ok(());
        }
        calls.cuMemFreeHost(start)
    }

    /// Pins host memory that the program has.
    fn cudaHostRegister(start: *mut c_void, size: usize, flags: c_uint) {
        if start.is_null() || size == 0 {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuMemHostRegister_v2(start, size, flags)
    }

    /// Ends the pinning.
    fn cudaHostUnregister(start: *mut c_void) {
        context::ready()?.cuMemHostUnregister(start)
    }

    /// The device's address of pinned host memory.
    fn cudaHostGetDevicePointer(place: *mut *mut c_void, host: *mut c_void, flags: c_uint) {
        let calls = context::ready()?;
        let mut device = 0;
        calls.cuMemHostGetDevicePointer_v2(&mut device, host, flags)?;
        put(place, pointer(device))
    }

    /// The flags that pinned host memory was allocated with.
    fn cudaHostGetFlags(flags: *mut c_uint, host: *mut c_void) {
        if flags.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuMemHostGetFlags(flags, host)
    }
}
