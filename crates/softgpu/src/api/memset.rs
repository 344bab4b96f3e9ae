//! Exported functions for fills (`cuMemset*`).

use std::ffi::{c_uchar, c_uint, c_ushort};

use fermata_abi::sys::driver as cu;
use fermata_graph::{MemsetNode, NodeKind};

use crate::capture;
use crate::error::Result;
use crate::stream::Stream;

/// A memset in a stream.
fn set(node: MemsetNode, stream: cu::CUstream) -> Result {
    let stream = Stream::resolve(stream)?;
    capture::submit(&stream, NodeKind::Memset(node))
}

/// A memset on the legacy default stream. Device memory is filled later, like in a stream; host memory
/// and managed memory when this returns.
fn set_sync(node: MemsetNode) -> Result {
    let stream = Stream::resolve(std::ptr::null_mut())?;
    capture::forbid_on(&stream)?;
    set(node, std::ptr::null_mut())?;
    let range = super::init::driver()?.memory.find(node.dst);
    if range.is_some_and(|range| range.visible_to_host()) {
        stream.end().wait();
        return stream.context.check();
    }
    Ok(())
}

fn row(dst: u64, value: u32, element_size: u32, count: usize) -> MemsetNode {
    MemsetNode {
        dst,
        pitch: 0,
        value,
        element_size,
        width: count as u64,
        height: 1,
    }
}

fn rows(dst: u64, pitch: usize, value: u32, element_size: u32, size: (usize, usize)) -> MemsetNode {
    let (width, height) = (size.0 as u64, size.1 as u64);
    MemsetNode {
        dst,
        pitch: pitch as u64,
        value,
        element_size,
        width,
        height,
    }
}

api! {
    fn cuMemsetD8_v2(dst: cu::CUdeviceptr, value: c_uchar, count: usize) {
        set_sync(row(dst, u32::from(value), 1, count))
    }

    fn cuMemsetD8Async(dst: cu::CUdeviceptr, value: c_uchar, count: usize, stream: cu::CUstream) {
        set(row(dst, u32::from(value), 1, count), stream)
    }

    fn cuMemsetD2D8_v2(dst: cu::CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize) {
        set_sync(rows(dst, pitch, u32::from(value), 1, (width, height)))
    }

    fn cuMemsetD2D8Async(
        dst: cu::CUdeviceptr,
        pitch: usize,
        value: c_uchar,
        width: usize,
        height: usize,
        stream: cu::CUstream,
    ) {
        set(rows(dst, pitch, u32::from(value), 1, (width, height)), stream)
    }

    fn cuMemsetD16_v2(dst: cu::CUdeviceptr, value: c_ushort, count: usize) {
        set_sync(row(dst, u32::from(value), 2, count))
    }

    fn cuMemsetD16Async(dst: cu::CUdeviceptr, value: c_ushort, count: usize, stream: cu::CUstream) {
        set(row(dst, u32::from(value), 2, count), stream)
    }

    fn cuMemsetD2D16_v2(dst: cu::CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize) {
        set_sync(rows(dst, pitch, u32::from(value), 2, (width, height)))
    }

    fn cuMemsetD2D16Async(
        dst: cu::CUdeviceptr,
        pitch: usize,
        value: c_ushort,
        width: usize,
        height: usize,
        stream: cu::CUstream,
    ) {
        set(rows(dst, pitch, u32::from(value), 2, (width, height)), stream)
    }

    fn cuMemsetD32_v2(dst: cu::CUdeviceptr, value: c_uint, count: usize) {
        set_sync(row(dst, value, 4, count))
    }

    fn cuMemsetD32Async(dst: cu::CUdeviceptr, value: c_uint, count: usize, stream: cu::CUstream) {
        set(row(dst, value, 4, count), stream)
    }

    fn cuMemsetD2D32_v2(dst: cu::CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize) {
        set_sync(rows(dst, pitch, value, 4, (width, height)))
    }

    fn cuMemsetD2D32Async(
        dst: cu::CUdeviceptr,
        pitch: usize,
        value: c_uint,
        width: usize,
        height: usize,
        stream: cu::CUstream,
    ) {
        set(rows(dst, pitch, value, 4, (width, height)), stream)
    }
}
