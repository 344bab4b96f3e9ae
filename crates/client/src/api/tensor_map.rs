//! Exported functions for tensor maps: descriptors with which kernels copy tensors, encoded by the worker's driver.

use core::ffi::{c_int, c_void};
use std::collections::HashMap;

use fermata_abi::op::{Address, Op, ReplyBody, TENSOR_MAP, Tensor, TensorBox};
use fermata_abi::sys::driver as sys;
use parking_lot::Mutex;

use crate::args::{In, Out};
use crate::frame::entry::driver_api;
use crate::link;
use crate::object::session::session;
use crate::result::Result;

/// Most dimensions of a tensor.
const MOST_DIMENSIONS: u32 = 5;
/// Alignment of a descriptor, in bytes.
const ALIGNMENT: usize = 64;
/// The most descriptors that are kept; when a program makes more, all are dropped.
const KEPT: usize = 4096;

type Descriptor = [u8; TENSOR_MAP];

/// Descriptors by their arguments: libraries make the same ones before every launch.
static KNOWN: Mutex<Option<HashMap<Vec<u8>, Descriptor>>> = Mutex::new(None);

driver_api! {
    fn cuTensorMapEncodeTiled(
        map: Out<sys::CUtensorMap>,
        data_type: sys::CUtensorMapDataType,
        rank: sys::cuuint32_t,
        address: *mut c_void,
        dims: In<sys::cuuint64_t>,
        strides: In<sys::cuuint64_t>,
        box_dims: In<sys::cuuint32_t>,
        steps: In<sys::cuuint32_t>,
        interleave: sys::CUtensorMapInterleave,
        swizzle: sys::CUtensorMapSwizzle,
        promotion: sys::CUtensorMapL2promotion,
        fill: sys::CUtensorMapFloatOOBfill,
    ) {
        let rank = checked(rank, 1)?;
        let tensor = Tensor {
            data_type,
            address: Address::of(address),
            dims: dims.list(rank)?,
            strides: strides.list(rank - 1)?,
            steps: steps.list(rank)?,
            interleave,
            swizzle,
            promotion,
            fill,
        };
        let of = TensorBox::Tiled { dims: box_dims.list(rank)? };
        give(map, &Op::TensorMap { tensor, of })
    }

    fn cuTensorMapEncodeIm2col(
        map: Out<sys::CUtensorMap>,
        data_type: sys::CUtensorMapDataType,
        rank: sys::cuuint32_t,
        address: *mut c_void,
        dims: In<sys::cuuint64_t>,
        strides: In<sys::cuuint64_t>,
        lower: In<c_int>,
        upper: In<c_int>,
        channels: sys::cuuint32_t,
        pixels: sys::cuuint32_t,
        steps: In<sys::cuuint32_t>,
        interleave: sys::CUtensorMapInterleave,
        swizzle: sys::CUtensorMapSwizzle,
        promotion: sys::CUtensorMapL2promotion,
        fill: sys::CUtensorMapFloatOOBfill,
    ) {
        let rank = checked(rank, 3)?;
        let tensor = Tensor {
            data_type,
            address: Address::of(address),
            dims: dims.list(rank)?,
            strides: strides.list(rank - 1)?,
            steps: steps.list(rank)?,
            interleave,
            swizzle,
            promotion,
            fill,
        };
        let of = TensorBox::Im2col {
            lower: lower.list(rank - 2)?,
            upper: upper.list(rank - 2)?,
            channels,
            pixels,
        };
        give(map, &Op::TensorMap { tensor, of })
    }

    fn cuTensorMapEncodeIm2colWide(
        map: Out<sys::CUtensorMap>,
        data_type: sys::CUtensorMapDataType,
        rank: sys::cuuint32_t,
        address: *mut c_void,
        dims: In<sys::cuuint64_t>,
        strides: In<sys::cuuint64_t>,
        lower: c_int,
        upper: c_int,
        channels: sys::cuuint32_t,
        pixels: sys::cuuint32_t,
        steps: In<sys::cuuint32_t>,
        interleave: sys::CUtensorMapInterleave,
        mode: sys::CUtensorMapIm2ColWideMode,
        swizzle: sys::CUtensorMapSwizzle,
        promotion: sys::CUtensorMapL2promotion,
        fill: sys::CUtensorMapFloatOOBfill,
    ) {
        let rank = checked(rank, 3)?;
        let tensor = Tensor {
            data_type,
            address: Address::of(address),
            dims: dims.list(rank)?,
            strides: strides.list(rank - 1)?,
            steps: steps.list(rank)?,
            interleave,
            swizzle,
            promotion,
            fill,
        };
        let of = TensorBox::Im2colWide { lower, upper, channels, pixels, mode };
        give(map, &Op::TensorMap { tensor, of })
    }

    fn cuTensorMapReplaceAddress(map: Out<sys::CUtensorMap>, address: *mut c_void) {
        let old = map.cast::<Descriptor>().get()?;
        let address = address.addr() as u64;
        give(map, &Op::TensorMapMove { map: &old, address: Address::from_raw(address) })
    }
}

fn checked(rank: u32, least: u32) -> Result<usize> {
    match (least..=MOST_DIMENSIONS).contains(&rank) {
        true => Ok(rank as usize),
        false => Err(sys::CUDA_ERROR_INVALID_VALUE),
    }
}

fn give(map: Out<sys::CUtensorMap>, op: &Op<'_>) -> Result {
    // Less than the type's alignment since CUDA 13.
    if !map.as_ptr().addr().is_multiple_of(ALIGNMENT) {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    let descriptor = encode(op)?;
    map.cast().set(descriptor)
}

fn encode(op: &Op<'_>) -> Result<Descriptor> {
    session()?;
    let key = postcard::to_stdvec(&(link::generation(), op))
        .map_err(|_| sys::CUDA_ERROR_INVALID_VALUE)?;
    if let Some(known) = KNOWN.lock().get_or_insert_default().get(&key) {
        return Ok(*known);
    }
    let descriptor = link::ask(op, |body| match body {
        ReplyBody::Bytes(bytes) => Descriptor::try_from(bytes).map_err(|_| sys::CUDA_ERROR_UNKNOWN),
        _ => Err(sys::CUDA_ERROR_UNKNOWN),
    })?;
    let mut known = KNOWN.lock();
    let known = known.get_or_insert_default();
    if known.len() >= KEPT {
        known.clear();
    }
    known.insert(key, descriptor);
    Ok(descriptor)
}
