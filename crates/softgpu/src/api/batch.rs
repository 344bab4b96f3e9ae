//! Exported functions for several copies in one call, and for hints about several ranges.

use std::ffi::c_ulonglong;

use fermata_abi::sys::driver as cu;
use fermata_graph::{Copy, CopyEnd, Place};

use super::args::{In, Out};
use super::array::resolve;
use super::copy::copy_async;
use super::managed::{ordinal, prefetch};
use super::to_handle;
use crate::error::{INVALID_VALUE, Result};
use crate::stream::Stream;

/// Bytes of the elements that an operand counts in; 1 where it is memory, which has none.
fn element(operand: &cu::CUmemcpy3DOperand) -> Result<u64> {
    match operand.type_ {
        cu::CU_MEMCPY_OPERAND_TYPE_ARRAY => {
            // SAFETY: the type says which member of the union was filled in.
            let array = resolve(unsafe { operand.op.array.array })?;
            Ok(array.width_bytes / array.descriptor.Width.max(1) as u64)
        }
        cu::CU_MEMCPY_OPERAND_TYPE_POINTER => Ok(1),
        _ => Err(INVALID_VALUE),
    }
}

fn times(count: usize, bytes: u64) -> Result<u64> {
    (count as u64).checked_mul(bytes).ok_or(INVALID_VALUE)
}

fn end(operand: &cu::CUmemcpy3DOperand, element: u64, extent: &cu::CUextent3D) -> Result<CopyEnd> {
    if operand.type_ == cu::CU_MEMCPY_OPERAND_TYPE_ARRAY {
        // SAFETY: the type says which member of the union was filled in.
        let place = unsafe { operand.op.array };
        return Ok(CopyEnd {
            x_bytes: times(place.offset.x, element)?,
            y: place.offset.y as u64,
            z: place.offset.z as u64,
            ..CopyEnd::linear(Place::Array, to_handle(place.array))
        });
    }
    // SAFETY: as above.
    let place = unsafe { operand.op.ptr };
    // A length or height of 0 means that rows or slices follow one another without a gap.
    let or = |value: usize, tight: usize| if value == 0 { tight } else { value };
    Ok(CopyEnd {
        pitch: times(or(place.rowLength, extent.width), element)?,
        height: or(place.layerHeight, extent.height) as u64,
        ..CopyEnd::linear(Place::Unified, place.ptr)
    })
}

/// The copies are done in order; their attributes only tune them.
fn boxes(
    count: usize,
    list: Out<cu::CUDA_MEMCPY3D_BATCH_OP>,
    failed: Out<usize>,
    flags: c_ulonglong,
    stream: cu::CUstream,
) -> Result {
    if flags != 0 || count == 0 {
        return Err(INVALID_VALUE);
    }
    let stream = Stream::resolve(stream)?;
    for (index, op) in list.to_in().list(count)?.iter().enumerate() {
        let one = || {
            let element = element(&op.src)?.max(element(&op.dst)?);
            let copy = Copy {
                src: end(&op.src, element, &op.extent)?,
                dst: end(&op.dst, element, &op.extent)?,
                width_bytes: times(op.extent.width, element)?,
                height: op.extent.height as u64,
                depth: op.extent.depth as u64,
            };
            copy_async(copy, &stream)
        };
        one().inspect_err(|_| failed.set_if_wanted(index))?;
    }
    Ok(())
}

/// Checks the arguments; the content stays, as the API allows.
fn discard(
    addresses: Out<cu::CUdeviceptr>,
    sizes: Out<usize>,
    count: usize,
    flags: c_ulonglong,
    stream: cu::CUstream,
) -> Result {
    if flags != 0 || count == 0 {
        return Err(INVALID_VALUE);
    }
    for index in 0..count {
        let (address, bytes) = (
            addresses.to_in().get_at(index)?,
            sizes.to_in().get_at(index)?,
        );
        super::managed::check_managed(address, bytes)?;
    }
    Stream::resolve(stream).map(drop)
}

api! {
    fn cuMemcpy3DBatchAsync(
        count: usize,
        list: Out<cu::CUDA_MEMCPY3D_BATCH_OP>,
        failed: Out<usize>,
        flags: c_ulonglong,
        stream: cu::CUstream,
    ) {
        failed.set_if_wanted(usize::MAX);
        boxes(count, list, failed, flags, stream)
    }

    fn cuMemcpy3DBatchAsync_v2(
        count: usize,
        list: Out<cu::CUDA_MEMCPY3D_BATCH_OP>,
        flags: c_ulonglong,
        stream: cu::CUstream,
    ) {
        boxes(count, list, Out::null(), flags, stream)
    }

    fn cuMemDiscardBatchAsync(
        addresses: Out<cu::CUdeviceptr>,
        sizes: Out<usize>,
        count: usize,
        flags: c_ulonglong,
        stream: cu::CUstream,
    ) {
        discard(addresses, sizes, count, flags, stream)
    }

    fn cuMemDiscardAndPrefetchBatchAsync(
        addresses: Out<cu::CUdeviceptr>,
        sizes: Out<usize>,
        count: usize,
        locations: In<cu::CUmemLocation>,
        indices: In<usize>,
        location_count: usize,
        flags: c_ulonglong,
        stream: cu::CUstream,
    ) {
        discard(addresses, sizes, count, flags, stream)?;
        let firsts = indices.list(location_count)?;
        if firsts.first() != Some(&0) {
            return Err(INVALID_VALUE);
        }
        for index in 0..count {
            let group = firsts.partition_point(|first| *first <= index) - 1;
            let device = ordinal(&locations.get_at(group)?)?;
            let (address, bytes) = (addresses.to_in().get_at(index)?, sizes.to_in().get_at(index)?);
            prefetch(address, bytes, device, stream)?;
        }
        Ok(())
    }
}
