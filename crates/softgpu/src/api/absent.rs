//! Exported functions for features that this device reports as missing: each answers as a driver does on such a device.
//! And registrations for notifications, which never come.

use std::ffi::{c_uint, c_ulonglong, c_void};

use fermata_abi::sys::driver as cu;

use super::args::{In, Out};
use super::init::driver;
use super::{to_handle, to_pointer};
use crate::error::{INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::handle::{self, Tag};
use crate::stream::Stream;

/// The answer to arguments of which some are wrong, or none.
fn cannot(wrong: bool) -> Result {
    driver()?;
    Err(if wrong { INVALID_VALUE } else { NOT_SUPPORTED })
}

api! {
    /// Succeeds without effect: the event to be notified of, more memory in use than promised, never happens here.
    fn cuDeviceRegisterAsyncNotification(
        device: cu::CUdevice,
        call: cu::CUasyncCallback,
        data: Out<c_void>,
        registered: Out<cu::CUasyncCallbackHandle>,
    ) {
        let _ = data;
        driver()?.device(device)?;
        if call.is_none() {
            return Err(INVALID_VALUE);
        }
        registered.set(to_pointer(handle::fresh(Tag::Notification)))
    }

    fn cuDeviceUnregisterAsyncNotification(
        device: cu::CUdevice,
        registered: cu::CUasyncCallbackHandle,
    ) {
        driver()?.device(device)?;
        let known = handle::is_of(Tag::Notification, to_handle(registered));
        if known { Ok(()) } else { Err(INVALID_VALUE) }
    }

    fn cuMulticastCreate(
        handle: Out<cu::CUmemGenericAllocationHandle>,
        properties: In<cu::CUmulticastObjectProp>,
    ) {
        cannot(handle.is_null() || properties.is_null())
    }

    fn cuMulticastGetGranularity(
        granularity: Out<usize>,
        properties: In<cu::CUmulticastObjectProp>,
        option: cu::CUmulticastGranularity_flags,
    ) {
        let _ = option;
        cannot(granularity.is_null() || properties.is_null())
    }

    /// Always fails, as the next three: no handle names a multicast object.
    fn cuMulticastAddDevice(handle: cu::CUmemGenericAllocationHandle, device: cu::CUdevice) {
        let _ = handle;
        driver()?.device(device)?;
        Err(INVALID_VALUE)
    }

    fn cuMulticastBindMem(
        handle: cu::CUmemGenericAllocationHandle,
        offset: usize,
        memory: cu::CUmemGenericAllocationHandle,
        memory_offset: usize,
        bytes: usize,
        flags: c_ulonglong,
    ) {
        let _ = (handle, offset, memory, memory_offset, bytes, flags);
        cannot(true)
    }

    fn cuMulticastBindAddr(
        handle: cu::CUmemGenericAllocationHandle,
        offset: usize,
        address: cu::CUdeviceptr,
        bytes: usize,
        flags: c_ulonglong,
    ) {
        let _ = (handle, offset, address, bytes, flags);
        cannot(true)
    }

    fn cuMulticastUnbind(
        handle: cu::CUmemGenericAllocationHandle,
        device: cu::CUdevice,
        offset: usize,
        bytes: usize,
    ) {
        let _ = (handle, offset, bytes);
        driver()?.device(device)?;
        Err(INVALID_VALUE)
    }

    fn cuMemBatchDecompressAsync(
        params: Out<cu::CUmemDecompressParams>,
        count: usize,
        flags: c_uint,
        failed: Out<usize>,
        stream: cu::CUstream,
    ) {
        let _ = failed;
        Stream::resolve(stream)?;
        cannot(params.is_null() || count == 0 || flags != 0)
    }

    fn cuMemMapArrayAsync(list: Out<cu::CUarrayMapInfo>, count: c_uint, stream: cu::CUstream) {
        Stream::resolve(stream)?;
        cannot(list.is_null() || count == 0)
    }

    fn cuLaunchCooperativeKernelMultiDevice(
        list: Out<cu::CUDA_LAUNCH_PARAMS>,
        count: c_uint,
        flags: c_uint,
    ) {
        let _ = flags;
        cannot(list.is_null() || count == 0)
    }
}
