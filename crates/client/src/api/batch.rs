//! Several operations in one call.

use core::ffi::{c_uint, c_ulonglong};

use fermata_abi::op::Op;
use fermata_abi::sys::driver as sys;
use fermata_graph::{MemOpKind, NodeKind};

use super::copy::issue;
use super::graph_any::memory_operations;
use super::host::check_hint;
use crate::capture;
use crate::copy::End;
use crate::entry::{Result, array, driver_api, put_if};
use crate::link;
use crate::session::session;

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
