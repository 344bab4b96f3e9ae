//! Stream-ordered allocation and memory pools. Their structures are laid out alike in both APIs.
use core::ffi::{c_int, c_uint, c_void};

use fermata_abi::sys::driver as drv;
use fermata_abi::sys::runtime::{
    cudaMemAccessDesc, cudaMemAccessFlags, cudaMemAllocationHandleType, cudaMemAllocationType,
    cudaMemLocation, cudaMemPool_t, cudaMemPoolAttr, cudaMemPoolProps, cudaMemPoolPtrExportData,
    cudaStream_t,
};

use crate::api::memory::{address, pointer};
use crate::error::{Error, export, put};
use crate::{context, driver};

export! {
    /// Allocates from the device's current pool in stream order.
    fn cudaMallocAsync(place: *mut *mut c_void, size: usize, stream: cudaStream_t) {
        if place.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let calls = context::ready()?;
        let mut start = 0;
        if size > 0 {
            calls.cuMemAllocAsync(&mut start, size, stream.cast())?;
        }
        put(place, pointer(start))
    }

    /// Allocates from a pool in stream order.
    fn cudaMallocFromPoolAsync(
        place: *mut *mut c_void,
        size: usize,
        pool: cudaMemPool_t,
        stream: cudaStream_t,
    ) {
        if place.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let calls = context::ready()?;
        let mut start = 0;
        if size > 0 {
            calls.cuMemAllocFromPoolAsync(&mut start, size, pool.cast(), stream.cast())?;
        }
        put(place, pointer(start))
    }

    /// Frees in stream order; null is nothing.
    fn cudaFreeAsync(start: *mut c_void, stream: cudaStream_t) {
        let calls = context::ready()?;
        if start.is_null() {
            return Ok(());
        }
        calls.cuMemFreeAsync(address(start), stream.cast())
    }

    /// The pool a device starts with.
    fn cudaDeviceGetDefaultMemPool(pool: *mut cudaMemPool_t, device: c_int) {
        if pool.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let calls = driver::get()?;
        context::primary(calls, device)?;
        let device = context::device(calls, device)?;
        calls.cuDeviceGetDefaultMemPool(pool.cast(), device)
    }

    /// The pool a device uses now.
    fn cudaDeviceGetMemPool(pool: *mut cudaMemPool_t, device: c_int) {
        if pool.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let calls = driver::get()?;
        context::primary(calls, device)?;
        let device = context::device(calls, device)?;
        calls.cuDeviceGetMemPool(pool.cast(), device)
    }

    /// Sets the pool a device uses.
    fn cudaDeviceSetMemPool(device: c_int, pool: cudaMemPool_t) {
        let calls = driver::get()?;
        context::primary(calls, device)?;
        let device = context::device(calls, device)?;
        calls.cuDeviceSetMemPool(device, pool.cast())
    }

    /// Creates a pool.
    fn cudaMemPoolCreate(pool: *mut cudaMemPool_t, properties: *const cudaMemPoolProps) {
        if pool.is_null() || properties.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuMemPoolCreate(pool.cast(), properties.cast())
    }

    /// Destroys a pool.
    fn cudaMemPoolDestroy(pool: cudaMemPool_t) {
        context::ready()?.cuMemPoolDestroy(pool.cast())
    }

    /// Gives unused memory of a pool back.
    fn cudaMemPoolTrimTo(pool: cudaMemPool_t, keep: usize) {
        context::ready()?.cuMemPoolTrimTo(pool.cast(), keep)
    }

    /// Sets an attribute of a pool.
    fn cudaMemPoolSetAttribute(pool: cudaMemPool_t, attribute: cudaMemPoolAttr, value: *mut c_void) {
        if value.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuMemPoolSetAttribute(pool.cast(), attribute, value)
    }

    /// Reads an attribute of a pool.
    fn cudaMemPoolGetAttribute(pool: cudaMemPool_t, attribute: cudaMemPoolAttr, value: *mut c_void) {
        if value.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuMemPoolGetAttribute(pool.cast(), attribute, value)
    }

    /// Sets which devices may access a pool.
    fn cudaMemPoolSetAccess(pool: cudaMemPool_t, list: *const cudaMemAccessDesc, count: usize) {
        context::ready()?.cuMemPoolSetAccess(pool.cast(), list.cast(), count)
    }

    /// How a place may access a pool.
    fn cudaMemPoolGetAccess(
        flags: *mut cudaMemAccessFlags,
        pool: cudaMemPool_t,
        place: *mut cudaMemLocation,
    ) {
        if flags.is_null() || place.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuMemPoolGetAccess(flags, pool.cast(), place.cast())
    }

    /// The pool a place starts with.
    fn cudaMemGetDefaultMemPool(
        pool: *mut cudaMemPool_t,
        place: *mut cudaMemLocation,
        kind: cudaMemAllocationType,
    ) {
        context::ready()?.cuMemGetDefaultMemPool(pool.cast(), place.cast(), kind)
    }

    /// The pool a place uses now.
    fn cudaMemGetMemPool(
        pool: *mut cudaMemPool_t,
        place: *mut cudaMemLocation,
        kind: cudaMemAllocationType,
    ) {
        context::ready()?.cuMemGetMemPool(pool.cast(), place.cast(), kind)
    }

    /// Sets the pool a place uses.
    fn cudaMemSetMemPool(
        place: *mut cudaMemLocation,
        kind: cudaMemAllocationType,
        pool: cudaMemPool_t,
    ) {
        context::ready()?.cuMemSetMemPool(place.cast(), kind, pool.cast())
    }

    /// Exports a pool to another process.
    fn cudaMemPoolExportToShareableHandle(
        handle: *mut c_void,
        pool: cudaMemPool_t,
        kind: cudaMemAllocationHandleType,
        flags: c_uint,
    ) {
        let flags = flags.into();
        context::ready()?.cuMemPoolExportToShareableHandle(handle, pool.cast(), kind, flags)
    }

    /// Opens a pool of another process.
    fn cudaMemPoolImportFromShareableHandle(
        pool: *mut cudaMemPool_t,
        handle: *mut c_void,
        kind: cudaMemAllocationHandleType,
        flags: c_uint,
    ) {
        if pool.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let flags = flags.into();
        context::ready()?.cuMemPoolImportFromShareableHandle(pool.cast(), handle, kind, flags)
    }

    /// Describes an allocation of an exported pool to another process.
    fn cudaMemPoolExportPointer(data: *mut cudaMemPoolPtrExportData, start: *mut c_void) {
        if data.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuMemPoolExportPointer(data.cast(), address(start))
    }

    /// An allocation of another process in an imported pool.
    fn cudaMemPoolImportPointer(
        place: *mut *mut c_void,
        pool: cudaMemPool_t,
        data: *mut cudaMemPoolPtrExportData,
    ) {
        if data.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let mut start = 0;
        context::ready()?.cuMemPoolImportPointer(&mut start, pool.cast(), data.cast())?;
        put(place, pointer(start))
    }
}

const _: () = assert!(size_of::<drv::CUmemPoolProps>() == size_of::<cudaMemPoolProps>());
const _: () = assert!(size_of::<drv::CUmemAccessDesc>() == size_of::<cudaMemAccessDesc>());
const _: () = assert!(size_of::<drv::CUmemLocation>() == size_of::<cudaMemLocation>());
