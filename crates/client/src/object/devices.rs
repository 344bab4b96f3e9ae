//! The devices that the program sees: those of its worker, which reads the same list of visible devices.

use fermata_abi::op::DeviceInfo;
use fermata_abi::sys::driver::{
    self as sys, CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE, CUdevice,
};

use crate::result::Result;

/// The visible devices, by ordinal.
#[derive(Debug)]
pub struct Devices {
    visible: Vec<Device>,
}

/// A visible device.
#[derive(Debug)]
pub struct Device {
    /// Its number in the worker.
    pub index: u32,
    /// Its name, attributes and other properties.
    pub info: DeviceInfo,
}

impl Devices {
    /// Those of the worker.
    pub fn new(all: Vec<DeviceInfo>) -> Self {
        let device = |(index, info)| Device {
            index: index as u32,
            info,
        };
        Self {
            visible: all.into_iter().enumerate().map(device).collect(),
        }
    }

    /// Number of visible devices.
    pub fn count(&self) -> usize {
        self.visible.len()
    }

    /// All of them, by ordinal.
    pub fn all(&self) -> &[Device] {
        &self.visible
    }

    /// The ordinal of a device, if the program may see it.
    pub fn ordinal(&self, index: u32) -> Result<CUdevice> {
        let ordinal = self.visible.iter().position(|it| it.index == index);
        ordinal
            .map(|it| it as CUdevice)
            .ok_or(CUDA_ERROR_INVALID_DEVICE)
    }

    /// The device of an ordinal.
    pub fn get(&self, ordinal: CUdevice) -> Result<&Device> {
        let ordinal = usize::try_from(ordinal).map_err(|_| CUDA_ERROR_INVALID_DEVICE)?;
        self.visible.get(ordinal).ok_or(CUDA_ERROR_INVALID_DEVICE)
    }
}

/// Features that devices have and this library does not support. They are reported as missing, so that programs do not
/// use them.
const WITHHELD: [u32; 20] = [
    sys::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
    sys::CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH,
    sys::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
    sys::CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
    sys::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
    sys::CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED,
    sys::CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED,
    sys::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
    sys::CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED,
    sys::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED,
    sys::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
    sys::CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS,
    sys::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED,
    sys::CU_DEVICE_ATTRIBUTE_D3D12_CIG_SUPPORTED,
    sys::CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK,
    sys::CU_DEVICE_ATTRIBUTE_VULKAN_CIG_SUPPORTED,
    sys::CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED,
    sys::CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED,
    sys::CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED,
    sys::CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED,
];

impl Device {
    /// A `CUdevice_attribute`.
    pub fn attribute(&self, id: u32) -> Result<i32> {
        match self.info.attributes.get(id as usize) {
            Some(&value)
                if value != i32::MIN
                    && id == sys::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES =>
            {
                Ok(value & sys::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR as i32)
            }
            Some(&value) if value != i32::MIN && WITHHELD.contains(&id) => Ok(0),
            Some(&value) if value != i32::MIN && id != 0 => Ok(value),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(count: u8) -> Vec<DeviceInfo> {
        let device = |n| DeviceInfo {
            name: format!("device {n}"),
            uuid: [0x10 + n; 16],
            memory: 0,
            bus_id: String::new(),
            attributes: vec![],
            peers: vec![],
            driver_version: 13000,
        };
        (0..count).map(device).collect()
    }

    #[test]
    fn what_the_library_refuses_no_device_offers() {
        let mut all = devices(1);
        all[0].attributes = vec![1; sys::CU_DEVICE_ATTRIBUTE_MAX as usize];
        let devices = Devices::new(all);
        let device = devices.get(0).expect("a device");
        let offers = |id| device.attribute(id);
        assert_eq!(offers(sys::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED), Ok(0));
        assert_eq!(offers(sys::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH), Ok(1));
    }
}
