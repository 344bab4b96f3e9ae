//! Exports whose signatures or structures were others in CUDA 12.
//!
//! They carry a prefix here; `tools/link-cudart.sh` gives them their names in `libcudart.so.12`, where
//! today's functions are called `..._v2` or `..._v3`.
use core::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use fermata_abi::sys::driver as drv;
use fermata_abi::sys::runtime::{
    cudaDeviceProp, cudaGraph_t, cudaGraphNode_t, cudaGraphNodeParams, cudaMemcpyAttributes,
    cudaMemoryAdvise, cudaStream_t, cudaStreamCaptureStatus, cudaUUID_t,
};

use crate::api::device_properties::{Attributes, properties};
use crate::api::memory::address;
use crate::api::{batch, graph_any};
use crate::context;
use crate::driver;
use crate::error::{Error, Result, export, put};

/// The version this library has under that name.
const VERSION: c_int = 12_090;

/// `cudaDeviceProp` as CUDA 12 lays it out.
#[repr(C)]
#[allow(non_snake_case, missing_docs)]
pub struct DeviceProp12 {
    name: [c_char; 256],
    uuid: cudaUUID_t,
    luid: [c_char; 8],
    luidDeviceNodeMask: c_uint,
    totalGlobalMem: usize,
    sharedMemPerBlock: usize,
    regsPerBlock: c_int,
    warpSize: c_int,
    memPitch: usize,
    maxThreadsPerBlock: c_int,
    maxThreadsDim: [c_int; 3],
    maxGridSize: [c_int; 3],
    clockRate: c_int,
    totalConstMem: usize,
    major: c_int,
    minor: c_int,
    textureAlignment: usize,
    texturePitchAlignment: usize,
    deviceOverlap: c_int,
    multiProcessorCount: c_int,
    kernelExecTimeoutEnabled: c_int,
    integrated: c_int,
    canMapHostMemory: c_int,
    computeMode: c_int,
    maxTexture1D: c_int,
    maxTexture1DMipmap: c_int,
    maxTexture1DLinear: c_int,
    maxTexture2D: [c_int; 2],
    maxTexture2DMipmap: [c_int; 2],
    maxTexture2DLinear: [c_int; 3],
    maxTexture2DGather: [c_int; 2],
    maxTexture3D: [c_int; 3],
    maxTexture3DAlt: [c_int; 3],
    maxTextureCubemap: c_int,
    maxTexture1DLayered: [c_int; 2],
    maxTexture2DLayered: [c_int; 3],
    maxTextureCubemapLayered: [c_int; 2],
    maxSurface1D: c_int,
    maxSurface2D: [c_int; 2],
    maxSurface3D: [c_int; 3],
    maxSurface1DLayered: [c_int; 2],
    maxSurface2DLayered: [c_int; 3],
    maxSurfaceCubemap: c_int,
    maxSurfaceCubemapLayered: [c_int; 2],
    surfaceAlignment: usize,
    concurrentKernels: c_int,
    ECCEnabled: c_int,
    pciBusID: c_int,
    pciDeviceID: c_int,
    pciDomainID: c_int,
    tccDriver: c_int,
    asyncEngineCount: c_int,
    unifiedAddressing: c_int,
    memoryClockRate: c_int,
    memoryBusWidth: c_int,
    l2CacheSize: c_int,
    persistingL2CacheMaxSize: c_int,
    maxThreadsPerMultiProcessor: c_int,
    streamPrioritiesSupported: c_int,
    globalL1CacheSupported: c_int,
    localL1CacheSupported: c_int,
    sharedMemPerMultiprocessor: usize,
    regsPerMultiprocessor: c_int,
    managedMemory: c_int,
    isMultiGpuBoard: c_int,
    multiGpuBoardGroupID: c_int,
    hostNativeAtomicSupported: c_int,
    singleToDoublePrecisionPerfRatio: c_int,
    pageableMemoryAccess: c_int,
    concurrentManagedAccess: c_int,
    computePreemptionSupported: c_int,
    canUseHostPointerForRegisteredMem: c_int,
    cooperativeLaunch: c_int,
    cooperativeMultiDeviceLaunch: c_int,
    sharedMemPerBlockOptin: usize,
    pageableMemoryAccessUsesHostPageTables: c_int,
    directManagedMemAccessFromHost: c_int,
    maxBlocksPerMultiProcessor: c_int,
    accessPolicyMaxWindowSize: c_int,
    reservedSharedMemPerBlock: usize,
    hostRegisterSupported: c_int,
    sparseCudaArraySupported: c_int,
    hostRegisterReadOnlySupported: c_int,
    timelineSemaphoreInteropSupported: c_int,
    memoryPoolsSupported: c_int,
    gpuDirectRDMASupported: c_int,
    gpuDirectRDMAFlushWritesOptions: c_uint,
    gpuDirectRDMAWritesOrdering: c_int,
    memoryPoolSupportedHandleTypes: c_uint,
    deferredMappingCudaArraySupported: c_int,
    ipcEventSupported: c_int,
    clusterLaunch: c_int,
    unifiedFunctionPointers: c_int,
    reserved: [c_int; 63],
}

/// The fields both versions have, moved over, and those that only CUDA 12 has.
macro_rules! device_prop_12 {
    ($p:ident, $of:ident, [$($same:ident)*], [$($only:ident: $attribute:ident)*]) => {
        DeviceProp12 {
            $($same: $p.$same,)*
            $($only: $of.int(drv::$attribute),)*
            maxTexture1DLinear: $of.int(drv::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH),
            reserved: [0; 63],
        }
    };
}

fn device_prop(p: cudaDeviceProp, of: &Attributes<'_>) -> DeviceProp12 {
    device_prop_12!(
        p,
        of,
        [name uuid luid luidDeviceNodeMask totalGlobalMem sharedMemPerBlock regsPerBlock warpSize
         memPitch maxThreadsPerBlock maxThreadsDim maxGridSize totalConstMem major minor
         textureAlignment texturePitchAlignment multiProcessorCount integrated canMapHostMemory
         maxTexture1D maxTexture1DMipmap maxTexture2D maxTexture2DMipmap maxTexture2DLinear
         maxTexture2DGather maxTexture3D maxTexture3DAlt maxTextureCubemap maxTexture1DLayered
         maxTexture2DLayered maxTextureCubemapLayered maxSurface1D maxSurface2D maxSurface3D
         maxSurface1DLayered maxSurface2DLayered maxSurfaceCubemap maxSurfaceCubemapLayered
         surfaceAlignment concurrentKernels ECCEnabled pciBusID pciDeviceID pciDomainID tccDriver
         asyncEngineCount unifiedAddressing memoryBusWidth l2CacheSize persistingL2CacheMaxSize
         maxThreadsPerMultiProcessor streamPrioritiesSupported globalL1CacheSupported
         localL1CacheSupported sharedMemPerMultiprocessor regsPerMultiprocessor managedMemory
         isMultiGpuBoard multiGpuBoardGroupID hostNativeAtomicSupported pageableMemoryAccess
         concurrentManagedAccess computePreemptionSupported canUseHostPointerForRegisteredMem
         cooperativeLaunch sharedMemPerBlockOptin pageableMemoryAccessUsesHostPageTables
         directManagedMemAccessFromHost maxBlocksPerMultiProcessor accessPolicyMaxWindowSize
         reservedSharedMemPerBlock hostRegisterSupported sparseCudaArraySupported
         hostRegisterReadOnlySupported timelineSemaphoreInteropSupported memoryPoolsSupported
         gpuDirectRDMASupported gpuDirectRDMAFlushWritesOptions gpuDirectRDMAWritesOrdering
         memoryPoolSupportedHandleTypes deferredMappingCudaArraySupported ipcEventSupported
         clusterLaunch unifiedFunctionPointers],
        [clockRate: CU_DEVICE_ATTRIBUTE_CLOCK_RATE
         deviceOverlap: CU_DEVICE_ATTRIBUTE_GPU_OVERLAP
         kernelExecTimeoutEnabled: CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT
         computeMode: CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
         memoryClockRate: CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE
         singleToDoublePrecisionPerfRatio: CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO
         cooperativeMultiDeviceLaunch: CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH]
    )
}

/// A device number as a place; the host is -1.
fn place(device: c_int) -> drv::CUmemLocation {
    match device {
        -1 => drv::CUmemLocation {
            type_: drv::CU_MEM_LOCATION_TYPE_HOST,
            id: 0,
        },
        id => drv::CUmemLocation {
            type_: drv::CU_MEM_LOCATION_TYPE_DEVICE,
            id,
        },
    }
}

/// The null stream of a program built with per-thread default streams.
fn own(stream: cudaStream_t) -> cudaStream_t {
    if stream.is_null() {
        core::ptr::without_provenance_mut(2)
    } else {
        stream
    }
}

fn prefetch(start: *const c_void, count: usize, device: c_int, stream: cudaStream_t) -> Result {
    let calls = context::ready()?;
    // SAFETY: the driver checks the range and the stream.
    unsafe { calls.cuMemPrefetchAsync_v2(address(start), count, place(device), 0, stream.cast()) }
}

/// # Safety
/// The places are null or writable.
unsafe fn capture_info(
    stream: cudaStream_t,
    status: *mut cudaStreamCaptureStatus,
    id: *mut c_ulonglong,
    graph: *mut cudaGraph_t,
    nodes: *mut *const cudaGraphNode_t,
    count: *mut usize,
) -> Result {
    if status.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let calls = context::ready()?;
    let (stream, graph, nodes) = (stream.cast(), graph.cast(), nodes.cast());
    // SAFETY: the caller's promise.
    unsafe { calls.cuStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count) }
}

fn update(
    stream: cudaStream_t,
    nodes: *mut cudaGraphNode_t,
    count: usize,
    flags: c_uint,
) -> Result {
    let calls = context::ready()?;
    let (stream, nodes, edges) = (stream.cast(), nodes.cast(), core::ptr::null());
    // SAFETY: the program's array of `count` nodes.
    unsafe { calls.cuStreamUpdateCaptureDependencies_v2(stream, nodes, edges, count, flags) }
}

export! {
    /// Everything about a device.
    fn fermata12_cudaGetDeviceProperties_v2(to: *mut DeviceProp12, device: c_int) {
        let found = properties(device)?;
        let calls = driver::get()?;
        let device = context::device(calls, device)?;
        put(to, device_prop(found, &Attributes { calls, device }))
    }

    /// The layout of CUDA 11, which no header of CUDA 12 leads to.
    fn fermata12_cudaGetDeviceProperties(_to: *mut c_void, _device: c_int) {
        Err(Error::NOT_SUPPORTED)
    }

    /// The version of this runtime.
    fn fermata12_cudaRuntimeGetVersion(version: *mut c_int) {
        put(version, VERSION)
    }

    /// Tells how managed memory will be used.
    fn fermata12_cudaMemAdvise(
        start: *const c_void,
        count: usize,
        advice: cudaMemoryAdvise,
        device: c_int,
    ) {
        context::ready()?.cuMemAdvise_v2(address(start), count, advice, place(device))
    }

    /// Moves managed memory in stream order.
    fn fermata12_cudaMemPrefetchAsync(
        start: *const c_void,
        count: usize,
        device: c_int,
        stream: cudaStream_t,
    ) {
        prefetch(start, count, device, stream)
    }

    /// The same for programs built with per-thread default streams.
    fn fermata12_cudaMemPrefetchAsync_ptsz(
        start: *const c_void,
        count: usize,
        device: c_int,
        stream: cudaStream_t,
    ) {
        prefetch(start, count, device, own(stream))
    }

    /// Whether a stream records, and the number of the recording.
    fn fermata12_cudaStreamGetCaptureInfo(
        stream: cudaStream_t,
        status: *mut cudaStreamCaptureStatus,
        id: *mut c_ulonglong,
    ) {
        let none = core::ptr::null_mut();
        capture_info(stream, status, id, none, core::ptr::null_mut(), core::ptr::null_mut())
    }

    /// The same for programs built with per-thread default streams.
    fn fermata12_cudaStreamGetCaptureInfo_ptsz(
        stream: cudaStream_t,
        status: *mut cudaStreamCaptureStatus,
        id: *mut c_ulonglong,
    ) {
        let none = core::ptr::null_mut();
        capture_info(own(stream), status, id, none, core::ptr::null_mut(), core::ptr::null_mut())
    }

    /// What a stream records into, and what its next node depends on.
    fn fermata12_cudaStreamGetCaptureInfo_v2(
        stream: cudaStream_t,
        status: *mut cudaStreamCaptureStatus,
        id: *mut c_ulonglong,
        graph: *mut cudaGraph_t,
        nodes: *mut *const cudaGraphNode_t,
        count: *mut usize,
    ) {
        capture_info(stream, status, id, graph, nodes, count)
    }

    /// The same for programs built with per-thread default streams.
    fn fermata12_cudaStreamGetCaptureInfo_v2_ptsz(
        stream: cudaStream_t,
        status: *mut cudaStreamCaptureStatus,
        id: *mut c_ulonglong,
        graph: *mut cudaGraph_t,
        nodes: *mut *const cudaGraphNode_t,
        count: *mut usize,
    ) {
        capture_info(own(stream), status, id, graph, nodes, count)
    }

    /// Changes what the next recorded node depends on.
    fn fermata12_cudaStreamUpdateCaptureDependencies(
        stream: cudaStream_t,
        nodes: *mut cudaGraphNode_t,
        count: usize,
        flags: c_uint,
    ) {
        update(stream, nodes, count, flags)
    }

    /// The same for programs built with per-thread default streams.
    fn fermata12_cudaStreamUpdateCaptureDependencies_ptsz(
        stream: cudaStream_t,
        nodes: *mut cudaGraphNode_t,
        count: usize,
        flags: c_uint,
    ) {
        update(own(stream), nodes, count, flags)
    }

    /// The edges of a graph.
    fn fermata12_cudaGraphGetEdges(
        graph: cudaGraph_t,
        from: *mut cudaGraphNode_t,
        to: *mut cudaGraphNode_t,
        count: *mut usize,
    ) {
        context::ready()?.cuGraphGetEdges(graph.cast(), from.cast(), to.cast(), count)
    }

    /// The nodes that a node waits for.
    fn fermata12_cudaGraphNodeGetDependencies(
        node: cudaGraphNode_t,
        nodes: *mut cudaGraphNode_t,
        count: *mut usize,
    ) {
        context::ready()?.cuGraphNodeGetDependencies(node.cast(), nodes.cast(), count)
    }

    /// The nodes that wait for a node.
    fn fermata12_cudaGraphNodeGetDependentNodes(
        node: cudaGraphNode_t,
        nodes: *mut cudaGraphNode_t,
        count: *mut usize,
    ) {
        context::ready()?.cuGraphNodeGetDependentNodes(node.cast(), nodes.cast(), count)
    }

    /// Adds edges.
    fn fermata12_cudaGraphAddDependencies(
        graph: cudaGraph_t,
        from: *const cudaGraphNode_t,
        to: *const cudaGraphNode_t,
        count: usize,
    ) {
        context::ready()?.cuGraphAddDependencies(graph.cast(), from.cast(), to.cast(), count)
    }

    /// Removes edges.
    fn fermata12_cudaGraphRemoveDependencies(
        graph: cudaGraph_t,
        from: *const cudaGraphNode_t,
        to: *const cudaGraphNode_t,
        count: usize,
    ) {
        context::ready()?.cuGraphRemoveDependencies(graph.cast(), from.cast(), to.cast(), count)
    }

    /// Adds a node of any kind.
    fn fermata12_cudaGraphAddNode(
        node: *mut cudaGraphNode_t,
        graph: cudaGraph_t,
        after: *const cudaGraphNode_t,
        count: usize,
        parameters: *mut cudaGraphNodeParams,
    ) {
        graph_any::add(node, graph, after, core::ptr::null(), count, parameters)
    }

    /// Copies in stream order, in any order among themselves; which one failed is not told.
    fn fermata12_cudaMemcpyBatchAsync(
        to: *const *mut c_void,
        from: *const *const c_void,
        sizes: *const usize,
        count: usize,
        attributes: *mut cudaMemcpyAttributes,
        indices: *mut usize,
        attribute_count: usize,
        failed: *mut usize,
        stream: cudaStream_t,
    ) {
        if !failed.is_null() {
            put(failed, usize::MAX)?;
        }
        batch::copy(to, from, sizes, count, (attributes, indices, attribute_count), stream)
    }

    /// The same for programs built with per-thread default streams.
    fn fermata12_cudaMemcpyBatchAsync_ptsz(
        to: *const *mut c_void,
        from: *const *const c_void,
        sizes: *const usize,
        count: usize,
        attributes: *mut cudaMemcpyAttributes,
        indices: *mut usize,
        attribute_count: usize,
        failed: *mut usize,
        stream: cudaStream_t,
    ) {
        if !failed.is_null() {
            put(failed, usize::MAX)?;
        }
        batch::copy(to, from, sizes, count, (attributes, indices, attribute_count), own(stream))
    }
}

const _: () = assert!(size_of::<DeviceProp12>() == 1032);
const _: () = assert!(core::mem::offset_of!(DeviceProp12, totalConstMem) == 352);
const _: () = assert!(core::mem::offset_of!(DeviceProp12, reserved) == 780);
