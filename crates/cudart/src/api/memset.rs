//! Filling memory with a byte: lines, rectangles, boxes.
use core::ffi::{c_int, c_void};

use fermata_abi::sys::runtime::{cudaExtent, cudaPitchedPtr, cudaStream_t};

use crate::api::memory::address;
use crate::context;
use crate::error::{Error, Result, export};

/// How a fill is issued.
#[derive(Clone, Copy)]
enum Order {
    Legacy,
    Stream(cudaStream_t),
}

/// Fills `rows` rows of `width` bytes that lie `pitch` apart.
///
/// # Safety
/// The rows are device memory of the program.
unsafe fn fill(
    start: u64,
    pitch: usize,
    value: c_int,
    width: usize,
    rows: usize,
    order: Order,
) -> Result {
    let calls = context::ready()?;
    if width == 0 || rows == 0 {
        return Ok(());
    }
    let byte = value as u8;
    // SAFETY: the caller's promise.
    unsafe {
        match (order, rows) {
            (Order::Legacy, 1) => calls.cuMemsetD8_v2(start, byte, width),
            (Order::Legacy, _) => calls.cuMemsetD2D8_v2(start, pitch, byte, width, rows),
            (Order::Stream(stream), 1) => calls.cuMemsetD8Async(start, byte, width, stream.cast()),
            (Order::Stream(stream), _) => {
                calls.cuMemsetD2D8Async(start, pitch, byte, width, rows, stream.cast())
            }
        }
    }
}

/// Fills the box at the start of pitched memory.
///
/// # Safety
/// The box is device memory of the program.
unsafe fn fill_box(to: cudaPitchedPtr, value: c_int, extent: cudaExtent, order: Order) -> Result {
    if extent.width > to.pitch && extent.height * extent.depth > 1 {
        return Err(Error::INVALID_VALUE);
    }
    let start = address(to.ptr);
    if extent.height == to.ysize {
        let rows = extent
            .height
            .checked_mul(extent.depth)
            .ok_or(Error::INVALID_VALUE)?;
        // SAFETY: the caller's promise.
        return unsafe { fill(start, to.pitch, value, extent.width, rows, order) };
    }
    let layer = to.pitch.checked_mul(to.ysize).ok_or(Error::INVALID_VALUE)?;
    for z in 0..extent.depth {
        let start = start + (z * layer) as u64;
        // SAFETY: the caller's promise.
        unsafe { fill(start, to.pitch, value, extent.width, extent.height, order) }?;
    }
    Ok(())
}

export! {
    /// Fills `count` bytes.
    fn cudaMemset(start: *mut c_void, value: c_int, count: usize) {
        fill(address(start), count, value, count, 1, Order::Legacy)
    }

    /// Fills `count` bytes in stream order.
    fn cudaMemsetAsync(start: *mut c_void, value: c_int, count: usize, stream: cudaStream_t) {
        fill(address(start), count, value, count, 1, Order::Stream(stream))
    }

    /// Fills a rectangle.
    fn cudaMemset2D(start: *mut c_void, pitch: usize, value: c_int, width: usize, height: usize) {
        fill(address(start), pitch, value, width, height, Order::Legacy)
    }

    /// Fills a rectangle in stream order.
    fn cudaMemset2DAsync(
        start: *mut c_void,
        pitch: usize,
        value: c_int,
        width: usize,
        height: usize,
        stream: cudaStream_t,
    ) {
        fill(address(start), pitch, value, width, height, Order::Stream(stream))
    }

    /// Fills a box.
    fn cudaMemset3D(to: cudaPitchedPtr, value: c_int, extent: cudaExtent) {
        fill_box(to, value, extent, Order::Legacy)
    }

    /// Fills a box in stream order.
    fn cudaMemset3DAsync(
        to: cudaPitchedPtr,
        value: c_int,
        extent: cudaExtent,
        stream: cudaStream_t,
    ) {
        fill_box(to, value, extent, Order::Stream(stream))
    }
}
