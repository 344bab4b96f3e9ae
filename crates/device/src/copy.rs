//! Copies and fills.

use std::ffi::c_void;

use fermata_abi::sys::driver as cu;

use crate::driver::Result;
use crate::{ArrayHandle, Driver, StreamHandle};

/// What one side of a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// Device, pinned or managed memory; the address tells.
    Address(u64),
    /// An array.
    Array(ArrayHandle),
}

/// One side of a copy with more than one dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopySide {
    /// What it is.
    pub endpoint: Endpoint,
    /// First byte within a row.
    pub x: u64,
    /// First row.
    pub y: u64,
    /// First slice.
    pub z: u64,
    /// Bytes from row to row; ignored for arrays.
    pub pitch: u64,
    /// Rows from slice to slice; ignored for arrays.
    pub rows: u64,
}

/// A copy of `width` bytes x `height` rows x `depth` slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyBox {
    /// Destination.
    pub to: CopySide,
    /// Source.
    pub from: CopySide,
    /// Bytes in a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
    /// Slices.
    pub depth: u64,
}

impl CopyBox {
    pub(crate) fn descriptor(&self) -> cu::CUDA_MEMCPY3D {
        let mut copy = cu::CUDA_MEMCPY3D {
            srcXInBytes: self.from.x as usize,
            srcY: self.from.y as usize,
            srcZ: self.from.z as usize,
            srcPitch: self.from.pitch as usize,
            srcHeight: self.from.rows as usize,
            dstXInBytes: self.to.x as usize,
            dstY: self.to.y as usize,
            dstZ: self.to.z as usize,
            dstPitch: self.to.pitch as usize,
            dstHeight: self.to.rows as usize,
            WidthInBytes: self.width as usize,
            Height: self.height as usize,
            Depth: self.depth as usize,
            ..Default::default()
        };
        match self.from.endpoint {
            Endpoint::Address(address) => {
                copy.srcMemoryType = cu::CU_MEMORYTYPE_UNIFIED;
                copy.srcDevice = address;
            }
            Endpoint::Array(array) => {
                copy.srcMemoryType = cu::CU_MEMORYTYPE_ARRAY;
                copy.srcArray = array.raw();
            }
        }
        match self.to.endpoint {
            Endpoint::Address(address) => {
                copy.dstMemoryType = cu::CU_MEMORYTYPE_UNIFIED;
                copy.dstDevice = address;
            }
            Endpoint::Array(array) => {
                copy.dstMemoryType = cu::CU_MEMORYTYPE_ARRAY;
                copy.dstArray = array.raw();
            }
        }
        copy
    }
}

impl Driver {
    /// Copies between addresses of device, pinned or managed memory.
    ///
    /// # Errors
    /// What the driver says.
    pub fn copy(&self, to: u64, from: u64, len: u64, stream: StreamHandle) -> Result<()> {
        self.f.cuMemcpyAsync(to, from, len as usize, stream.raw())
    }

    /// Copies from ordinary memory; the driver has read it when this returns.
    ///
    /// # Errors
    /// What the driver says.
    pub fn copy_from_slice(&self, to: u64, from: &[u8], stream: StreamHandle) -> Result<()> {
        // SAFETY: the slice is valid for its length; a copy from pageable memory is staged before return.
        unsafe {
            self.f.cuMemcpyHtoDAsync_v2(
                to,
                from.as_ptr().cast::<c_void>(),
                from.len(),
                stream.raw(),
            )
        }
    }

    /// A copy of several rows or slices, or with an array at either end.
    ///
    /// # Errors
    /// What the driver says.
    pub fn copy_box(&self, copy: &CopyBox, stream: StreamHandle) -> Result<()> {
        let descriptor = copy.descriptor();
        // SAFETY: the descriptor is a live local and names no pageable host memory.
        unsafe { self.f.cuMemcpy3DAsync_v2(&descriptor, stream.raw()) }
    }

    /// Fills `height` rows of `width` elements of `element` bytes (1, 2 or 4) with `value`.
    ///
    /// # Errors
    /// What the driver says.
    #[allow(clippy::too_many_arguments)]
    pub fn fill(
        &self,
        address: u64,
        pitch: u64,
        element: u8,
        value: u32,
        width: u64,
        height: u64,
        stream: StreamHandle,
    ) -> Result<()> {
        let (pitch, width, height, s) = (
            pitch as usize,
            width as usize,
            height as usize,
            stream.raw(),
        );
        let (byte, half) = (value as u8, value as u16);
        match (element, height) {
            (1, 1) => self.f.cuMemsetD8Async(address, byte, width, s),
            (2, 1) => self.f.cuMemsetD16Async(address, half, width, s),
            (_, 1) => self.f.cuMemsetD32Async(address, value, width, s),
            (1, _) => self
                .f
                .cuMemsetD2D8Async(address, pitch, byte, width, height, s),
            (2, _) => self
                .f
                .cuMemsetD2D16Async(address, pitch, half, width, height, s),
            _ => self
                .f
                .cuMemsetD2D32Async(address, pitch, value, width, height, s),
        }
    }
}
