//! What devices can do beyond their attributes.

use core::ffi::{c_char, c_int, c_uint, c_void};

use fermata_abi::op::{DeviceQuestion, Op, ReplyBody};
use fermata_abi::sys::driver as sys;

use crate::context::current;
use crate::entry::{Result, array, driver_api, put};
use crate::handles;
use crate::link;
use crate::session::session;

driver_api! {
    /// Contexts with a part of the multiprocessors exist under NVIDIA's process service only.
    fn cuDeviceGetExecAffinitySupport(
        supported: *mut c_int,
        kind: sys::CUexecAffinityType,
        device: sys::CUdevice,
    ) {
        session()?.devices.get(device)?;
        if kind >= sys::CU_EXEC_AFFINITY_TYPE_MAX {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        put(supported, 0)
    }

    fn cuCtxGetExecAffinity(_affinity: *mut sys::CUexecAffinityParam, _kind: sys::CUexecAffinityType) {
        session()?;
        current()?;
        Err(sys::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY)
    }

    /// Devices have such ids on Windows.
    fn cuDeviceGetLuid(_luid: *mut c_char, _mask: *mut c_uint, device: sys::CUdevice) {
        session()?.devices.get(device)?;
        Err(sys::CUDA_ERROR_NOT_SUPPORTED)
    }

    fn cuDeviceGetP2PAtomicCapabilities(
        capabilities: *mut c_uint,
        operations: *const sys::CUatomicOperation,
        count: c_uint,
        from: sys::CUdevice,
        to: sys::CUdevice,
    ) {
        let devices = &session()?.devices;
        let (from, peer) = (devices.get(from)?.index, devices.get(to)?.index);
        let operations = array(operations, count as usize)?.to_vec();
        let asked = DeviceQuestion::PeerAtomics { peer, operations };
        put_all(capabilities, &ask(from, asked)?)
    }

    fn cuDeviceGetHostAtomicCapabilities(
        capabilities: *mut c_uint,
        operations: *const sys::CUatomicOperation,
        count: c_uint,
        device: sys::CUdevice,
    ) {
        let device = session()?.devices.get(device)?.index;
        let operations = array(operations, count as usize)?.to_vec();
        put_all(capabilities, &ask(device, DeviceQuestion::HostAtomics { operations })?)
    }

    fn cuDeviceGetTexture1DLinearMaxWidth(
        width: *mut usize,
        format: sys::CUarray_format,
        channels: c_uint,
        device: sys::CUdevice,
    ) {
        let device = session()?.devices.get(device)?.index;
        let answer = ask(device, DeviceQuestion::LinearTextureWidth { format, channels })?;
        put(width, *answer.first().ok_or(sys::CUDA_ERROR_UNKNOWN)? as usize)
    }

    /// What a program would be notified of, more memory in use than it was promised, is never found here.
    fn cuDeviceRegisterAsyncNotification(
        device: sys::CUdevice,
        call: sys::CUasyncCallback,
        _data: *mut c_void,
        registered: *mut sys::CUasyncCallbackHandle,
    ) {
        session()?.devices.get(device)?;
        if call.is_none() {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        put(registered, handles::to_pointer(handles::fresh()))
    }

    fn cuDeviceUnregisterAsyncNotification(
        device: sys::CUdevice,
        registered: sys::CUasyncCallbackHandle,
    ) {
        session()?.devices.get(device)?;
        if registered.is_null() { Err(sys::CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
    }
}

fn ask(device: u32, question: DeviceQuestion) -> Result<Vec<u64>> {
    link::ask(&Op::DeviceAsk { device, question }, |body| match body {
        ReplyBody::Bytes(bytes) => {
            let words = bytes.chunks_exact(8);
            Ok(words
                .map(|word| word.try_into().map_or(0, u64::from_le_bytes))
                .collect())
        }
        _ => Err(sys::CUDA_ERROR_UNKNOWN),
    })
}

/// # Safety
/// There is room for as many numbers.
unsafe fn put_all(to: *mut c_uint, numbers: &[u64]) -> Result {
    for (n, number) in numbers.iter().enumerate() {
        if to.is_null() {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: by the caller's promise.
        unsafe { put(to.add(n), *number as c_uint)? };
    }
    Ok(())
}
