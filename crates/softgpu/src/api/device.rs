//! Exported functions for devices and their properties.

use std::ffi::{c_char, c_int, c_uint};

use fermata_abi::sys::driver as cu;

use super::args::{In, Name, Out};
use super::init::driver;
use crate::attributes::{self, attribute};
use crate::error::{INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED};

api! {
    fn cuDeviceGet(device: Out<cu::CUdevice>, ordinal: c_int) {
        device.set(driver()?.device(ordinal)?.ordinal)
    }

    fn cuDeviceGetCount(count: Out<c_int>) {
        count.set(driver()?.devices.len() as c_int)
    }

    fn cuDeviceGetName(name: Out<c_char>, len: c_int, device: cu::CUdevice) {
        name.set_text(&driver()?.device(device)?.settings.name, len)
    }

    fn cuDeviceGetUuid | fn cuDeviceGetUuid_v2(uuid: Out<cu::CUuuid>, device: cu::CUdevice) {
        let bytes = driver()?.device(device)?.uuid();
        uuid.set(cu::CUuuid { bytes: bytes.map(|byte| byte as c_char) })
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: cu::CUdevice) {
        bytes.set(driver()?.device(device)?.settings.memory as usize)
    }

    fn cuDeviceGetAttribute(value: Out<c_int>, id: cu::CUdevice_attribute, device: cu::CUdevice) {
        value.set(attribute(driver()?.device(device)?, id)?)
    }

    fn cuDeviceComputeCapability(major: Out<c_int>, minor: Out<c_int>, device: cu::CUdevice) {
        let (a, b) = driver()?.device(device)?.settings.compute_capability;
        major.set(a as c_int)?;
        minor.set(b as c_int)
    }

    fn cuDeviceGetProperties(properties: Out<cu::CUdevprop>, device: cu::CUdevice) {
        driver()?.device(device)?;
        properties.set(cu::CUdevprop {
            maxThreadsPerBlock: attributes::MAX_THREADS_PER_BLOCK as c_int,
            maxThreadsDim: attributes::MAX_BLOCK.map(|n| n as c_int),
            maxGridSize: attributes::MAX_GRID.map(|n| n as c_int),
            sharedMemPerBlock: attributes::SHARED_PER_BLOCK as c_int,
            totalConstantMemory: 65536,
            SIMDWidth: attributes::WARP as c_int,
            memPitch: c_int::MAX,
            regsPerBlock: attributes::REGISTERS as c_int,
            clockRate: 1_000_000,
            textureAlign: attributes::PITCH as c_int,
        })
    }

    fn cuDeviceGetPCIBusId(text: Out<c_char>, len: c_int, device: cu::CUdevice) {
        text.set_text(&driver()?.device(device)?.pci_bus_id(), len)
    }

    fn cuDeviceGetByPCIBusId(device: Out<cu::CUdevice>, text: Name) {
        let wanted = text.text()?;
        let same = |id: String| {
            let short = id.strip_prefix("0000:").map(str::to_owned).unwrap_or_default();
            let bare = short.strip_suffix(".0").map(str::to_owned).unwrap_or_default();
            [id, short, bare].iter().any(|form| form.eq_ignore_ascii_case(wanted))
        };
        let found = driver()?.devices.iter().find(|device| same(device.pci_bus_id()));
        device.set(found.ok_or(INVALID_DEVICE)?.ordinal)
    }

    fn cuDeviceGetTexture1DLinearMaxWidth(
        width: Out<usize>,
        format: cu::CUarray_format,
        channels: c_uint,
        device: cu::CUdevice,
    ) {
        let _ = (format, channels);
        driver()?.device(device)?;
        width.set(1 << 28)
    }

    fn cuDeviceGetExecAffinitySupport(value: Out<c_int>, kind: cu::CUexecAffinityType, device: cu::CUdevice) {
        let _ = kind;
        driver()?.device(device)?;
        value.set(0)
    }

    fn cuDeviceCanAccessPeer(answer: Out<c_int>, device: cu::CUdevice, peer: cu::CUdevice) {
        let driver = driver()?;
        let (device, peer) = (driver.device(device)?, driver.device(peer)?);
        answer.set(c_int::from(device.reaches(peer)))
    }

    fn cuDeviceGetP2PAttribute(
        value: Out<c_int>,
        id: cu::CUdevice_P2PAttribute,
        from: cu::CUdevice,
        to: cu::CUdevice,
    ) {
        let driver = driver()?;
        let (from, to) = (driver.device(from)?, driver.device(to)?);
        if from.ordinal == to.ordinal {
            return Err(INVALID_DEVICE);
        }
        let reaches = c_int::from(from.reaches(to));
        value.set(match id {
            cu::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK => 0,
            cu::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED
            | cu::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
            | cu::CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED => reaches,
            cu::CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED => 0,
            _ => return Err(INVALID_VALUE),
        })
    }

    /// All atomics work everywhere: it is all one memory.
    fn cuDeviceGetP2PAtomicCapabilities(
        capabilities: Out<c_uint>,
        operations: In<cu::CUatomicOperation>,
        count: c_uint,
        from: cu::CUdevice,
        to: cu::CUdevice,
    ) {
        let driver = driver()?;
        driver.device(from).and(driver.device(to))?;
        atomic_capabilities(capabilities, operations, count)
    }

    fn cuDeviceGetHostAtomicCapabilities(
        capabilities: Out<c_uint>,
        operations: In<cu::CUatomicOperation>,
        count: c_uint,
        device: cu::CUdevice,
    ) {
        driver()?.device(device)?;
        atomic_capabilities(capabilities, operations, count)
    }

    fn cuDeviceGetLuid(luid: Out<c_char>, mask: Out<c_uint>, device: cu::CUdevice) {
        let _ = (luid, mask);
        driver()?.device(device)?;
        Err(NOT_SUPPORTED)
    }

    /// Graph memory is freed when its graph says so; nothing is kept.
    fn cuDeviceGraphMemTrim(device: cu::CUdevice) {
        driver()?.device(device).map(drop)
    }

    fn cuDeviceGetGraphMemAttribute(
        device: cu::CUdevice,
        id: cu::CUgraphMem_attribute,
        value: Out<std::ffi::c_void>,
    ) {
        driver()?.device(device)?;
        match id {
            cu::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT
            | cu::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH
            | cu::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT
            | cu::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH => value.cast::<u64>().set(0),
            _ => Err(INVALID_VALUE),
        }
    }

    /// Resets what is always 0.
    fn cuDeviceSetGraphMemAttribute(
        device: cu::CUdevice,
        id: cu::CUgraphMem_attribute,
        value: Out<std::ffi::c_void>,
    ) {
        driver()?.device(device)?;
        let high = matches!(
            id,
            cu::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH | cu::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH
        );
        if !high || value.cast::<u64>().get()? != 0 {
            return Err(INVALID_VALUE);
        }
        Ok(())
    }
}

fn atomic_capabilities(
    capabilities: Out<c_uint>,
    operations: In<cu::CUatomicOperation>,
    count: c_uint,
) -> crate::error::Result {
    let all = cu::CU_ATOMIC_CAPABILITY_SIGNED
        | cu::CU_ATOMIC_CAPABILITY_UNSIGNED
        | cu::CU_ATOMIC_CAPABILITY_SCALAR_32
        | cu::CU_ATOMIC_CAPABILITY_SCALAR_64;
    for (index, _) in operations.list(count as usize)?.iter().enumerate() {
        capabilities.set_at(index, all)?;
    }
    Ok(())
}
