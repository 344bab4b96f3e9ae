//! Device memory: allocation, pitched allocation, freeing, and what is left.
use core::ffi::c_void;

use fermata_abi::sys::runtime::{cudaExtent, cudaPitchedPtr};

use crate::context;
use crate::error::{Error, Result, export, put};

/// Device addresses and pointers are the same numbers.
pub fn address(pointer: *const c_void) -> u64 {
    pointer.expose_provenance() as u64
}

/// The pointer that stands for a device address.
pub fn pointer(address: u64) -> *mut c_void {
    core::ptr::with_exposed_provenance_mut(address as usize)
}

/// Pitch that rows get: accesses of up to this many bytes stay aligned.
const ELEMENT_BYTES: u32 = 16;

/// A pitched allocation of `height` rows; null and the driver's pitch of 0 for none.
fn pitched(width: usize, height: usize) -> Result<(u64, usize)> {
    let calls = context::ready()?;
    if width == 0 || height == 0 {
        return Ok((0, 0));
    }
    let (mut start, mut pitch) = (0, 0);
    // SAFETY: places for the two results.
    unsafe { calls.cuMemAllocPitch_v2(&mut start, &mut pitch, width, height, ELEMENT_BYTES) }?;
    Ok((start, pitch))
}

export! {
    /// Allocates device memory; nothing for 0 bytes.
    fn cudaMalloc(place: *mut *mut c_void, size: usize) {
        if place.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let calls = context::ready()?;
        let mut start = 0;
        if size > 0 {
            calls.cuMemAlloc_v2(&mut start, size)?;
        }
        put(place, pointer(start))
    }

    /// Frees device memory. Null is nothing, except that a dead context is told.
    fn cudaFree(start: *mut c_void) {
        let calls = context::ready()?;
        if start.is_null() {
            let (mut free, mut total) = (0, 0);
            return calls.cuMemGetInfo_v2(&mut free, &mut total);
        }
        calls.cuMemFree_v2(address(start))
    }

    /// Allocates rows that start aligned.
    fn cudaMallocPitch(place: *mut *mut c_void, pitch: *mut usize, width: usize, height: usize) {
        if place.is_null() || pitch.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let (start, bytes) = pitched(width, height)?;
        put(pitch, bytes)?;
        put(place, pointer(start))
    }

    /// Allocates rows in layers that start aligned.
    fn cudaMalloc3D(place: *mut cudaPitchedPtr, extent: cudaExtent) {
        if place.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let rows = extent.height.checked_mul(extent.depth).ok_or(Error::INVALID_VALUE)?;
        let (start, pitch) = pitched(extent.width, rows)?;
        let xsize = extent.width;
        put(place, cudaPitchedPtr { ptr: pointer(start), pitch, xsize, ysize: extent.height })
    }

    /// Free and total memory of the device, in bytes.
    fn cudaMemGetInfo(free: *mut usize, total: *mut usize) {
        if free.is_null() || total.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuMemGetInfo_v2(free, total)
    }
}
