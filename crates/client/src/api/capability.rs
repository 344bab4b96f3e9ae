//! Exported functions that query capabilities of devices beyond their attributes.

use core::ffi::{c_char, c_int, c_uint, c_void};

use fermata_abi::op::{DeviceQuestion, Op, ReplyBody};
use fermata_abi::sys::driver as sys;

use crate::args::{In, Out};
use crate::frame::entry::driver_api;
use crate::handles;
use crate::link;
use crate::object::context::current;
use crate::object::session::session;
use crate::result::Result;

driver_api! {
    /// Contexts with a part of the multiprocessors exist under NVIDIA's process service only.
    fn cuDeviceGetExecAffinitySupport(
        supported: Out<c_int>,
        kind: sys::CUexecAffinityType,
        device: sys::CUdevice,
    ) {
        session()?.devices.get(device)?;
        if kind >= sys::CU_EXEC_AFFINITY_TYPE_MAX {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        supported.set(0)
    }

    fn cuCtxGetExecAffinity(_affinity: Out<sys::CUexecAffinityParam>, _kind: sys::CUexecAffinityType) {
        session()?;
        current()?;
        Err(sys::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY)
    }

    /// Devices have such ids on Windows.
    fn cuDeviceGetLuid(_luid: Out<c_char>, _mask: Out<c_uint>, device: sys::CUdevice) {
        session()?.devices.get(device)?;
        Err(sys::CUDA_ERROR_NOT_SUPPORTED)
    }

    fn cuDeviceGetP2PAtomicCapabilities(
        capabilities: Out<c_uint>,
        operations: In<sys::CUatomicOperation>,
        count: c_uint,
        from: sys::CUdevice,
        to: sys::CUdevice,
    ) {
        let devices = &session()?.devices;
        let (from, peer) = (devices.get(from)?.index, devices.get(to)?.index);
        let operations = operations.list(count as usize)?;
        let asked = DeviceQuestion::PeerAtomics { peer, operations };
        put_all(capabilities, &ask(from, asked)?)
    }

    fn cuDeviceGetHostAtomicCapabilities(
        capabilities: Out<c_uint>,
        operations: In<sys::CUatomicOperation>,
        count: c_uint,
        device: sys::CUdevice,
    ) {
        let device = session()?.devices.get(device)?.index;
        let operations = operations.list(count as usize)?;
        put_all(capabilities, &ask(device, DeviceQuestion::HostAtomics { operations })?)
    }

    fn cuDeviceGetTexture1DLinearMaxWidth(
        width: Out<usize>,
        format: sys::CUarray_format,
        channels: c_uint,
        device: sys::CUdevice,
    ) {
        let device = session()?.devices.get(device)?.index;
        let answer = ask(device, DeviceQuestion::LinearTextureWidth { format, channels })?;
        width.set(*answer.first().ok_or(sys::CUDA_ERROR_UNKNOWN)? as usize)
    }

    /// Succeeds without effect: the event to be notified of, more memory in use than promised, never happens here.
    fn cuDeviceRegisterAsyncNotification(
        device: sys::CUdevice,
        call: sys::CUasyncCallback,
        _data: *mut c_void,
        registered: Out<sys::CUasyncCallbackHandle>,
    ) {
        session()?.devices.get(device)?;
        if call.is_none() {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        registered.set(handles::to_pointer(handles::fresh()))
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

fn put_all(to: Out<c_uint>, numbers: &[u64]) -> Result {
    let mut numbers = numbers.iter().enumerate();
    numbers.try_for_each(|(n, number)| to.set_at(n, *number as c_uint))
}
