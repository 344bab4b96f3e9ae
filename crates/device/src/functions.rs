//! The table of driver functions, looked up once when the library is opened.
//!
//! Names are the exported symbols with their versions, so that each entry's type is certain. Functions
//! whose arguments are all plain values are safe to call here: the driver checks its handles and answers
//! a stale one with an error. Those that take pointers are unsafe.
#![allow(non_snake_case, clippy::too_many_arguments)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;

use fermata_abi::sys::driver::*;
use libloading::os::unix::Library;

use crate::{DriverError, LoadError};

type GetProcAddress =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut u32) -> CUresult;

/// The newest version whose functions are named in this file.
const API_VERSION: c_int = 12080;

fn find(library: &Library, name: &'static str) -> Option<*mut c_void> {
    // SAFETY: the symbol is only read as an address; its type is given by the table below.
    let symbol = unsafe { library.get::<*mut c_void>(name.as_bytes()) };
    if let Ok(symbol) = symbol {
        return Some(symbol.into_raw());
    }
    if name.contains("_v") {
        return None;
    }
    let base = std::ffi::CString::new(name).ok()?;
    // SAFETY: cuGetProcAddress_v2 has this type since CUDA 12.0.
    let lookup = unsafe { library.get::<GetProcAddress>(b"cuGetProcAddress_v2") }.ok()?;
    let mut found = std::ptr::null_mut();
    let mut status = 0;
    // SAFETY: all pointers refer to live locals.
    let code = unsafe { lookup(base.as_ptr(), &mut found, API_VERSION, 0, &mut status) };
    (code == CUDA_SUCCESS && !found.is_null()).then_some(found)
}

macro_rules! functions {
    (
        plain { $($plain:ident($($parg:ident: $pty:ty),*);)* }
        pointers { $($name:ident($($arg:ident: $ty:ty),*);)* }
        optional { $($optional:ident($($oarg:ident: $oty:ty),*);)* }
    ) => {
        /// Addresses of the driver's functions.
        pub(crate) struct Functions {
            $($plain: unsafe extern "C" fn($($pty),*) -> CUresult,)*
            $($name: unsafe extern "C" fn($($ty),*) -> CUresult,)*
            $($optional: Option<unsafe extern "C" fn($($oty),*) -> CUresult>,)*
            cuGetErrorName: unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult,
        }

        impl Functions {
            pub(crate) fn load(library: &Library, path: &Path) -> Result<Self, LoadError> {
                let missing = |name| LoadError::Missing { path: path.to_owned(), name };
                let error_name = find(library, "cuGetErrorName").ok_or_else(|| missing("cuGetErrorName"))?;
                Ok(Self {
                    // SAFETY: the symbol of this name has this type in every driver.
                    cuGetErrorName: unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult>(error_name)
                    },
                    $($plain: {
                        let found = find(library, stringify!($plain));
                        let found = found.ok_or_else(|| missing(stringify!($plain)))?;
                        // SAFETY: the symbol of this name has this type in every driver.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($pty),*) -> CUresult>(found) }
                    },)*
                    $($name: {
                        let found = find(library, stringify!($name));
                        let found = found.ok_or_else(|| missing(stringify!($name)))?;
                        // SAFETY: the symbol of this name has this type in every driver.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> CUresult>(found) }
                    },)*
                    $($optional: find(library, stringify!($optional)).map(|found| {
                        // SAFETY: the symbol of this name has this type in every driver that has it.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($oty),*) -> CUresult>(found) }
                    }),)*
                })
            }

            $(
                pub(crate) fn $plain(&self, $($parg: $pty),*) -> Result<(), DriverError> {
                    // SAFETY: arguments are plain values; the driver validates handles and addresses.
                    let code = unsafe { (self.$plain)($($parg),*) };
                    self.check(stringify!($plain), code)
                }
            )*
            $(
                /// # Safety
                /// Pointers must be valid as the driver's documentation of the function asks.
                pub(crate) unsafe fn $name(&self, $($arg: $ty),*) -> Result<(), DriverError> {
                    // SAFETY: the caller vouches for the pointers.
                    let code = unsafe { (self.$name)($($arg),*) };
                    self.check(stringify!($name), code)
                }
            )*
            $(
                /// # Safety
                /// Pointers must be valid as the driver's documentation of the function asks.
                pub(crate) unsafe fn $optional(&self, $($oarg: $oty),*) -> Result<(), DriverError> {
                    let Some(function) = self.$optional else {
                        return Err(DriverError {
                            call: stringify!($optional),
                            code: CUDA_ERROR_NOT_SUPPORTED,
                            name: "this driver has no such function".into(),
                        });
                    };
                    // SAFETY: the caller vouches for the pointers.
                    let code = unsafe { function($($oarg),*) };
                    self.check(stringify!($optional), code)
                }
            )*
        }
    };
}

impl Functions {
    /// Whether the driver can checkpoint a process by its number (570 and newer).
    pub(crate) fn has_process_checkpoint(&self) -> bool {
        self.cuCheckpointProcessLock.is_some() && self.cuCheckpointProcessGetState.is_some()
    }

    #[inline]
    fn check(&self, call: &'static str, code: CUresult) -> Result<(), DriverError> {
        if code == CUDA_SUCCESS {
            return Ok(());
        }
        // While the device works this is asked again and again: who asks later learns later that it is done.
        let name = if code == CUDA_ERROR_NOT_READY {
            "CUDA_ERROR_NOT_READY".into()
        } else {
            self.error_name(code).into()
        };
        Err(DriverError { call, code, name })
    }

    #[cold]
    fn error_name(&self, code: CUresult) -> String {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the driver writes the address of a string of its own, which lives as long as it does.
        if unsafe { (self.cuGetErrorName)(code, &mut text) } != CUDA_SUCCESS || text.is_null() {
            return "an unknown error".to_owned();
        }
        // SAFETY: as above; the string ends with NUL.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    }
}

functions! {
    plain {
        cuInit(flags: c_uint);
        cuDevicePrimaryCtxRelease_v2(device: CUdevice);
        cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint);
        cuCtxDestroy_v2(context: CUcontext);
        cuCtxSetCurrent(context: CUcontext);
        cuCtxSynchronize();
        cuCtxSetLimit(limit: CUlimit, value: usize);
        cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint);
        cuCtxDisablePeerAccess(peer: CUcontext);
        cuModuleUnload(module: CUmodule);
        cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: c_int);
        cuFuncLoad(function: CUfunction);
        cuMemAddressFree(address: CUdeviceptr, size: usize);
        cuMemRelease(memory: CUmemGenericAllocationHandle);
        cuMemMap(address: CUdeviceptr, size: usize, offset: usize, memory: CUmemGenericAllocationHandle, flags: u64);
        cuMemUnmap(address: CUdeviceptr, size: usize);
        cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, len: usize, stream: CUstream);
        cuMemsetD2D8Async(address: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream);
        cuMemsetD2D16Async(address: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize, stream: CUstream);
        cuMemsetD2D32Async(address: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize, stream: CUstream);
        cuMemsetD8Async(address: CUdeviceptr, value: u8, count: usize, stream: CUstream);
        cuMemsetD16Async(address: CUdeviceptr, value: u16, count: usize, stream: CUstream);
        cuMemsetD32Async(address: CUdeviceptr, value: u32, count: usize, stream: CUstream);
        cuArrayDestroy(array: CUarray);
        cuStreamDestroy_v2(stream: CUstream);
        cuStreamSynchronize(stream: CUstream);
        cuStreamQuery(stream: CUstream);
        cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
        cuStreamWriteValue32_v2(stream: CUstream, address: CUdeviceptr, value: u32, flags: c_uint);
        cuStreamWriteValue64_v2(stream: CUstream, address: CUdeviceptr, value: u64, flags: c_uint);
        cuStreamWaitValue32_v2(stream: CUstream, address: CUdeviceptr, value: u32, flags: c_uint);
        cuStreamWaitValue64_v2(stream: CUstream, address: CUdeviceptr, value: u64, flags: c_uint);
        cuEventDestroy_v2(event: CUevent);
        cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: c_uint);
        cuEventQuery(event: CUevent);
        cuEventSynchronize(event: CUevent);
        cuGraphDestroy(graph: CUgraph);
        cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
        cuGraphExecDestroy(exec: CUgraphExec);
    }
    pointers {
        cuDriverGetVersion(version: *mut c_int);
        cuDeviceGetCount(count: *mut c_int);
        cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
        cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
        cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice);
        cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
        cuDeviceGetPCIBusId(text: *mut c_char, len: c_int, device: CUdevice);
        cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
        cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice);
        cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
        cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice);
        cuCtxGetLimit(value: *mut usize, limit: CUlimit);
        cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
        cuModuleLoadDataEx(module: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut CUjit_option, values: *mut *mut c_void);
        cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
        cuModuleGetGlobal_v2(address: *mut CUdeviceptr, size: *mut usize, module: CUmodule, name: *const c_char);
        cuFuncGetAttribute(value: *mut c_int, attribute: CUfunction_attribute, function: CUfunction);
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks: *mut c_int, function: CUfunction, block: c_int, shared: usize, flags: c_uint);
        cuMemAddressReserve(address: *mut CUdeviceptr, size: usize, align: usize, fixed: CUdeviceptr, flags: u64);
        cuMemCreate(memory: *mut CUmemGenericAllocationHandle, size: usize, properties: *const CUmemAllocationProp, flags: u64);
        cuMemExportToShareableHandle(shareable: *mut c_void, memory: CUmemGenericAllocationHandle, kind: CUmemAllocationHandleType, flags: u64);
        cuMemImportFromShareableHandle(memory: *mut CUmemGenericAllocationHandle, shareable: *mut c_void, kind: CUmemAllocationHandleType);
        cuMemGetAllocationPropertiesFromHandle(properties: *mut CUmemAllocationProp, memory: CUmemGenericAllocationHandle);
        cuMemSetAccess(address: CUdeviceptr, size: usize, access: *const CUmemAccessDesc, count: usize);
        cuMemGetAllocationGranularity(granularity: *mut usize, properties: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags);
        cuMemHostAlloc(address: *mut *mut c_void, size: usize, flags: c_uint);
        cuMemHostRegister_v2(address: *mut c_void, size: usize, flags: c_uint);
        cuMemHostUnregister(address: *mut c_void);
        cuMemHostGetDevicePointer_v2(device: *mut CUdeviceptr, host: *mut c_void, flags: c_uint);
        cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, len: usize, stream: CUstream);
        cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, len: usize, stream: CUstream);
        cuMemcpy3DAsync_v2(copy: *const CUDA_MEMCPY3D, stream: CUstream);
        cuArray3DCreate_v2(array: *mut CUarray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR);
        cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
        cuEventCreate(event: *mut CUevent, flags: c_uint);
        cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
        cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void);
        cuLaunchKernelEx(config: *const CUlaunchConfig, function: CUfunction, params: *mut *mut c_void, extra: *mut *mut c_void);
        cuLaunchKernel(function: CUfunction, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void);
        cuGraphCreate(graph: *mut CUgraph, flags: c_uint);
        cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: u64);
        cuGraphExecKernelNodeSetParams_v2(exec: CUgraphExec, node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS);
        cuGraphChildGraphNodeGetGraph(node: CUgraphNode, graph: *mut CUgraph);
        cuGraphNodeFindInClone(node: *mut CUgraphNode, original: CUgraphNode, clone: CUgraph);
        cuGraphExecUpdate_v2(exec: CUgraphExec, graph: CUgraph, result: *mut CUgraphExecUpdateResultInfo);
        cuGraphAddKernelNode_v2(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, params: *const CUDA_KERNEL_NODE_PARAMS);
        cuGraphAddMemcpyNode(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, params: *const CUDA_MEMCPY3D, context: CUcontext);
        cuGraphAddMemsetNode(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, params: *const CUDA_MEMSET_NODE_PARAMS, context: CUcontext);
        cuGraphAddHostNode(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, params: *const CUDA_HOST_NODE_PARAMS);
        cuGraphAddChildGraphNode(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, child: CUgraph);
        cuGraphAddEmptyNode(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize);
        cuGraphAddEventRecordNode(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, event: CUevent);
        cuGraphAddEventWaitNode(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, event: CUevent);
    }
    optional {
        cuGetExportTable(table: *mut *const c_void, id: *const CUuuid);
        cuPointerGetAttribute(value: *mut c_void, attribute: CUpointer_attribute, address: CUdeviceptr);
        cuCtxGetCurrent(context: *mut CUcontext);
        cuDevicePrimaryCtxGetState(device: CUdevice, flags: *mut c_uint, active: *mut c_int);
        cuOccupancyMaxPotentialBlockSizeWithFlags(grid: *mut c_int, block: *mut c_int, function: CUfunction, shared_of: CUoccupancyB2DSize, shared: usize, limit: c_int, flags: c_uint);
        cuOccupancyAvailableDynamicSMemPerBlock(bytes: *mut usize, function: CUfunction, blocks: c_int, block: c_int);
        cuOccupancyMaxActiveClusters(clusters: *mut c_int, function: CUfunction, config: *const CUlaunchConfig);
        cuOccupancyMaxPotentialClusterSize(size: *mut c_int, function: CUfunction, config: *const CUlaunchConfig);
        cuDeviceGetP2PAtomicCapabilities(capabilities: *mut c_uint, operations: *const CUatomicOperation, count: c_uint, from: CUdevice, to: CUdevice);
        cuDeviceGetHostAtomicCapabilities(capabilities: *mut c_uint, operations: *const CUatomicOperation, count: c_uint, device: CUdevice);
        cuDeviceGetTexture1DLinearMaxWidth(width: *mut usize, format: CUarray_format, channels: c_uint, device: CUdevice);
        cuLinkCreate_v2(count: c_uint, options: *mut CUjit_option, values: *mut *mut c_void, state: *mut CUlinkState);
        cuLinkAddData_v2(state: CUlinkState, kind: CUjitInputType, data: *mut c_void, size: usize, name: *const c_char, count: c_uint, options: *mut CUjit_option, values: *mut *mut c_void);
        cuLinkComplete(state: CUlinkState, image: *mut *mut c_void, size: *mut usize);
        cuLinkDestroy(state: CUlinkState);
        cuTexObjectCreate(texture: *mut CUtexObject, resource: *const CUDA_RESOURCE_DESC, sampler: *const CUDA_TEXTURE_DESC, view: *const CUDA_RESOURCE_VIEW_DESC);
        cuTexObjectDestroy(texture: CUtexObject);
        cuSurfObjectCreate(surface: *mut CUsurfObject, resource: *const CUDA_RESOURCE_DESC);
        cuSurfObjectDestroy(surface: CUsurfObject);
        cuMipmappedArrayCreate(mipmap: *mut CUmipmappedArray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR, levels: c_uint);
        cuMipmappedArrayGetLevel(array: *mut CUarray, mipmap: CUmipmappedArray, level: c_uint);
        cuMipmappedArrayDestroy(mipmap: CUmipmappedArray);
        cuModuleGetTexRef(reference: *mut CUtexref, module: CUmodule, name: *const c_char);
        cuModuleGetSurfRef(reference: *mut CUsurfref, module: CUmodule, name: *const c_char);
        cuSurfRefSetArray(reference: CUsurfref, array: CUarray, flags: c_uint);
        cuTexRefSetArray(reference: CUtexref, array: CUarray, flags: c_uint);
        cuTexRefSetMipmappedArray(reference: CUtexref, array: CUmipmappedArray, flags: c_uint);
        cuTexRefSetAddress_v2(offset: *mut usize, reference: CUtexref, address: CUdeviceptr, bytes: usize);
        cuTexRefSetAddress2D_v3(reference: CUtexref, descriptor: *const CUDA_ARRAY_DESCRIPTOR, address: CUdeviceptr, pitch: usize);
        cuTexRefSetFormat(reference: CUtexref, format: CUarray_format, channels: c_int);
        cuTexRefGetFormat(format: *mut CUarray_format, channels: *mut c_int, reference: CUtexref);
        cuTexRefSetAddressMode(reference: CUtexref, dimension: c_int, mode: CUaddress_mode);
        cuTexRefGetAddressMode(mode: *mut CUaddress_mode, reference: CUtexref, dimension: c_int);
        cuTexRefSetFilterMode(reference: CUtexref, mode: CUfilter_mode);
        cuTexRefGetFilterMode(mode: *mut CUfilter_mode, reference: CUtexref);
        cuTexRefSetMipmapFilterMode(reference: CUtexref, mode: CUfilter_mode);
        cuTexRefGetMipmapFilterMode(mode: *mut CUfilter_mode, reference: CUtexref);
        cuTexRefSetMipmapLevelBias(reference: CUtexref, bias: f32);
        cuTexRefGetMipmapLevelBias(bias: *mut f32, reference: CUtexref);
        cuTexRefSetMipmapLevelClamp(reference: CUtexref, least: f32, most: f32);
        cuTexRefGetMipmapLevelClamp(least: *mut f32, most: *mut f32, reference: CUtexref);
        cuTexRefSetMaxAnisotropy(reference: CUtexref, most: c_uint);
        cuTexRefGetMaxAnisotropy(most: *mut c_int, reference: CUtexref);
        cuTexRefSetBorderColor(reference: CUtexref, color: *mut f32);
        cuTexRefGetBorderColor(color: *mut f32, reference: CUtexref);
        cuTexRefSetFlags(reference: CUtexref, flags: c_uint);
        cuTexRefGetFlags(flags: *mut c_uint, reference: CUtexref);
        cuTensorMapEncodeTiled(map: *mut CUtensorMap, data_type: CUtensorMapDataType, rank: u32, address: *mut c_void, dims: *const u64, strides: *const u64, box_dims: *const u32, steps: *const u32, interleave: CUtensorMapInterleave, swizzle: CUtensorMapSwizzle, promotion: CUtensorMapL2promotion, fill: CUtensorMapFloatOOBfill);
        cuTensorMapEncodeIm2col(map: *mut CUtensorMap, data_type: CUtensorMapDataType, rank: u32, address: *mut c_void, dims: *const u64, strides: *const u64, lower: *const c_int, upper: *const c_int, channels: u32, pixels: u32, steps: *const u32, interleave: CUtensorMapInterleave, swizzle: CUtensorMapSwizzle, promotion: CUtensorMapL2promotion, fill: CUtensorMapFloatOOBfill);
        cuTensorMapEncodeIm2colWide(map: *mut CUtensorMap, data_type: CUtensorMapDataType, rank: u32, address: *mut c_void, dims: *const u64, strides: *const u64, lower: c_int, upper: c_int, channels: u32, pixels: u32, steps: *const u32, interleave: CUtensorMapInterleave, mode: CUtensorMapIm2ColWideMode, swizzle: CUtensorMapSwizzle, promotion: CUtensorMapL2promotion, fill: CUtensorMapFloatOOBfill);
        cuTensorMapReplaceAddress(map: *mut CUtensorMap, address: *mut c_void);
        cuIpcGetEventHandle(handle: *mut CUipcEventHandle, event: CUevent);
        cuIpcOpenEventHandle(event: *mut CUevent, handle: CUipcEventHandle);
        cuFuncGetParamInfo(function: CUfunction, index: usize, offset: *mut usize, size: *mut usize);
        cuModuleGetFunctionCount(count: *mut c_uint, module: CUmodule);
        cuModuleEnumerateFunctions(functions: *mut CUfunction, count: c_uint, module: CUmodule);
        cuFuncGetName(name: *mut *const c_char, function: CUfunction);
        cuGraphKernelNodeSetAttribute(node: CUgraphNode, id: CUlaunchAttributeID, value: *const CUlaunchAttributeValue);
        cuGraphAddDependencies_v2(graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, data: *const CUgraphEdgeData, count: usize);
        cuGraphConditionalHandleCreate(handle: *mut CUgraphConditionalHandle, graph: CUgraph, context: CUcontext, default: c_uint, flags: c_uint);
        cuGraphAddNode_v2(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, data: *const CUgraphEdgeData, count: usize, params: *mut CUgraphNodeParams);
        cuGraphAddBatchMemOpNode(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS);
        cuDeviceGetDevResource(device: CUdevice, resource: *mut CUdevResource, kind: CUdevResourceType);
        cuGreenCtxGetDevResource(green: CUgreenCtx, resource: *mut CUdevResource, kind: CUdevResourceType);
        cuDevSmResourceSplitByCount(groups: *mut CUdevResource, count: *mut c_uint, of: *const CUdevResource, rest: *mut CUdevResource, flags: c_uint, minimum: c_uint);
        cuDevResourceGenerateDesc(descriptor: *mut CUdevResourceDesc, resources: *mut CUdevResource, count: c_uint);
        cuGreenCtxCreate(green: *mut CUgreenCtx, descriptor: CUdevResourceDesc, device: CUdevice, flags: c_uint);
        cuGreenCtxDestroy(green: CUgreenCtx);
        cuCtxFromGreenCtx(context: *mut CUcontext, green: CUgreenCtx);
        cuGreenCtxStreamCreate(stream: *mut CUstream, green: CUgreenCtx, flags: c_uint, priority: c_int);
        cuCheckpointProcessGetState(pid: c_int, state: *mut CUprocessState);
        cuCheckpointProcessLock(pid: c_int, args: *mut CUcheckpointLockArgs);
        cuCheckpointProcessCheckpoint(pid: c_int, args: *mut CUcheckpointCheckpointArgs);
        cuCheckpointProcessRestore(pid: c_int, args: *mut CUcheckpointRestoreArgs);
        cuCheckpointProcessUnlock(pid: c_int, args: *mut CUcheckpointUnlockArgs);
    }
}
