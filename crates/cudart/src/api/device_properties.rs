//! `cudaDeviceProp` from the driver's attributes.
use core::ffi::c_int;

use fermata_abi::sys::driver as drv;
use fermata_abi::sys::runtime::cudaDeviceProp;

use crate::context;
use crate::driver::{self, Calls};
use crate::error::{Error, Result, export, get, put};

/// Attributes of one device; what the driver does not know is 0.
pub struct Attributes<'a> {
    /// The driver.
    pub calls: &'a Calls,
    /// The device.
    pub device: drv::CUdevice,
}

impl Attributes<'_> {
    /// One attribute.
    pub fn int(&self, attribute: drv::CUdevice_attribute) -> c_int {
        let mut value = 0;
        // SAFETY: writes one integer.
        let known = unsafe {
            self.calls
                .cuDeviceGetAttribute(&mut value, attribute, self.device)
        };
        known.map_or(0, |()| value)
    }

    fn size(&self, attribute: drv::CUdevice_attribute) -> usize {
        usize::try_from(self.int(attribute)).unwrap_or(0)
    }

    fn flags(&self, attribute: drv::CUdevice_attribute) -> u32 {
        self.int(attribute).cast_unsigned()
    }

    fn ints<const N: usize>(&self, attributes: [drv::CUdevice_attribute; N]) -> [c_int; N] {
        attributes.map(|attribute| self.int(attribute))
    }
}

/// Everything about the device with a number.
///
/// # Errors
/// `cudaErrorInvalidDevice` if there is no such device.
pub fn properties(ordinal: c_int) -> Result<cudaDeviceProp> {
    let calls = driver::get()?;
    let device = context::device(calls, ordinal)?;
    let mut to = cudaDeviceProp::default();
    identity(calls, device, &mut to)?;
    let of = Attributes { calls, device };
    limits(&of, &mut to);
    textures(&of, &mut to);
    features(&of, &mut to);
    Ok(to)
}

fn identity(calls: &Calls, device: drv::CUdevice, to: &mut cudaDeviceProp) -> Result {
    let length = to.name.len() as c_int;
    // SAFETY: places of the lengths given.
    unsafe {
        calls.cuDeviceGetName(to.name.as_mut_ptr(), length, device)?;
        calls.cuDeviceTotalMem_v2(&mut to.totalGlobalMem, device)?;
        let uuid: *mut drv::CUuuid = core::ptr::from_mut(&mut to.uuid).cast();
        if calls.cuDeviceGetUuid_v2(uuid, device).is_err() {
            to.uuid = Default::default();
        }
    }
    Ok(())
}

fn limits(of: &Attributes<'_>, to: &mut cudaDeviceProp) {
    to.major = of.int(drv::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    to.minor = of.int(drv::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    to.sharedMemPerBlock = of.size(drv::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
    to.regsPerBlock = of.int(drv::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
    to.warpSize = of.int(drv::CU_DEVICE_ATTRIBUTE_WARP_SIZE);
    to.memPitch = of.size(drv::CU_DEVICE_ATTRIBUTE_MAX_PITCH);
    to.maxThreadsPerBlock = of.int(drv::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    to.maxThreadsDim = of.ints([
        drv::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X,
        drv::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
        drv::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z,
    ]);
    to.maxGridSize = of.ints([
        drv::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
        drv::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
        drv::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z,
    ]);
    to.totalConstMem = of.size(drv::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
    to.multiProcessorCount = of.int(drv::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    to.maxThreadsPerMultiProcessor =
        of.int(drv::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
    to.maxBlocksPerMultiProcessor = of.int(drv::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
    to.sharedMemPerMultiprocessor =
        of.size(drv::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    to.regsPerMultiprocessor = of.int(drv::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
    to.sharedMemPerBlockOptin = of.size(drv::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    to.reservedSharedMemPerBlock =
        of.size(drv::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
    to.memoryBusWidth = of.int(drv::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
    to.l2CacheSize = of.int(drv::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
    to.persistingL2CacheMaxSize = of.int(drv::CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE);
    to.accessPolicyMaxWindowSize = of.int(drv::CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE);
    to.asyncEngineCount = of.int(drv::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
}

fn textures(of: &Attributes<'_>, to: &mut cudaDeviceProp) {
    to.textureAlignment = of.size(drv::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
    to.texturePitchAlignment = of.size(drv::CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT);
    to.surfaceAlignment = of.size(drv::CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT);
    to.maxTexture1D = of.int(drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH);
    to.maxTexture1DMipmap = of.int(drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH);
    to.maxTexture2D = of.ints([
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH,
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT,
    ]);
    to.maxTexture2DMipmap = of.ints([
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH,
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT,
    ]);
    to.maxTexture2DLinear = of.ints([
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH,
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT,
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH,
    ]);
    to.maxTexture2DGather = of.ints([
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH,
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_HEIGHT,
    ]);
    to.maxTexture3D = of.ints([
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH,
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT,
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH,
    ]);
    to.maxTexture3DAlt = of.ints([
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE,
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE,
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE,
    ]);
    to.maxTextureCubemap = of.int(drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH);
    to.maxTexture1DLayered = of.ints([
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH,
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS,
    ]);
    to.maxTexture2DLayered = of.ints([
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH,
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT,
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS,
    ]);
    to.maxTextureCubemapLayered = of.ints([
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH,
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS,
    ]);
    to.maxSurface1D = of.int(drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH);
    to.maxSurface2D = of.ints([
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH,
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT,
    ]);
    to.maxSurface3D = of.ints([
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH,
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT,
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH,
    ]);
    to.maxSurface1DLayered = of.ints([
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH,
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS,
    ]);
    to.maxSurface2DLayered = of.ints([
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH,
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT,
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS,
    ]);
    to.maxSurfaceCubemap = of.int(drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH);
    to.maxSurfaceCubemapLayered = of.ints([
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH,
        drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS,
    ]);
}

fn features(of: &Attributes<'_>, to: &mut cudaDeviceProp) {
    to.integrated = of.int(drv::CU_DEVICE_ATTRIBUTE_INTEGRATED);
    to.canMapHostMemory = of.int(drv::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
    to.concurrentKernels = of.int(drv::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS);
    to.ECCEnabled = of.int(drv::CU_DEVICE_ATTRIBUTE_ECC_ENABLED);
    to.pciBusID = of.int(drv::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
    to.pciDeviceID = of.int(drv::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
    to.pciDomainID = of.int(drv::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
    to.tccDriver = of.int(drv::CU_DEVICE_ATTRIBUTE_TCC_DRIVER);
    to.unifiedAddressing = of.int(drv::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
    to.streamPrioritiesSupported = of.int(drv::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED);
    to.globalL1CacheSupported = of.int(drv::CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED);
    to.localL1CacheSupported = of.int(drv::CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED);
    to.managedMemory = of.int(drv::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY);
    to.isMultiGpuBoard = of.int(drv::CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD);
    to.multiGpuBoardGroupID = of.int(drv::CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID);
    to.hostNativeAtomicSupported = of.int(drv::CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED);
    to.pageableMemoryAccess = of.int(drv::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS);
    to.concurrentManagedAccess = of.int(drv::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
    to.computePreemptionSupported = of.int(drv::CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED);
    to.canUseHostPointerForRegisteredMem =
        of.int(drv::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
    to.cooperativeLaunch = of.int(drv::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH);
    to.pageableMemoryAccessUsesHostPageTables =
        of.int(drv::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
    to.directManagedMemAccessFromHost =
        of.int(drv::CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST);
    to.hostRegisterSupported = of.int(drv::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
    to.sparseCudaArraySupported = of.int(drv::CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED);
    to.hostRegisterReadOnlySupported =
        of.int(drv::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
    to.timelineSemaphoreInteropSupported =
        of.int(drv::CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED);
    to.memoryPoolsSupported = of.int(drv::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
    to.gpuDirectRDMASupported = of.int(drv::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
    to.gpuDirectRDMAFlushWritesOptions =
        of.flags(drv::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
    to.gpuDirectRDMAWritesOrdering =
        of.int(drv::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
    to.memoryPoolSupportedHandleTypes =
        of.flags(drv::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES);
    to.deferredMappingCudaArraySupported =
        of.int(drv::CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED);
    to.ipcEventSupported = of.int(drv::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED);
    to.clusterLaunch = of.int(drv::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH);
    to.unifiedFunctionPointers = of.int(drv::CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS);
    to.deviceNumaConfig = of.int(drv::CU_DEVICE_ATTRIBUTE_NUMA_CONFIG);
    to.deviceNumaId = of.int(drv::CU_DEVICE_ATTRIBUTE_NUMA_ID);
    to.mpsEnabled = of.int(drv::CU_DEVICE_ATTRIBUTE_MPS_ENABLED);
    to.hostNumaId = of.int(drv::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
    to.gpuPciDeviceID = of.flags(drv::CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID);
    to.gpuPciSubsystemID = of.flags(drv::CU_DEVICE_ATTRIBUTE_GPU_PCI_SUBSYSTEM_ID);
    to.hostNumaMultinodeIpcSupported =
        of.int(drv::CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED);
}

export! {
    /// Everything about a device.
    fn cudaGetDeviceProperties(to: *mut cudaDeviceProp, device: c_int) {
        put(to, properties(device)?)
    }

    /// The device that comes closest to the properties wanted: enough of each, then most alike.
    fn cudaChooseDevice(device: *mut c_int, wanted: *const cudaDeviceProp) {
        let wanted = get(wanted)?;
        let mut count = 0;
        driver::get()?.cuDeviceGetCount(&mut count)?;
        let mut best: Option<(bool, c_int)> = None;
        for ordinal in 0..count {
            let has = properties(ordinal)?;
            let enough = has.totalGlobalMem >= wanted.totalGlobalMem
                && (has.major, has.minor) >= (wanted.major, wanted.minor)
                && has.multiProcessorCount >= wanted.multiProcessorCount
                && has.sharedMemPerBlock >= wanted.sharedMemPerBlock;
            if best.is_none_or(|(better, _)| enough && !better) {
                best = Some((enough, ordinal));
            }
        }
        let (_, ordinal) = best.ok_or(Error(fermata_abi::sys::runtime::cudaErrorNoDevice))?;
        put(device, ordinal)
    }
}
