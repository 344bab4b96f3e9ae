//! Exported functions for features that the devices report as missing: each answers as a driver does on such a device.
//!
//! [`crate::object::devices`] reports the attributes as 0, so that a program which queries them does not use the feature.

use core::ffi::{c_uint, c_ulonglong};

use fermata_abi::sys::driver as sys;

use crate::args::{In, Out};
use crate::frame::entry::driver_api;
use crate::object::session::session;
use crate::result::Result;

driver_api! {
    fn cuMulticastCreate(
        handle: Out<sys::CUmemGenericAllocationHandle>,
        properties: In<sys::CUmulticastObjectProp>,
    ) {
        properties.get()?;
        cannot(handle.is_null())
    }

    fn cuMulticastGetGranularity(
        granularity: Out<usize>,
        properties: In<sys::CUmulticastObjectProp>,
        _option: sys::CUmulticastGranularity_flags,
    ) {
        properties.get()?;
        cannot(granularity.is_null())
    }

    // No handle names a multicast object.

    fn cuMulticastAddDevice(_handle: sys::CUmemGenericAllocationHandle, device: sys::CUdevice) {
        session()?.devices.get(device)?;
        Err(sys::CUDA_ERROR_INVALID_VALUE)
    }

    fn cuMulticastBindMem(
        _handle: sys::CUmemGenericAllocationHandle,
        _offset: usize,
        _memory: sys::CUmemGenericAllocationHandle,
        _memory_offset: usize,
        _size: usize,
        _flags: c_ulonglong,
    ) {
        session()?;
        Err(sys::CUDA_ERROR_INVALID_VALUE)
    }

    fn cuMulticastBindAddr(
        _handle: sys::CUmemGenericAllocationHandle,
        _offset: usize,
        _address: sys::CUdeviceptr,
        _size: usize,
        _flags: c_ulonglong,
    ) {
        session()?;
        Err(sys::CUDA_ERROR_INVALID_VALUE)
    }

    fn cuMulticastUnbind(
        _handle: sys::CUmemGenericAllocationHandle,
        device: sys::CUdevice,
        _offset: usize,
        _size: usize,
    ) {
        session()?.devices.get(device)?;
        Err(sys::CUDA_ERROR_INVALID_VALUE)
    }

    fn cuMemBatchDecompressAsync(
        params: Out<sys::CUmemDecompressParams>,
        count: usize,
        flags: c_uint,
        _failed: Out<usize>,
        stream: sys::CUstream,
    ) {
        session()?.streams.resolve(stream)?;
        cannot(params.is_null() || count == 0 || flags != 0)
    }

    fn cuMemMapArrayAsync(list: Out<sys::CUarrayMapInfo>, count: c_uint, stream: sys::CUstream) {
        session()?.streams.resolve(stream)?;
        cannot(list.is_null() || count == 0)
    }

    fn cuLaunchCooperativeKernelMultiDevice(
        list: Out<sys::CUDA_LAUNCH_PARAMS>,
        count: c_uint,
        _flags: c_uint,
    ) {
        cannot(list.is_null() || count == 0)
    }
}

/// The answer to arguments of which some are wrong, or none.
fn cannot(wrong: bool) -> Result {
    session()?;
    Err(if wrong {
        sys::CUDA_ERROR_INVALID_VALUE
    } else {
        sys::CUDA_ERROR_NOT_SUPPORTED
    })
}
