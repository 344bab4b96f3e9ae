//! Exported functions for fills (`cuMemset*`).

use core::ffi::{c_uchar, c_uint, c_ushort};
use fermata_abi::op::Address;

use fermata_abi::sys::driver as sys;
use fermata_graph::{MemsetNode, NodeKind};

use crate::frame::entry::driver_api;
use crate::object::context::with_current;
use crate::object::copy::{Fill, fill};
use crate::object::session::session;
use crate::object::stream::legacy;
use crate::result::Result;
use crate::work::capture;

driver_api! {
    fn cuMemsetD8_v2(address: sys::CUdeviceptr, value: c_uchar, count: usize) {
        row(address, 1, value.into(), count, None)
    }

    fn cuMemsetD16_v2(address: sys::CUdeviceptr, value: c_ushort, count: usize) {
        row(address, 2, value.into(), count, None)
    }

    fn cuMemsetD32_v2(address: sys::CUdeviceptr, value: c_uint, count: usize) {
        row(address, 4, value, count, None)
    }

    fn cuMemsetD8Async(address: sys::CUdeviceptr, value: c_uchar, count: usize, stream: sys::CUstream) {
        row(address, 1, value.into(), count, Some(stream))
    }

    fn cuMemsetD16Async(address: sys::CUdeviceptr, value: c_ushort, count: usize, stream: sys::CUstream) {
        row(address, 2, value.into(), count, Some(stream))
    }

    fn cuMemsetD32Async(address: sys::CUdeviceptr, value: c_uint, count: usize, stream: sys::CUstream) {
        row(address, 4, value, count, Some(stream))
    }

    fn cuMemsetD2D8_v2(address: sys::CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize) {
        rows(address, pitch, 1, value.into(), width, height, None)
    }

    fn cuMemsetD2D16_v2(address: sys::CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize) {
        rows(address, pitch, 2, value.into(), width, height, None)
    }

    fn cuMemsetD2D32_v2(address: sys::CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize) {
        rows(address, pitch, 4, value, width, height, None)
    }

    fn cuMemsetD2D8Async(
        address: sys::CUdeviceptr,
        pitch: usize,
        value: c_uchar,
        width: usize,
        height: usize,
        stream: sys::CUstream,
    ) {
        rows(address, pitch, 1, value.into(), width, height, Some(stream))
    }

    fn cuMemsetD2D16Async(
        address: sys::CUdeviceptr,
        pitch: usize,
        value: c_ushort,
        width: usize,
        height: usize,
        stream: sys::CUstream,
    ) {
        rows(address, pitch, 2, value.into(), width, height, Some(stream))
    }

    fn cuMemsetD2D32Async(
        address: sys::CUdeviceptr,
        pitch: usize,
        value: c_uint,
        width: usize,
        height: usize,
        stream: sys::CUstream,
    ) {
        rows(address, pitch, 4, value, width, height, Some(stream))
    }
}

fn row(
    address: u64,
    element: u8,
    value: u32,
    count: usize,
    stream: Option<sys::CUstream>,
) -> Result {
    rows(address, 0, element, value, count, 1, stream)
}

/// Without a stream, the fill goes to the legacy one and is waited for where CUDA does so.
fn rows(
    address: u64,
    pitch: usize,
    element: u8,
    value: u32,
    width: usize,
    height: usize,
    stream: Option<sys::CUstream>,
) -> Result {
    let session = session()?;
    let (pitch, width, height) = (pitch as u64, width as u64, height as u64);
    let new = Fill {
        address: Address::from_raw(address),
        pitch,
        element,
        value,
        width,
        height,
    };
    let Some(stream) = stream else {
        capture::forbid_unsafe(session)?;
        let stream = with_current(|context| Ok(legacy(context)))?;
        return fill(&session.memory, new, stream, true);
    };
    let node = || {
        let (dst, element_size) = (address, u32::from(element));
        Ok(NodeKind::Memset(MemsetNode {
            dst,
            pitch,
            value,
            element_size,
            width,
            height,
        }))
    };
    if width == 0 || height == 0 || capture::add(session, stream, node)? {
        return Ok(());
    }
    fill(
        &session.memory,
        new,
        session.streams.resolve(stream)?,
        false,
    )
}
