//! Devices: answered from the table that the worker sent at the start.

use core::ffi::{c_char, c_int, c_uint};

use fermata_abi::sys::driver as sys;

use crate::entry::{Result, driver_api, put, text};
use crate::session::session;

driver_api! {
    fn cuDeviceGet(device: *mut sys::CUdevice, ordinal: c_int) {
        session()?.devices.get(ordinal)?;
        put(device, ordinal)
    }

    fn cuDeviceGetCount(count: *mut c_int) {
        put(count, session()?.devices.count() as c_int)
    }

    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: sys::CUdevice) {
        put_string(name, len, &session()?.devices.get(device)?.info.name)
    }

    fn cuDeviceGetUuid(uuid: *mut sys::CUuuid, device: sys::CUdevice) {
        put(uuid, to_uuid(session()?.devices.get(device)?.info.uuid))
    }

    fn cuDeviceGetUuid_v2(uuid: *mut sys::CUuuid, device: sys::CUdevice) {
        put(uuid, to_uuid(session()?.devices.get(device)?.info.uuid))
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: sys::CUdevice) {
        put(bytes, session()?.devices.get(device)?.info.memory as usize)
    }

    fn cuDeviceGetAttribute(value: *mut c_int, attribute: sys::CUdevice_attribute, device: sys::CUdevice) {
        put(value, session()?.devices.get(device)?.attribute(attribute)?)
    }

    fn cuDeviceComputeCapability(major: *mut c_int, minor: *mut c_int, device: sys::CUdevice) {
        let device = session()?.devices.get(device)?;
        put(major, device.attribute(sys::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?)?;
        put(minor, device.attribute(sys::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?)
    }

    fn cuDeviceGetProperties(properties: *mut sys::CUdevprop, device: sys::CUdevice) {
        let device = session()?.devices.get(device)?;
        let value = |id| device.attribute(id).unwrap_or(0);
        put(properties, sys::CUdevprop {
            maxThreadsPerBlock: value(sys::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
            maxThreadsDim: [
                value(sys::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X),
                value(sys::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y),
                value(sys::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z),
            ],
            maxGridSize: [
                value(sys::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X),
                value(sys::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y),
                value(sys::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z),
            ],
            sharedMemPerBlock: value(sys::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
            totalConstantMemory: value(sys::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY),
            SIMDWidth: value(sys::CU_DEVICE_ATTRIBUTE_WARP_SIZE),
            memPitch: value(sys::CU_DEVICE_ATTRIBUTE_MAX_PITCH),
            regsPerBlock: value(sys::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
            clockRate: value(sys::CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
            textureAlign: value(sys::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT),
        })
    }

    fn cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: sys::CUdevice) {
        put_string(id, len, &session()?.devices.get(device)?.info.bus_id)
    }

    fn cuDeviceGetByPCIBusId(device: *mut sys::CUdevice, id: *const c_char) {
        let wanted = text(id)?;
        let mut all = session()?.devices.all().iter();
        let found = all.position(|device| device.info.bus_id.eq_ignore_ascii_case(wanted));
        put(device, found.ok_or(sys::CUDA_ERROR_INVALID_DEVICE)? as sys::CUdevice)
    }

    fn cuDeviceCanAccessPeer(can: *mut c_int, device: sys::CUdevice, peer: sys::CUdevice) {
        put(can, c_int::from(can_access(device, peer)?))
    }

    fn cuDeviceGetP2PAttribute(
        value: *mut c_int,
        attribute: sys::CUdevice_P2PAttribute,
        device: sys::CUdevice,
        peer: sys::CUdevice,
    ) {
        let reachable = can_access(device, peer)?;
        let answer = match attribute {
            sys::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED
            | sys::CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED => reachable,
            sys::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK
            | sys::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED => false,
            _ => return Err(sys::CUDA_ERROR_INVALID_VALUE),
        };
        put(value, c_int::from(answer))
    }

    fn cuDevicePrimaryCtxRetain(context: *mut sys::CUcontext, device: sys::CUdevice) {
        let session = session()?;
        put(context, session.contexts.retain(session, device)?.pointer())
    }

    fn cuDevicePrimaryCtxRelease(device: sys::CUdevice) {
        let session = session()?;
        session.contexts.release(session, device)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: sys::CUdevice) {
        let session = session()?;
        session.contexts.release(session, device)
    }

    fn cuDevicePrimaryCtxReset(device: sys::CUdevice) {
        let session = session()?;
        session.contexts.reset(session, device)
    }

    fn cuDevicePrimaryCtxReset_v2(device: sys::CUdevice) {
        let session = session()?;
        session.contexts.reset(session, device)
    }

    fn cuDevicePrimaryCtxSetFlags(device: sys::CUdevice, flags: c_uint) {
        let session = session()?;
        session.contexts.set_primary_flags(session, device, flags)
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: sys::CUdevice, flags: c_uint) {
        let session = session()?;
        session.contexts.set_primary_flags(session, device, flags)
    }

    fn cuDevicePrimaryCtxGetState(device: sys::CUdevice, flags: *mut c_uint, active: *mut c_int) {
        let session = session()?;
        let (now, is_active) = session.contexts.primary_state(session, device)?;
        put(flags, now)?;
        put(active, c_int::from(is_active))
    }
}

fn can_access(device: sys::CUdevice, peer: sys::CUdevice) -> Result<bool> {
    let devices = &session()?.devices;
    let (device, peer) = (devices.get(device)?, devices.get(peer)?);
    let known = device
        .info
        .peers
        .get(peer.index as usize)
        .copied()
        .unwrap_or(false);
    Ok(known && device.index != peer.index)
}

fn to_uuid(bytes: [u8; 16]) -> sys::CUuuid {
    sys::CUuuid {
        bytes: bytes.map(|byte| byte as c_char),
    }
}

/// # Safety
/// `to` is null or has room for `len` bytes.
unsafe fn put_string(to: *mut c_char, len: c_int, value: &str) -> Result {
    let len = usize::try_from(len).map_err(|_| sys::CUDA_ERROR_INVALID_VALUE)?;
    if to.is_null() || len == 0 {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    let copied = value.len().min(len - 1);
    // SAFETY: `copied` bytes and the NUL fit into `len`.
    unsafe {
        std::ptr::copy_nonoverlapping(value.as_ptr(), to.cast(), copied);
        to.add(copied).write(0);
    }
    Ok(())
}
