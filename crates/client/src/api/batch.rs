//! Several operations in one call.

use core::ffi::{c_uint, c_ulonglong};

use fermata_abi::op::Op;
use fermata_abi::sys::driver as sys;
use fermata_graph::{MemOpKind, NodeKind};

use super::boxes::Side;
use super::copy::issue;
use super::graph_any::memory_operations;
use super::host::check_hint;
use crate::capture;
use crate::copy::End;
use crate::entry::{Result, array, driver_api, put_if};
use crate::link;
use crate::session::{Session, session};

driver_api! {
    fn cuMemcpyBatchAsync(
        to: *mut sys::CUdeviceptr,
        from: *mut sys::CUdeviceptr,
        sizes: *mut usize,
        count: usize,
        _attributes: *mut sys::CUmemcpyAttributes,
        _indices: *mut usize,
        _attribute_count: usize,
        failed: *mut usize,
        stream: sys::CUstream,
    ) {
        // Where it failed is not known: all ones, as the API says.
        put_if(failed, usize::MAX);
        copies(array(to, count)?, array(from, count)?, array(sizes, count)?, stream)
    }

    fn cuMemcpyBatchAsync_v2(
        to: *mut sys::CUdeviceptr,
        from: *mut sys::CUdeviceptr,
        sizes: *mut usize,
        count: usize,
        _attributes: *mut sys::CUmemcpyAttributes,
        _indices: *mut usize,
        _attribute_count: usize,
        stream: sys::CUstream,
    ) {
        copies(array(to, count)?, array(from, count)?, array(sizes, count)?, stream)
    }

    fn cuMemcpy3DBatchAsync(
        count: usize,
        list: *mut sys::CUDA_MEMCPY3D_BATCH_OP,
        failed: *mut usize,
        flags: c_ulonglong,
        stream: sys::CUstream,
    ) {
        put_if(failed, usize::MAX);
        boxes(array(list.cast_const(), count)?, flags, stream)
    }

    fn cuMemcpy3DBatchAsync_v2(
        count: usize,
        list: *mut sys::CUDA_MEMCPY3D_BATCH_OP,
        flags: c_ulonglong,
        stream: sys::CUstream,
    ) {
        boxes(array(list.cast_const(), count)?, flags, stream)
    }

    fn cuStreamBatchMemOp(
        stream: sys::CUstream,
        count: c_uint,
        operations: *mut sys::CUstreamBatchMemOpParams,
        flags: c_uint,
    ) {
        words(stream, array(operations, count as usize)?, flags)
    }

    fn cuStreamBatchMemOp_v2(
        stream: sys::CUstream,
        count: c_uint,
        operations: *mut sys::CUstreamBatchMemOpParams,
        flags: c_uint,
    ) {
        words(stream, array(operations, count as usize)?, flags)
    }

    fn cuMemPrefetchBatchAsync(
        addresses: *mut sys::CUdeviceptr,
        sizes: *mut usize,
        count: usize,
        _locations: *mut sys::CUmemLocation,
        _indices: *mut usize,
        _location_count: usize,
        flags: c_ulonglong,
        stream: sys::CUstream,
    ) {
        hints(array(addresses, count)?, array(sizes, count)?, flags, stream)
    }

    fn cuMemDiscardBatchAsync(
        addresses: *mut sys::CUdeviceptr,
        sizes: *mut usize,
        count: usize,
        flags: c_ulonglong,
        stream: sys::CUstream,
    ) {
        hints(array(addresses, count)?, array(sizes, count)?, flags, stream)
    }

    fn cuMemDiscardAndPrefetchBatchAsync(
        addresses: *mut sys::CUdeviceptr,
        sizes: *mut usize,
        count: usize,
        _locations: *mut sys::CUmemLocation,
        _indices: *mut usize,
        _location_count: usize,
        flags: c_ulonglong,
        stream: sys::CUstream,
    ) {
        hints(array(addresses, count)?, array(sizes, count)?, flags, stream)
    }
}

/// # Safety
/// Every range of ordinary memory may be read (or written).
unsafe fn copies(to: &[u64], from: &[u64], sizes: &[usize], stream: sys::CUstream) -> Result {
    let session = session()?;
    for ((&to, &from), &size) in to.iter().zip(from).zip(sizes) {
        let (to, from) = (
            End::unified(session, to, size as u64)?,
            End::unified(session, from, size as u64)?,
        );
        // SAFETY: the caller's promise is handed on.
        unsafe { issue(session, to, from, size, stream) }?;
    }
    Ok(())
}

/// # Safety
/// Every operand names memory that may be read (or written).
unsafe fn boxes(list: &[sys::CUDA_MEMCPY3D_BATCH_OP], flags: u64, stream: sys::CUstream) -> Result {
    // An order among them is asked for by other means: they all go into one stream.
    if flags != 0 {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    let session = session()?;
    for op in list {
        // SAFETY: each member is read for the type that it belongs to.
        let element = unsafe { element(session, &op.src)?.max(element(session, &op.dst)?) };
        let size = [op.extent.width, op.extent.height, op.extent.depth];
        // SAFETY: the caller's promise is handed on.
        unsafe {
            let (to, from) = (
                side(&op.dst, element, size[1])?,
                side(&op.src, element, size[1])?,
            );
            super::boxes::run(
                &to,
                &from,
                [times(size[0], element)?, size[1], size[2]],
                Some(stream),
            )?;
        }
    }
    Ok(())
}

fn times(count: usize, bytes: usize) -> Result<usize> {
    count
        .checked_mul(bytes)
        .ok_or(sys::CUDA_ERROR_INVALID_VALUE)
}

/// Bytes of the elements that an operand counts in; 1 where it is memory without any.
///
/// # Safety
/// The operand is as the API demands for its type.
unsafe fn element(session: &Session, operand: &sys::CUmemcpy3DOperand) -> Result<usize> {
    match operand.type_ {
        sys::CU_MEMCPY_OPERAND_TYPE_ARRAY => {
            // SAFETY: by the caller's promise.
            let array = unsafe { operand.op.array.array };
            Ok(session.arrays.get(array)?.shape.element()? as usize)
        }
        sys::CU_MEMCPY_OPERAND_TYPE_POINTER => Ok(1),
        _ => Err(sys::CUDA_ERROR_INVALID_VALUE),
    }
}

/// # Safety
/// The operand is as the API demands for its type.
unsafe fn side(operand: &sys::CUmemcpy3DOperand, element: usize, height: usize) -> Result<Side> {
    if operand.type_ == sys::CU_MEMCPY_OPERAND_TYPE_ARRAY {
        // SAFETY: by the caller's promise.
        let place = unsafe { &operand.op.array };
        let offset = &place.offset;
        let corner = (
            times(offset.x, element)? as u64,
            offset.y as u64,
            offset.z as u64,
        );
        return Ok(Side::of_array(place.array, corner));
    }
    // SAFETY: as above.
    let place = unsafe { &operand.op.ptr };
    let rows = if place.layerHeight == 0 {
        height
    } else {
        place.layerHeight
    };
    let pitch = times(place.rowLength, element)?;
    Ok(Side::of_memory(place.ptr, (pitch as u64, rows as u64)))
}

/// # Safety
/// Every entry is as the API demands for the operation it names.
unsafe fn words(
    stream: sys::CUstream,
    entries: &[sys::CUstreamBatchMemOpParams],
    flags: c_uint,
) -> Result {
    if flags != 0 {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the caller's promise is handed on.
    let operations = unsafe { memory_operations(entries) }?;
    let session = session()?;
    if capture::add(session, stream, || {
        Ok(NodeKind::BatchMemOp(operations.clone()))
    })? {
        return Ok(());
    }
    let stream = session.streams.resolve(stream)?;
    for operation in operations {
        let fermata_graph::MemOp {
            kind,
            address,
            value,
            flags,
            wide,
        } = operation;
        match kind {
            MemOpKind::Wait => link::post(&Op::WaitValue {
                stream,
                address,
                value,
                flags,
                wide,
            })?,
            MemOpKind::Write => link::post(&Op::WriteValue {
                stream,
                address,
                value,
                flags,
                wide,
            })?,
            // Operations of one stream are ordered, and all memory here is coherent.
            MemOpKind::Barrier => {}
        }
    }
    Ok(())
}

fn hints(addresses: &[u64], sizes: &[usize], flags: u64, stream: sys::CUstream) -> Result {
    if flags != 0 {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    for (&address, &size) in addresses.iter().zip(sizes) {
        check_hint(address, size)?;
    }
    session()?.streams.resolve(stream).map(|_| ())
}
