//! Exported functions for devices, answered from the table that the worker sent at the start.

use core::ffi::{c_char, c_int, c_uint};

use fermata_abi::sys::driver as sys;

use crate::args::{Name, Out};
use crate::frame::entry::driver_api;
use crate::object::session::session;
use crate::result::Result;
use crate::work::teardown;

driver_api! {
    fn cuDeviceGet(device: Out<sys::CUdevice>, ordinal: c_int) {
        session()?.devices.get(ordinal)?;
        device.set(ordinal)
    }

    fn cuDeviceGetCount(count: Out<c_int>) {
        count.set(session()?.devices.count() as c_int)
    }

    fn cuDeviceGetName(name: Out<c_char>, len: c_int, device: sys::CUdevice) {
        name.set_text(&session()?.devices.get(device)?.info.name, len)
    }

    fn cuDeviceGetUuid(uuid: Out<sys::CUuuid>, device: sys::CUdevice) {
        uuid.set(to_uuid(session()?.devices.get(device)?.info.uuid))
    }

    fn cuDeviceGetUuid_v2(uuid: Out<sys::CUuuid>, device: sys::CUdevice) {
        uuid.set(to_uuid(session()?.devices.get(device)?.info.uuid))
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: sys::CUdevice) {
        bytes.set(session()?.devices.get(device)?.info.memory as usize)
    }

    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: sys::CUdevice_attribute, device: sys::CUdevice) {
        value.set(session()?.devices.get(device)?.attribute(attribute)?)
    }

    fn cuDeviceComputeCapability(major: Out<c_int>, minor: Out<c_int>, device: sys::CUdevice) {
        let device = session()?.devices.get(device)?;
        major.set(device.attribute(sys::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?)?;
        minor.set(device.attribute(sys::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?)
    }

    fn cuDeviceGetProperties(properties: Out<sys::CUdevprop>, device: sys::CUdevice) {
        let device = session()?.devices.get(device)?;
        let value = |id| device.attribute(id).unwrap_or(0);
        properties.set(sys::CUdevprop {
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

    fn cuDeviceGetPCIBusId(id: Out<c_char>, len: c_int, device: sys::CUdevice) {
        id.set_text(&session()?.devices.get(device)?.info.bus_id, len)
    }

    fn cuDeviceGetByPCIBusId(device: Out<sys::CUdevice>, id: Name) {
        let wanted = id.text()?;
        let mut all = session()?.devices.all().iter();
        let found = all.position(|device| device.info.bus_id.eq_ignore_ascii_case(wanted));
        device.set(found.ok_or(sys::CUDA_ERROR_INVALID_DEVICE)? as sys::CUdevice)
    }

    fn cuDeviceCanAccessPeer(can: Out<c_int>, device: sys::CUdevice, peer: sys::CUdevice) {
        can.set(c_int::from(can_access(device, peer)?))
    }

    fn cuDeviceGetP2PAttribute(
        value: Out<c_int>,
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
        value.set(c_int::from(answer))
    }

    fn cuDevicePrimaryCtxRetain(context: Out<sys::CUcontext>, device: sys::CUdevice) {
        let session = session()?;
        context.set(session.contexts.retain(&session.devices, device)?.pointer())
    }

    fn cuDevicePrimaryCtxRelease(device: sys::CUdevice) {
        let session = session()?;
        teardown::release_primary(session, device)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: sys::CUdevice) {
        let session = session()?;
        teardown::release_primary(session, device)
    }

    fn cuDevicePrimaryCtxReset(device: sys::CUdevice) {
        let session = session()?;
        teardown::reset_primary(session, device)
    }

    fn cuDevicePrimaryCtxReset_v2(device: sys::CUdevice) {
        let session = session()?;
        teardown::reset_primary(session, device)
    }

    fn cuDevicePrimaryCtxSetFlags(device: sys::CUdevice, flags: c_uint) {
        let session = session()?;
        session.contexts.set_primary_flags(&session.devices, device, flags)
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: sys::CUdevice, flags: c_uint) {
        let session = session()?;
        session.contexts.set_primary_flags(&session.devices, device, flags)
    }

    fn cuDevicePrimaryCtxGetState(device: sys::CUdevice, flags: Out<c_uint>, active: Out<c_int>) {
        let session = session()?;
        let (now, is_active) = session.contexts.primary_state(&session.devices, device)?;
        flags.set(now)?;
        active.set(c_int::from(is_active))
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
