//! Managed memory: allocation, advice, prefetching, and what the driver knows of ranges.
use core::ffi::{c_uint, c_ulonglong, c_void};

use fermata_abi::sys::driver::CUmemLocation;
use fermata_abi::sys::runtime::{
    cudaMemLocation, cudaMemRangeAttribute, cudaMemoryAdvise, cudaStream_t,
};

use crate::api::memory::{address, pointer};
use crate::context;
use crate::error::{Error, export, put};

/// The driver's form of a place.
pub fn location(from: cudaMemLocation) -> CUmemLocation {
    CUmemLocation {
        type_: from.type_,
        id: from.id,
    }
}

export! {
    /// Allocates memory that host and device share.
    fn cudaMallocManaged(place: *mut *mut c_void, size: usize, flags: c_uint) {
        if place.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let calls = context::ready()?;
        let mut start = 0;
        if size > 0 {
            put(place, core::ptr::null_mut())?;
            calls.cuMemAllocManaged(&mut start, size, flags)?;
        }
        put(place, pointer(start))
    }

    /// Tells how managed memory will be used.
    fn cudaMemAdvise(
        start: *const c_void,
        count: usize,
        advice: cudaMemoryAdvise,
        place: cudaMemLocation,
    ) {
        let calls = context::ready()?;
        calls.cuMemAdvise_v2(address(start), count, advice, location(place))
    }

    /// Moves managed memory in stream order.
    fn cudaMemPrefetchAsync(
        start: *const c_void,
        count: usize,
        place: cudaMemLocation,
        flags: c_uint,
        stream: cudaStream_t,
    ) {
        let calls = context::ready()?;
        calls.cuMemPrefetchAsync_v2(address(start), count, location(place), flags, stream.cast())
    }

    /// Moves many ranges of managed memory in stream order.
    fn cudaMemPrefetchBatchAsync(
        starts: *mut *mut c_void,
        sizes: *mut usize,
        count: usize,
        places: *mut cudaMemLocation,
        place_indices: *mut usize,
        place_count: usize,
        flags: c_ulonglong,
        stream: cudaStream_t,
    ) {
        context::ready()?.cuMemPrefetchBatchAsync(
            starts.cast(), sizes, count, places.cast(), place_indices, place_count, flags, stream.cast(),
        )
    }

    /// What the driver knows of a range.
    fn cudaMemRangeGetAttribute(
        to: *mut c_void,
        size: usize,
        attribute: cudaMemRangeAttribute,
        start: *const c_void,
        count: usize,
    ) {
        context::ready()?.cuMemRangeGetAttribute(to, size, attribute, address(start), count)
    }

    /// Several things the driver knows of a range.
    fn cudaMemRangeGetAttributes(
        to: *mut *mut c_void,
        sizes: *mut usize,
        attributes: *mut cudaMemRangeAttribute,
        attribute_count: usize,
        start: *const c_void,
        count: usize,
    ) {
        let start = address(start);
        context::ready()?.cuMemRangeGetAttributes(to, sizes, attributes, attribute_count, start, count)
    }
}
