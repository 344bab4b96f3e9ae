//! Exported functions that issue several copies or word operations in one call.

use core::ffi::{c_uint, c_ulonglong};

use fermata_abi::op::{Address, Op};
use fermata_abi::sys::driver as sys;
use fermata_graph::{MemOpKind, NodeKind};

use super::boxes::Side;
use super::copy::issue;
use super::graph_any::memory_operations;
use super::host::check_hint;
use crate::args::Out;
use crate::frame::entry::driver_api;
use crate::link;
use crate::object::copy::End;
use crate::object::session::{Session, session};
use crate::result::Result;
use crate::work::capture;

driver_api! {
    fn cuMemcpyBatchAsync(
        to: Out<sys::CUdeviceptr>,
        from: Out<sys::CUdeviceptr>,
        sizes: Out<usize>,
        count: usize,
        _attributes: Out<sys::CUmemcpyAttributes>,
        _indices: Out<usize>,
        _attribute_count: usize,
        failed: Out<usize>,
        stream: sys::CUstream,
    ) {
        // Where it failed is not known: all ones, as the API says.
        failed.set_if_wanted(usize::MAX);
        copies(&to.list(count)?, &from.list(count)?, &sizes.list(count)?, stream)
    }

    fn cuMemcpyBatchAsync_v2(
        to: Out<sys::CUdeviceptr>,
        from: Out<sys::CUdeviceptr>,
        sizes: Out<usize>,
        count: usize,
        _attributes: Out<sys::CUmemcpyAttributes>,
        _indices: Out<usize>,
        _attribute_count: usize,
        stream: sys::CUstream,
    ) {
        copies(&to.list(count)?, &from.list(count)?, &sizes.list(count)?, stream)
    }

    fn cuMemcpy3DBatchAsync(
        count: usize,
        list: Out<sys::CUDA_MEMCPY3D_BATCH_OP>,
        failed: Out<usize>,
        flags: c_ulonglong,
        stream: sys::CUstream,
    ) {
        failed.set_if_wanted(usize::MAX);
        boxes(&list.list(count)?, flags, stream)
    }

    fn cuMemcpy3DBatchAsync_v2(
        count: usize,
        list: Out<sys::CUDA_MEMCPY3D_BATCH_OP>,
        flags: c_ulonglong,
        stream: sys::CUstream,
    ) {
        boxes(&list.list(count)?, flags, stream)
    }

    fn cuStreamBatchMemOp(
        stream: sys::CUstream,
        count: c_uint,
        operations: Out<sys::CUstreamBatchMemOpParams>,
        flags: c_uint,
    ) {
        words(stream, &operations.list(count as usize)?, flags)
    }

    fn cuStreamBatchMemOp_v2(
        stream: sys::CUstream,
        count: c_uint,
        operations: Out<sys::CUstreamBatchMemOpParams>,
        flags: c_uint,
    ) {
        words(stream, &operations.list(count as usize)?, flags)
    }

    fn cuMemPrefetchBatchAsync(
        addresses: Out<sys::CUdeviceptr>,
        sizes: Out<usize>,
        count: usize,
        _locations: Out<sys::CUmemLocation>,
        _indices: Out<usize>,
        _location_count: usize,
        flags: c_ulonglong,
        stream: sys::CUstream,
    ) {
        hints(&addresses.list(count)?, &sizes.list(count)?, flags, stream)
    }

    fn cuMemDiscardBatchAsync(
        addresses: Out<sys::CUdeviceptr>,
        sizes: Out<usize>,
        count: usize,
        flags: c_ulonglong,
        stream: sys::CUstream,
    ) {
        hints(&addresses.list(count)?, &sizes.list(count)?, flags, stream)
    }

    fn cuMemDiscardAndPrefetchBatchAsync(
        addresses: Out<sys::CUdeviceptr>,
        sizes: Out<usize>,
        count: usize,
        _locations: Out<sys::CUmemLocation>,
        _indices: Out<usize>,
        _location_count: usize,
        flags: c_ulonglong,
        stream: sys::CUstream,
    ) {
        hints(&addresses.list(count)?, &sizes.list(count)?, flags, stream)
    }
}

fn copies(to: &[u64], from: &[u64], sizes: &[usize], stream: sys::CUstream) -> Result {
    let session = session()?;
    for ((&to, &from), &size) in to.iter().zip(from).zip(sizes) {
        let (to, from) = (
            End::unified(&session.memory, Address::from_raw(to), size as u64)?,
            End::unified(&session.memory, Address::from_raw(from), size as u64)?,
        );
        issue(session, to, from, size, stream)?;
    }
    Ok(())
}

fn boxes(list: &[sys::CUDA_MEMCPY3D_BATCH_OP], flags: u64, stream: sys::CUstream) -> Result {
    // An order among them is asked for by other means: they all go into one stream.
    if flags != 0 {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    let session = session()?;
    for op in list {
        let element = element(session, &op.src)?.max(element(session, &op.dst)?);
        let size = [op.extent.width, op.extent.height, op.extent.depth];
        let to = side(&op.dst, element, size[1])?;
        let from = side(&op.src, element, size[1])?;
        let size = [times(size[0], element)?, size[1], size[2]];
        super::boxes::run(&to, &from, size, Some(stream))?;
    }
    Ok(())
}

fn times(count: usize, bytes: usize) -> Result<usize> {
    count
        .checked_mul(bytes)
        .ok_or(sys::CUDA_ERROR_INVALID_VALUE)
}

/// Bytes of the elements that an operand counts in; 1 where it is memory without any.
fn element(session: &Session, operand: &sys::CUmemcpy3DOperand) -> Result<usize> {
    match operand.type_ {
        sys::CU_MEMCPY_OPERAND_TYPE_ARRAY => {
            // SAFETY: read for the type that it belongs to; every bit pattern is a handle.
            let array = unsafe { operand.op.array.array };
            Ok(session.arrays.get(array)?.shape.element()? as usize)
        }
        sys::CU_MEMCPY_OPERAND_TYPE_POINTER => Ok(1),
        _ => Err(sys::CUDA_ERROR_INVALID_VALUE),
    }
}

fn side(operand: &sys::CUmemcpy3DOperand, element: usize, height: usize) -> Result<Side> {
    if operand.type_ == sys::CU_MEMCPY_OPERAND_TYPE_ARRAY {
        // SAFETY: read for the type that it belongs to, all of whose fields are numbers and handles.
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

fn words(
    stream: sys::CUstream,
    entries: &[sys::CUstreamBatchMemOpParams],
    flags: c_uint,
) -> Result {
    if flags != 0 {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    let operations = memory_operations(entries)?;
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
        let address = Address::from_raw(address);
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
