//! Many copies or ranges in one call.
use core::ffi::{c_ulonglong, c_void};

use fermata_abi::sys::driver::CUmemcpyAttributes;
use fermata_abi::sys::runtime::{cudaMemLocation, cudaMemcpyAttributes, cudaStream_t};

use crate::api::memory::address;
use crate::context;
use crate::error::{Error, Result, export};

/// # Safety
/// The arrays have `count` copies that exist.
unsafe fn one_by_one(
    to: *const *mut c_void,
    from: *const *const c_void,
    sizes: *const usize,
    count: usize,
    stream: cudaStream_t,
) -> Result {
    let calls = context::ready()?;
    for at in 0..count {
        // SAFETY: the caller's promise.
        unsafe {
            let (to, from) = (address(to.add(at).read()), address(from.add(at).read()));
            calls.cuMemcpyAsync(to, from, sizes.add(at).read(), stream.cast())?;
        }
    }
    Ok(())
}

/// Attributes, the first copy each is for, and how many there are.
pub type Attributes = (*mut cudaMemcpyAttributes, *mut usize, usize);

/// Copies in stream order, one by one where the driver knows no batches.
///
/// # Safety
/// The arrays have `count` copies that exist.
///
/// # Errors
/// What the driver says.
pub unsafe fn copy(
    to: *const *mut c_void,
    from: *const *const c_void,
    sizes: *const usize,
    count: usize,
    (attributes, indices, attribute_count): Attributes,
    stream: cudaStream_t,
) -> Result {
    if to.is_null() || from.is_null() || sizes.is_null() || count == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let calls = context::ready()?;
    // SAFETY: the caller's promise; the driver writes to none of the arrays.
    unsafe {
        let batch = calls.cuMemcpyBatchAsync_v2(
            to.cast_mut().cast(),
            from.cast_mut().cast(),
            sizes.cast_mut(),
            count,
            attributes.cast(),
            indices,
            attribute_count,
            stream.cast(),
        );
        match batch {
            Err(Error::MISSING_DRIVER_FUNCTION | Error::NOT_SUPPORTED) => {
                one_by_one(to, from, sizes, count, stream)
            }
            result => result,
        }
    }
}

export! {
    /// Copies in stream order, in any order among themselves.
    fn cudaMemcpyBatchAsync(
        to: *const *mut c_void,
        from: *const *const c_void,
        sizes: *const usize,
        count: usize,
        attributes: *mut cudaMemcpyAttributes,
        indices: *mut usize,
        attribute_count: usize,
        stream: cudaStream_t,
    ) {
        copy(to, from, sizes, count, (attributes, indices, attribute_count), stream)
    }

    /// Forgets the contents of ranges of managed memory.
    fn cudaMemDiscardBatchAsync(
        starts: *mut *mut c_void,
        sizes: *mut usize,
        count: usize,
        flags: c_ulonglong,
        stream: cudaStream_t,
    ) {
        let calls = context::ready()?;
        calls.cuMemDiscardBatchAsync(starts.cast(), sizes, count, flags, stream.cast())
    }

    /// Forgets the contents of ranges of managed memory and moves them.
    fn cudaMemDiscardAndPrefetchBatchAsync(
        starts: *mut *mut c_void,
        sizes: *mut usize,
        count: usize,
        places: *mut cudaMemLocation,
        place_indices: *mut usize,
        place_count: usize,
        flags: c_ulonglong,
        stream: cudaStream_t,
    ) {
        context::ready()?.cuMemDiscardAndPrefetchBatchAsync(
            starts.cast(), sizes, count, places.cast(), place_indices, place_count, flags, stream.cast(),
        )
    }
}

const _: () = assert!(size_of::<CUmemcpyAttributes>() == size_of::<cudaMemcpyAttributes>());
