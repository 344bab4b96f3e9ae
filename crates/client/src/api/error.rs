//! Exported functions for the names and texts of results.

use core::ffi::{CStr, c_char};

use fermata_abi::sys::driver as sys;

use crate::args::Out;
use crate::frame::entry::driver_api;

driver_api! {
    fn cuGetErrorName(error: sys::CUresult, name: Out<*const c_char>) {
        let known = find(error);
        name.set(known.map_or(core::ptr::null(), |(name, _)| name.as_ptr()))?;
        known.map(|_| ()).ok_or(sys::CUDA_ERROR_INVALID_VALUE)
    }

    fn cuGetErrorString(error: sys::CUresult, text: Out<*const c_char>) {
        let known = find(error);
        text.set(known.map_or(core::ptr::null(), |(_, text)| text.as_ptr()))?;
        known.map(|_| ()).ok_or(sys::CUDA_ERROR_INVALID_VALUE)
    }
}

fn find(error: sys::CUresult) -> Option<(&'static CStr, &'static CStr)> {
    let at = RESULTS
        .binary_search_by_key(&error, |result| result.0)
        .ok()?;
    Some((RESULTS[at].1, RESULTS[at].2))
}

/// Every result with its name and its text, in ascending order.
static RESULTS: [(sys::CUresult, &CStr, &CStr); 101] = [
    (sys::CUDA_SUCCESS, c"CUDA_SUCCESS", c"no error"),
    (
        sys::CUDA_ERROR_INVALID_VALUE,
        c"CUDA_ERROR_INVALID_VALUE",
        c"invalid argument",
    ),
    (
        sys::CUDA_ERROR_OUT_OF_MEMORY,
        c"CUDA_ERROR_OUT_OF_MEMORY",
        c"out of memory",
    ),
    (
        sys::CUDA_ERROR_NOT_INITIALIZED,
        c"CUDA_ERROR_NOT_INITIALIZED",
        c"not initialized",
    ),
    (
        sys::CUDA_ERROR_DEINITIALIZED,
        c"CUDA_ERROR_DEINITIALIZED",
        c"deinitialized",
    ),
    (
        sys::CUDA_ERROR_PROFILER_DISABLED,
        c"CUDA_ERROR_PROFILER_DISABLED",
        c"profiler disabled",
    ),
    (
        sys::CUDA_ERROR_PROFILER_NOT_INITIALIZED,
        c"CUDA_ERROR_PROFILER_NOT_INITIALIZED",
        c"profiler not initialized",
    ),
    (
        sys::CUDA_ERROR_PROFILER_ALREADY_STARTED,
        c"CUDA_ERROR_PROFILER_ALREADY_STARTED",
        c"profiler already started",
    ),
    (
        sys::CUDA_ERROR_PROFILER_ALREADY_STOPPED,
        c"CUDA_ERROR_PROFILER_ALREADY_STOPPED",
        c"profiler already stopped",
    ),
    (
        sys::CUDA_ERROR_STUB_LIBRARY,
        c"CUDA_ERROR_STUB_LIBRARY",
        c"stub library",
    ),
    (
        sys::CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER,
        c"CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER",
        c"call requires newer driver",
    ),
    (
        sys::CUDA_ERROR_DEVICE_UNAVAILABLE,
        c"CUDA_ERROR_DEVICE_UNAVAILABLE",
        c"device unavailable",
    ),
    (
        sys::CUDA_ERROR_NO_DEVICE,
        c"CUDA_ERROR_NO_DEVICE",
        c"no CUDA-capable device is detected",
    ),
    (
        sys::CUDA_ERROR_INVALID_DEVICE,
        c"CUDA_ERROR_INVALID_DEVICE",
        c"invalid device",
    ),
    (
        sys::CUDA_ERROR_DEVICE_NOT_LICENSED,
        c"CUDA_ERROR_DEVICE_NOT_LICENSED",
        c"device not licensed",
    ),
    (
        sys::CUDA_ERROR_INVALID_IMAGE,
        c"CUDA_ERROR_INVALID_IMAGE",
        c"invalid image",
    ),
    (
        sys::CUDA_ERROR_INVALID_CONTEXT,
        c"CUDA_ERROR_INVALID_CONTEXT",
        c"invalid context",
    ),
    (
        sys::CUDA_ERROR_CONTEXT_ALREADY_CURRENT,
        c"CUDA_ERROR_CONTEXT_ALREADY_CURRENT",
        c"context already current",
    ),
    (
        sys::CUDA_ERROR_MAP_FAILED,
        c"CUDA_ERROR_MAP_FAILED",
        c"map failed",
    ),
    (
        sys::CUDA_ERROR_UNMAP_FAILED,
        c"CUDA_ERROR_UNMAP_FAILED",
        c"unmap failed",
    ),
    (
        sys::CUDA_ERROR_ARRAY_IS_MAPPED,
        c"CUDA_ERROR_ARRAY_IS_MAPPED",
        c"array is mapped",
    ),
    (
        sys::CUDA_ERROR_ALREADY_MAPPED,
        c"CUDA_ERROR_ALREADY_MAPPED",
        c"already mapped",
    ),
    (
        sys::CUDA_ERROR_NO_BINARY_FOR_GPU,
        c"CUDA_ERROR_NO_BINARY_FOR_GPU",
        c"no binary for gpu",
    ),
    (
        sys::CUDA_ERROR_ALREADY_ACQUIRED,
        c"CUDA_ERROR_ALREADY_ACQUIRED",
        c"already acquired",
    ),
    (
        sys::CUDA_ERROR_NOT_MAPPED,
        c"CUDA_ERROR_NOT_MAPPED",
        c"not mapped",
    ),
    (
        sys::CUDA_ERROR_NOT_MAPPED_AS_ARRAY,
        c"CUDA_ERROR_NOT_MAPPED_AS_ARRAY",
        c"not mapped as array",
    ),
    (
        sys::CUDA_ERROR_NOT_MAPPED_AS_POINTER,
        c"CUDA_ERROR_NOT_MAPPED_AS_POINTER",
        c"not mapped as pointer",
    ),
    (
        sys::CUDA_ERROR_ECC_UNCORRECTABLE,
        c"CUDA_ERROR_ECC_UNCORRECTABLE",
        c"ecc uncorrectable",
    ),
    (
        sys::CUDA_ERROR_UNSUPPORTED_LIMIT,
        c"CUDA_ERROR_UNSUPPORTED_LIMIT",
        c"unsupported limit",
    ),
    (
        sys::CUDA_ERROR_CONTEXT_ALREADY_IN_USE,
        c"CUDA_ERROR_CONTEXT_ALREADY_IN_USE",
        c"context already in use",
    ),
    (
        sys::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
        c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
        c"peer access unsupported",
    ),
    (
        sys::CUDA_ERROR_INVALID_PTX,
        c"CUDA_ERROR_INVALID_PTX",
        c"invalid ptx",
    ),
    (
        sys::CUDA_ERROR_INVALID_GRAPHICS_CONTEXT,
        c"CUDA_ERROR_INVALID_GRAPHICS_CONTEXT",
        c"invalid graphics context",
    ),
    (
        sys::CUDA_ERROR_NVLINK_UNCORRECTABLE,
        c"CUDA_ERROR_NVLINK_UNCORRECTABLE",
        c"nvlink uncorrectable",
    ),
    (
        sys::CUDA_ERROR_JIT_COMPILER_NOT_FOUND,
        c"CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
        c"jit compiler not found",
    ),
    (
        sys::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
        c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        c"unsupported ptx version",
    ),
    (
        sys::CUDA_ERROR_JIT_COMPILATION_DISABLED,
        c"CUDA_ERROR_JIT_COMPILATION_DISABLED",
        c"jit compilation disabled",
    ),
    (
        sys::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY,
        c"CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY",
        c"unsupported exec affinity",
    ),
    (
        sys::CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC,
        c"CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC",
        c"unsupported devside sync",
    ),
    (
        sys::CUDA_ERROR_CONTAINED,
        c"CUDA_ERROR_CONTAINED",
        c"contained",
    ),
    (
        sys::CUDA_ERROR_INVALID_SOURCE,
        c"CUDA_ERROR_INVALID_SOURCE",
        c"invalid source",
    ),
    (
        sys::CUDA_ERROR_FILE_NOT_FOUND,
        c"CUDA_ERROR_FILE_NOT_FOUND",
        c"file not found",
    ),
    (
        sys::CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND,
        c"CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND",
        c"shared object symbol not found",
    ),
    (
        sys::CUDA_ERROR_SHARED_OBJECT_INIT_FAILED,
        c"CUDA_ERROR_SHARED_OBJECT_INIT_FAILED",
        c"shared object init failed",
    ),
    (
        sys::CUDA_ERROR_OPERATING_SYSTEM,
        c"CUDA_ERROR_OPERATING_SYSTEM",
        c"operating system",
    ),
    (
        sys::CUDA_ERROR_INVALID_HANDLE,
        c"CUDA_ERROR_INVALID_HANDLE",
        c"invalid resource handle",
    ),
    (
        sys::CUDA_ERROR_ILLEGAL_STATE,
        c"CUDA_ERROR_ILLEGAL_STATE",
        c"illegal state",
    ),
    (
        sys::CUDA_ERROR_LOSSY_QUERY,
        c"CUDA_ERROR_LOSSY_QUERY",
        c"lossy query",
    ),
    (
        sys::CUDA_ERROR_NOT_FOUND,
        c"CUDA_ERROR_NOT_FOUND",
        c"not found",
    ),
    (
        sys::CUDA_ERROR_NOT_READY,
        c"CUDA_ERROR_NOT_READY",
        c"device not ready",
    ),
    (
        sys::CUDA_ERROR_ILLEGAL_ADDRESS,
        c"CUDA_ERROR_ILLEGAL_ADDRESS",
        c"an illegal memory access was encountered",
    ),
    (
        sys::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
        c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        c"launch out of resources",
    ),
    (
        sys::CUDA_ERROR_LAUNCH_TIMEOUT,
        c"CUDA_ERROR_LAUNCH_TIMEOUT",
        c"launch timeout",
    ),
    (
        sys::CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING,
        c"CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING",
        c"launch incompatible texturing",
    ),
    (
        sys::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
        c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
        c"peer access already enabled",
    ),
    (
        sys::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED,
        c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
        c"peer access not enabled",
    ),
    (
        sys::CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE,
        c"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE",
        c"primary context active",
    ),
    (
        sys::CUDA_ERROR_CONTEXT_IS_DESTROYED,
        c"CUDA_ERROR_CONTEXT_IS_DESTROYED",
        c"context is destroyed",
    ),
    (sys::CUDA_ERROR_ASSERT, c"CUDA_ERROR_ASSERT", c"assert"),
    (
        sys::CUDA_ERROR_TOO_MANY_PEERS,
        c"CUDA_ERROR_TOO_MANY_PEERS",
        c"too many peers",
    ),
    (
        sys::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
        c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        c"host memory already registered",
    ),
    (
        sys::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
        c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        c"host memory not registered",
    ),
    (
        sys::CUDA_ERROR_HARDWARE_STACK_ERROR,
        c"CUDA_ERROR_HARDWARE_STACK_ERROR",
        c"hardware stack error",
    ),
    (
        sys::CUDA_ERROR_ILLEGAL_INSTRUCTION,
        c"CUDA_ERROR_ILLEGAL_INSTRUCTION",
        c"illegal instruction",
    ),
    (
        sys::CUDA_ERROR_MISALIGNED_ADDRESS,
        c"CUDA_ERROR_MISALIGNED_ADDRESS",
        c"misaligned address",
    ),
    (
        sys::CUDA_ERROR_INVALID_ADDRESS_SPACE,
        c"CUDA_ERROR_INVALID_ADDRESS_SPACE",
        c"invalid address space",
    ),
    (
        sys::CUDA_ERROR_INVALID_PC,
        c"CUDA_ERROR_INVALID_PC",
        c"invalid pc",
    ),
    (
        sys::CUDA_ERROR_LAUNCH_FAILED,
        c"CUDA_ERROR_LAUNCH_FAILED",
        c"unspecified launch failure",
    ),
    (
        sys::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
        c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
        c"cooperative launch too large",
    ),
    (
        sys::CUDA_ERROR_TENSOR_MEMORY_LEAK,
        c"CUDA_ERROR_TENSOR_MEMORY_LEAK",
        c"tensor memory leak",
    ),
    (
        sys::CUDA_ERROR_NOT_PERMITTED,
        c"CUDA_ERROR_NOT_PERMITTED",
        c"not permitted",
    ),
    (
        sys::CUDA_ERROR_NOT_SUPPORTED,
        c"CUDA_ERROR_NOT_SUPPORTED",
        c"not supported",
    ),
    (
        sys::CUDA_ERROR_SYSTEM_NOT_READY,
        c"CUDA_ERROR_SYSTEM_NOT_READY",
        c"system not ready",
    ),
    (
        sys::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        c"system driver mismatch",
    ),
    (
        sys::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
        c"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        c"compat not supported on device",
    ),
    (
        sys::CUDA_ERROR_MPS_CONNECTION_FAILED,
        c"CUDA_ERROR_MPS_CONNECTION_FAILED",
        c"mps connection failed",
    ),
    (
        sys::CUDA_ERROR_MPS_RPC_FAILURE,
        c"CUDA_ERROR_MPS_RPC_FAILURE",
        c"mps rpc failure",
    ),
    (
        sys::CUDA_ERROR_MPS_SERVER_NOT_READY,
        c"CUDA_ERROR_MPS_SERVER_NOT_READY",
        c"mps server not ready",
    ),
    (
        sys::CUDA_ERROR_MPS_MAX_CLIENTS_REACHED,
        c"CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
        c"mps max clients reached",
    ),
    (
        sys::CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED,
        c"CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED",
        c"mps max connections reached",
    ),
    (
        sys::CUDA_ERROR_MPS_CLIENT_TERMINATED,
        c"CUDA_ERROR_MPS_CLIENT_TERMINATED",
        c"mps client terminated",
    ),
    (
        sys::CUDA_ERROR_CDP_NOT_SUPPORTED,
        c"CUDA_ERROR_CDP_NOT_SUPPORTED",
        c"cdp not supported",
    ),
    (
        sys::CUDA_ERROR_CDP_VERSION_MISMATCH,
        c"CUDA_ERROR_CDP_VERSION_MISMATCH",
        c"cdp version mismatch",
    ),
    (
        sys::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        c"stream capture unsupported",
    ),
    (
        sys::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        c"stream capture invalidated",
    ),
    (
        sys::CUDA_ERROR_STREAM_CAPTURE_MERGE,
        c"CUDA_ERROR_STREAM_CAPTURE_MERGE",
        c"stream capture merge",
    ),
    (
        sys::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
        c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
        c"stream capture unmatched",
    ),
    (
        sys::CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
        c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
        c"stream capture unjoined",
    ),
    (
        sys::CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
        c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        c"stream capture isolation",
    ),
    (
        sys::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
        c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
        c"stream capture implicit",
    ),
    (
        sys::CUDA_ERROR_CAPTURED_EVENT,
        c"CUDA_ERROR_CAPTURED_EVENT",
        c"captured event",
    ),
    (
        sys::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
        c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
        c"stream capture wrong thread",
    ),
    (sys::CUDA_ERROR_TIMEOUT, c"CUDA_ERROR_TIMEOUT", c"timeout"),
    (
        sys::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
        c"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
        c"graph exec update failure",
    ),
    (
        sys::CUDA_ERROR_EXTERNAL_DEVICE,
        c"CUDA_ERROR_EXTERNAL_DEVICE",
        c"external device",
    ),
    (
        sys::CUDA_ERROR_INVALID_CLUSTER_SIZE,
        c"CUDA_ERROR_INVALID_CLUSTER_SIZE",
        c"invalid cluster size",
    ),
    (
        sys::CUDA_ERROR_FUNCTION_NOT_LOADED,
        c"CUDA_ERROR_FUNCTION_NOT_LOADED",
        c"function not loaded",
    ),
    (
        sys::CUDA_ERROR_INVALID_RESOURCE_TYPE,
        c"CUDA_ERROR_INVALID_RESOURCE_TYPE",
        c"invalid resource type",
    ),
    (
        sys::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
        c"CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION",
        c"invalid resource configuration",
    ),
    (
        sys::CUDA_ERROR_KEY_ROTATION,
        c"CUDA_ERROR_KEY_ROTATION",
        c"key rotation",
    ),
    (
        sys::CUDA_ERROR_UNKNOWN,
        c"CUDA_ERROR_UNKNOWN",
        c"unknown error",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_sorted_and_found() {
        assert!(RESULTS.is_sorted_by_key(|result| result.0));
        assert_eq!(
            find(sys::CUDA_ERROR_OUT_OF_MEMORY).map(|r| r.0),
            Some(c"CUDA_ERROR_OUT_OF_MEMORY")
        );
        assert_eq!(find(123_456), None);
    }
}
