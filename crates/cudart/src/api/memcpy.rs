//! Copies of lines and rectangles.
use core::ffi::c_void;

use fermata_abi::sys::driver::{
    CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_UNIFIED, CUDA_MEMCPY2D, CUmemorytype,
};
use fermata_abi::sys::runtime::{
    cudaMemcpyDefault, cudaMemcpyDeviceToDevice, cudaMemcpyDeviceToHost, cudaMemcpyHostToDevice,
    cudaMemcpyHostToHost, cudaMemcpyKind, cudaStream_t,
};

use crate::api::memory::address;
use crate::context;
use crate::error::{Error, Result, export};

/// How a copy is issued.
#[derive(Clone, Copy)]
pub enum Order {
    /// On the legacy default stream; the call returns when the copy is done.
    Legacy,
    /// In the order of a stream.
    Stream(cudaStream_t),
}

/// Where the driver shall think that source and destination lie.
///
/// # Errors
/// `cudaErrorInvalidMemcpyDirection`
pub fn sides(kind: cudaMemcpyKind) -> Result<(CUmemorytype, CUmemorytype)> {
    Ok(match kind {
        cudaMemcpyHostToHost => (CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_HOST),
        cudaMemcpyHostToDevice => (CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE),
        cudaMemcpyDeviceToHost => (CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST),
        cudaMemcpyDeviceToDevice => (CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_DEVICE),
        cudaMemcpyDefault => (CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_UNIFIED),
        _ => return Err(Error::INVALID_DIRECTION),
    })
}

/// Copies `count` bytes.
///
/// # Safety
/// Both sides have `count` bytes where `kind` says.
pub unsafe fn copy(
    to: *mut c_void,
    from: *const c_void,
    count: usize,
    kind: cudaMemcpyKind,
    order: Order,
) -> Result {
    sides(kind)?;
    let calls = context::ready()?;
    if count == 0 {
        return Ok(());
    }
    if to.is_null() || from.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let (dst, src) = (address(to), address(from));
    // SAFETY: the caller's promise.
    unsafe {
        match order {
            Order::Legacy => match kind {
                cudaMemcpyHostToDevice => calls.cuMemcpyHtoD_v2(dst, from, count),
                cudaMemcpyDeviceToHost => calls.cuMemcpyDtoH_v2(to, src, count),
                cudaMemcpyDeviceToDevice => calls.cuMemcpyDtoD_v2(dst, src, count),
                _ => calls.cuMemcpy(dst, src, count),
            },
            Order::Stream(stream) => {
                let stream = stream.cast();
                match kind {
                    cudaMemcpyHostToDevice => calls.cuMemcpyHtoDAsync_v2(dst, from, count, stream),
                    cudaMemcpyDeviceToHost => calls.cuMemcpyDtoHAsync_v2(to, src, count, stream),
                    cudaMemcpyDeviceToDevice => calls.cuMemcpyDtoDAsync_v2(dst, src, count, stream),
                    _ => calls.cuMemcpyAsync(dst, src, count, stream),
                }
            }
        }
    }
}

/// Copies `height` rows of `width` bytes.
///
/// # Safety
/// Both sides have such rows where `kind` says.
#[allow(clippy::too_many_arguments)]
pub unsafe fn copy_rows(
    to: *mut c_void,
    to_pitch: usize,
    from: *const c_void,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: cudaMemcpyKind,
    order: Order,
) -> Result {
    let (from_side, to_side) = sides(kind)?;
    if width > to_pitch || width > from_pitch {
        return Err(Error(fermata_abi::sys::runtime::cudaErrorInvalidPitchValue));
    }
    let mut copy = CUDA_MEMCPY2D {
        srcMemoryType: from_side,
        srcPitch: from_pitch,
        dstMemoryType: to_side,
        dstPitch: to_pitch,
        WidthInBytes: width,
        Height: height,
        ..Default::default()
    };
    match from_side {
        CU_MEMORYTYPE_HOST => copy.srcHost = from,
        _ => copy.srcDevice = address(from),
    }
    match to_side {
        CU_MEMORYTYPE_HOST => copy.dstHost = to,
        _ => copy.dstDevice = address(to),
    }
    // SAFETY: the caller's promise.
    unsafe { submit(&copy, order) }
}

/// Hands a copy of rows to the driver.
///
/// # Safety
/// What `copy` describes exists.
pub unsafe fn submit(copy: &CUDA_MEMCPY2D, order: Order) -> Result {
    let calls = context::ready()?;
    if copy.WidthInBytes == 0 || copy.Height == 0 {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe {
        match order {
            Order::Legacy => calls.cuMemcpy2DUnaligned_v2(copy),
            Order::Stream(stream) => calls.cuMemcpy2DAsync_v2(copy, stream.cast()),
        }
    }
}

export! {
    /// Copies `count` bytes.
    fn cudaMemcpy(to: *mut c_void, from: *const c_void, count: usize, kind: cudaMemcpyKind) {
        copy(to, from, count, kind, Order::Legacy)
    }

    /// Copies `count` bytes in stream order.
    fn cudaMemcpyAsync(
        to: *mut c_void,
        from: *const c_void,
        count: usize,
        kind: cudaMemcpyKind,
        stream: cudaStream_t,
    ) {
        copy(to, from, count, kind, Order::Stream(stream))
    }

    /// Copies a rectangle.
    fn cudaMemcpy2D(
        to: *mut c_void,
        to_pitch: usize,
        from: *const c_void,
        from_pitch: usize,
        width: usize,
        height: usize,
        kind: cudaMemcpyKind,
    ) {
        copy_rows(to, to_pitch, from, from_pitch, width, height, kind, Order::Legacy)
    }

    /// Copies a rectangle in stream order.
    fn cudaMemcpy2DAsync(
        to: *mut c_void,
        to_pitch: usize,
        from: *const c_void,
        from_pitch: usize,
        width: usize,
        height: usize,
        kind: cudaMemcpyKind,
        stream: cudaStream_t,
    ) {
        copy_rows(to, to_pitch, from, from_pitch, width, height, kind, Order::Stream(stream))
    }
}
