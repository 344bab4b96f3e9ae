//! Device attributes. Numbers that shape programs (threads, shared memory, registers) are those of compute
//! capability 9.0; features that the software GPU lacks are 0.

use fermata_abi::sys::driver as cu;

use crate::device::Device;
use crate::error::{INVALID_VALUE, Result};
use crate::settings::MULTIPROCESSORS;

/// Threads a block may have.
pub const MAX_THREADS_PER_BLOCK: u32 = 1024;
/// Threads a multiprocessor holds.
pub const MAX_THREADS_PER_MULTIPROCESSOR: u32 = 2048;
/// Blocks a multiprocessor holds.
pub const MAX_BLOCKS_PER_MULTIPROCESSOR: u32 = 32;
/// Registers of a multiprocessor, all of which one block may have.
pub const REGISTERS: u32 = 65536;
/// Shared memory a block gets without asking for more.
pub const SHARED_PER_BLOCK: u32 = 48 << 10;
/// Shared memory a block may ask for.
pub const SHARED_PER_BLOCK_OPTIN: u32 = 227 << 10;
/// Shared memory of a multiprocessor.
pub const SHARED_PER_MULTIPROCESSOR: u32 = 228 << 10;
/// Shared memory the system takes of each block.
pub const SHARED_RESERVED: u32 = 1 << 10;
/// Lanes of a warp.
pub const WARP: u32 = 32;
/// Blocks in x, and in y and z.
pub const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];
/// Threads in x, y and z.
pub const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
/// Alignment of texture and array rows, also the pitch's.
pub const PITCH: u64 = 512;

/// Attributes that are constant.
static FIXED: &[(cu::CUdevice_attribute, i32)] = &[
    (
        cu::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
        MAX_THREADS_PER_BLOCK as i32,
    ),
    (cu::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, MAX_BLOCK[0] as i32),
    (cu::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, MAX_BLOCK[1] as i32),
    (cu::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, MAX_BLOCK[2] as i32),
    (cu::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, MAX_GRID[0] as i32),
    (cu::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, MAX_GRID[1] as i32),
    (cu::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, MAX_GRID[2] as i32),
    (
        cu::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK,
        SHARED_PER_BLOCK as i32,
    ),
    (cu::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536),
    (cu::CU_DEVICE_ATTRIBUTE_WARP_SIZE, WARP as i32),
    (cu::CU_DEVICE_ATTRIBUTE_MAX_PITCH, i32::MAX),
    (
        cu::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK,
        REGISTERS as i32,
    ),
    (cu::CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1_000_000),
    (cu::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, PITCH as i32),
    (cu::CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1),
    (
        cu::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
        MULTIPROCESSORS as i32,
    ),
    (cu::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1),
    (
        cu::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE,
        cu::CU_COMPUTEMODE_DEFAULT as i32,
    ),
    (cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH, 131072),
    (cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH, 131072),
    (cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT, 65536),
    (cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH, 16384),
    (cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT, 16384),
    (cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH, 16384),
    (
        cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH,
        32768,
    ),
    (
        cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT,
        32768,
    ),
    (
        cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS,
        2048,
    ),
    (cu::CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, PITCH as i32),
    (cu::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1),
    (cu::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1_000_000),
    (cu::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 128),
    (cu::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 8 << 20),
    (
        cu::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
        MAX_THREADS_PER_MULTIPROCESSOR as i32,
    ),
    (cu::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2),
    (cu::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1),
    (
        cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH,
        32768,
    ),
    (
        cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS,
        2048,
    ),
    (cu::CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32),
    (
        cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH,
        1 << 28,
    ),
    (
        cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH,
        131072,
    ),
    (
        cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT,
        65000,
    ),
    (
        cu::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH,
        2097120,
    ),
    (cu::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1),
    (cu::CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1),
    (cu::CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1),
    (
        cu::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
        SHARED_PER_MULTIPROCESSOR as i32,
    ),
    (
        cu::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR,
        REGISTERS as i32,
    ),
    (cu::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1),
    (cu::CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED, 1),
    (
        cu::CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO,
        2,
    ),
    (cu::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1),
    (cu::CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1),
    (cu::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1),
    (
        cu::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
        1,
    ),
    (cu::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 1),
    (cu::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 1),
    (cu::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1, 1),
    (cu::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1),
    (cu::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1),
    (
        cu::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        SHARED_PER_BLOCK_OPTIN as i32,
    ),
    (cu::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1),
    (
        cu::CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
        1,
    ),
    (
        cu::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        1,
    ),
    (
        cu::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        1,
    ),
    (
        cu::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR,
        MAX_BLOCKS_PER_MULTIPROCESSOR as i32,
    ),
    (
        cu::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK,
        SHARED_RESERVED as i32,
    ),
    (cu::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1),
    (cu::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1),
    (
        cu::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES,
        cu::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR as i32,
    ),
    (cu::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1),
    (cu::CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT, 1),
    (cu::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, 200),
    (cu::CU_DEVICE_ATTRIBUTE_NUMA_ID, -1),
    (cu::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0),
];

/// A device's answer to `cuDeviceGetAttribute`.
///
/// # Errors
/// There is no such attribute.
pub fn attribute(device: &Device, attribute: cu::CUdevice_attribute) -> Result<i32> {
    if attribute == 0 || attribute >= cu::CU_DEVICE_ATTRIBUTE_MAX {
        return Err(INVALID_VALUE);
    }
    let settings = &device.settings;
    Ok(match attribute {
        cu::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => settings.compute_capability.0 as i32,
        cu::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => settings.compute_capability.1 as i32,
        cu::CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT => i32::from(settings.kernel_limit > 0),
        cu::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => device.place() + 1,
        cu::CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID => device.place(),
        _ => FIXED
            .iter()
            .find(|(id, _)| *id == attribute)
            .map_or(0, |(_, value)| *value),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use std::sync::Arc;

    #[test]
    fn every_attribute_of_the_header_is_answered_and_no_other() {
        let device = Device::new(3, Arc::new(Settings::default()));
        for id in 1..cu::CU_DEVICE_ATTRIBUTE_MAX {
            assert!(attribute(&device, id).is_ok());
        }
        assert_eq!(
            attribute(&device, cu::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
            Ok(4)
        );
        assert_eq!(attribute(&device, 0), Err(INVALID_VALUE));
        assert_eq!(
            attribute(&device, cu::CU_DEVICE_ATTRIBUTE_MAX),
            Err(INVALID_VALUE)
        );
    }
}
