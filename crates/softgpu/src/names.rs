//! Names and descriptions of the result codes.

use std::ffi::CStr;

use fermata_abi::sys::driver as cu;

/// Every result code with its name in C and a description.
static CODES: &[(cu::CUresult, &CStr, &CStr)] = &[
    (cu::CUDA_SUCCESS, c"CUDA_SUCCESS", c"no error"),
    (
        cu::CUDA_ERROR_INVALID_VALUE,
        c"CUDA_ERROR_INVALID_VALUE",
        c"invalid argument",
    ),
    (
        cu::CUDA_ERROR_OUT_OF_MEMORY,
        c"CUDA_ERROR_OUT_OF_MEMORY",
        c"out of memory",
    ),
    (
        cu::CUDA_ERROR_NOT_INITIALIZED,
        c"CUDA_ERROR_NOT_INITIALIZED",
        c"the driver has not been initialized in this process",
    ),
    (
        cu::CUDA_ERROR_DEINITIALIZED,
        c"CUDA_ERROR_DEINITIALIZED",
        c"the driver is shutting down",
    ),
    (
        cu::CUDA_ERROR_PROFILER_DISABLED,
        c"CUDA_ERROR_PROFILER_DISABLED",
        c"profiler disabled",
    ),
    (
        cu::CUDA_ERROR_PROFILER_NOT_INITIALIZED,
        c"CUDA_ERROR_PROFILER_NOT_INITIALIZED",
        c"profiler not initialized",
    ),
    (
        cu::CUDA_ERROR_PROFILER_ALREADY_STARTED,
        c"CUDA_ERROR_PROFILER_ALREADY_STARTED",
        c"profiler already started",
    ),
    (
        cu::CUDA_ERROR_PROFILER_ALREADY_STOPPED,
        c"CUDA_ERROR_PROFILER_ALREADY_STOPPED",
        c"profiler already stopped",
    ),
    (
        cu::CUDA_ERROR_STUB_LIBRARY,
        c"CUDA_ERROR_STUB_LIBRARY",
        c"this is the stub library, not a driver",
    ),
    (
        cu::CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER,
        c"CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER",
        c"call requires newer driver",
    ),
    (
        cu::CUDA_ERROR_DEVICE_UNAVAILABLE,
        c"CUDA_ERROR_DEVICE_UNAVAILABLE",
        c"the device is busy or has been lost",
    ),
    (
        cu::CUDA_ERROR_NO_DEVICE,
        c"CUDA_ERROR_NO_DEVICE",
        c"there is no CUDA device",
    ),
    (
        cu::CUDA_ERROR_INVALID_DEVICE,
        c"CUDA_ERROR_INVALID_DEVICE",
        c"there is no device with this number",
    ),
    (
        cu::CUDA_ERROR_DEVICE_NOT_LICENSED,
        c"CUDA_ERROR_DEVICE_NOT_LICENSED",
        c"device not licensed",
    ),
    (
        cu::CUDA_ERROR_INVALID_IMAGE,
        c"CUDA_ERROR_INVALID_IMAGE",
        c"the module image is not valid",
    ),
    (
        cu::CUDA_ERROR_INVALID_CONTEXT,
        c"CUDA_ERROR_INVALID_CONTEXT",
        c"the context is not valid, or none is current",
    ),
    (
        cu::CUDA_ERROR_CONTEXT_ALREADY_CURRENT,
        c"CUDA_ERROR_CONTEXT_ALREADY_CURRENT",
        c"the context is current already",
    ),
    (
        cu::CUDA_ERROR_MAP_FAILED,
        c"CUDA_ERROR_MAP_FAILED",
        c"mapping failed",
    ),
    (
        cu::CUDA_ERROR_UNMAP_FAILED,
        c"CUDA_ERROR_UNMAP_FAILED",
        c"unmapping failed",
    ),
    (
        cu::CUDA_ERROR_ARRAY_IS_MAPPED,
        c"CUDA_ERROR_ARRAY_IS_MAPPED",
        c"array is mapped",
    ),
    (
        cu::CUDA_ERROR_ALREADY_MAPPED,
        c"CUDA_ERROR_ALREADY_MAPPED",
        c"already mapped",
    ),
    (
        cu::CUDA_ERROR_NO_BINARY_FOR_GPU,
        c"CUDA_ERROR_NO_BINARY_FOR_GPU",
        c"the image holds no code that this device can run",
    ),
    (
        cu::CUDA_ERROR_ALREADY_ACQUIRED,
        c"CUDA_ERROR_ALREADY_ACQUIRED",
        c"already acquired",
    ),
    (
        cu::CUDA_ERROR_NOT_MAPPED,
        c"CUDA_ERROR_NOT_MAPPED",
        c"not mapped",
    ),
    (
        cu::CUDA_ERROR_NOT_MAPPED_AS_ARRAY,
        c"CUDA_ERROR_NOT_MAPPED_AS_ARRAY",
        c"not mapped as array",
    ),
    (
        cu::CUDA_ERROR_NOT_MAPPED_AS_POINTER,
        c"CUDA_ERROR_NOT_MAPPED_AS_POINTER",
        c"not mapped as pointer",
    ),
    (
        cu::CUDA_ERROR_ECC_UNCORRECTABLE,
        c"CUDA_ERROR_ECC_UNCORRECTABLE",
        c"ecc uncorrectable",
    ),
    (
        cu::CUDA_ERROR_UNSUPPORTED_LIMIT,
        c"CUDA_ERROR_UNSUPPORTED_LIMIT",
        c"unsupported limit",
    ),
    (
        cu::CUDA_ERROR_CONTEXT_ALREADY_IN_USE,
        c"CUDA_ERROR_CONTEXT_ALREADY_IN_USE",
        c"context already in use",
    ),
    (
        cu::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
        c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
        c"peer access unsupported",
    ),
    (
        cu::CUDA_ERROR_INVALID_PTX,
        c"CUDA_ERROR_INVALID_PTX",
        c"the PTX could not be compiled",
    ),
    (
        cu::CUDA_ERROR_INVALID_GRAPHICS_CONTEXT,
        c"CUDA_ERROR_INVALID_GRAPHICS_CONTEXT",
        c"invalid graphics context",
    ),
    (
        cu::CUDA_ERROR_NVLINK_UNCORRECTABLE,
        c"CUDA_ERROR_NVLINK_UNCORRECTABLE",
        c"nvlink uncorrectable",
    ),
    (
        cu::CUDA_ERROR_JIT_COMPILER_NOT_FOUND,
        c"CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
        c"jit compiler not found",
    ),
    (
        cu::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
        c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        c"the PTX is of a newer version than this driver knows",
    ),
    (
        cu::CUDA_ERROR_JIT_COMPILATION_DISABLED,
        c"CUDA_ERROR_JIT_COMPILATION_DISABLED",
        c"jit compilation disabled",
    ),
    (
        cu::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY,
        c"CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY",
        c"unsupported exec affinity",
    ),
    (
        cu::CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC,
        c"CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC",
        c"unsupported devside sync",
    ),
    (
        cu::CUDA_ERROR_CONTAINED,
        c"CUDA_ERROR_CONTAINED",
        c"contained",
    ),
    (
        cu::CUDA_ERROR_INVALID_SOURCE,
        c"CUDA_ERROR_INVALID_SOURCE",
        c"the kernel source is not valid",
    ),
    (
        cu::CUDA_ERROR_FILE_NOT_FOUND,
        c"CUDA_ERROR_FILE_NOT_FOUND",
        c"file not found",
    ),
    (
        cu::CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND,
        c"CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND",
        c"symbol not found in the shared object",
    ),
    (
        cu::CUDA_ERROR_SHARED_OBJECT_INIT_FAILED,
        c"CUDA_ERROR_SHARED_OBJECT_INIT_FAILED",
        c"shared object init failed",
    ),
    (
        cu::CUDA_ERROR_OPERATING_SYSTEM,
        c"CUDA_ERROR_OPERATING_SYSTEM",
        c"an operating system call failed",
    ),
    (
        cu::CUDA_ERROR_INVALID_HANDLE,
        c"CUDA_ERROR_INVALID_HANDLE",
        c"invalid handle",
    ),
    (
        cu::CUDA_ERROR_ILLEGAL_STATE,
        c"CUDA_ERROR_ILLEGAL_STATE",
        c"the object is not in a state that allows this",
    ),
    (
        cu::CUDA_ERROR_LOSSY_QUERY,
        c"CUDA_ERROR_LOSSY_QUERY",
        c"lossy query",
    ),
    (
        cu::CUDA_ERROR_NOT_FOUND,
        c"CUDA_ERROR_NOT_FOUND",
        c"the named symbol was not found",
    ),
    (
        cu::CUDA_ERROR_NOT_READY,
        c"CUDA_ERROR_NOT_READY",
        c"work is still going on",
    ),
    (
        cu::CUDA_ERROR_ILLEGAL_ADDRESS,
        c"CUDA_ERROR_ILLEGAL_ADDRESS",
        c"a kernel accessed an illegal address",
    ),
    (
        cu::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
        c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        c"the launch needs more resources than there are",
    ),
    (
        cu::CUDA_ERROR_LAUNCH_TIMEOUT,
        c"CUDA_ERROR_LAUNCH_TIMEOUT",
        c"the kernel ran for too long and was stopped",
    ),
    (
        cu::CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING,
        c"CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING",
        c"launch incompatible texturing",
    ),
    (
        cu::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
        c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
        c"peer access is enabled already",
    ),
    (
        cu::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED,
        c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
        c"peer access is not enabled",
    ),
    (
        cu::CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE,
        c"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE",
        c"the primary context is active",
    ),
    (
        cu::CUDA_ERROR_CONTEXT_IS_DESTROYED,
        c"CUDA_ERROR_CONTEXT_IS_DESTROYED",
        c"the context has been destroyed",
    ),
    (
        cu::CUDA_ERROR_ASSERT,
        c"CUDA_ERROR_ASSERT",
        c"an assertion failed in a kernel",
    ),
    (
        cu::CUDA_ERROR_TOO_MANY_PEERS,
        c"CUDA_ERROR_TOO_MANY_PEERS",
        c"too many peers",
    ),
    (
        cu::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
        c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        c"the host memory is registered already",
    ),
    (
        cu::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
        c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        c"the host memory is not registered",
    ),
    (
        cu::CUDA_ERROR_HARDWARE_STACK_ERROR,
        c"CUDA_ERROR_HARDWARE_STACK_ERROR",
        c"hardware stack error",
    ),
    (
        cu::CUDA_ERROR_ILLEGAL_INSTRUCTION,
        c"CUDA_ERROR_ILLEGAL_INSTRUCTION",
        c"a kernel executed an illegal instruction",
    ),
    (
        cu::CUDA_ERROR_MISALIGNED_ADDRESS,
        c"CUDA_ERROR_MISALIGNED_ADDRESS",
        c"a kernel accessed a misaligned address",
    ),
    (
        cu::CUDA_ERROR_INVALID_ADDRESS_SPACE,
        c"CUDA_ERROR_INVALID_ADDRESS_SPACE",
        c"invalid address space",
    ),
    (
        cu::CUDA_ERROR_INVALID_PC,
        c"CUDA_ERROR_INVALID_PC",
        c"invalid pc",
    ),
    (
        cu::CUDA_ERROR_LAUNCH_FAILED,
        c"CUDA_ERROR_LAUNCH_FAILED",
        c"the kernel failed",
    ),
    (
        cu::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
        c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
        c"cooperative launch too large",
    ),
    (
        cu::CUDA_ERROR_TENSOR_MEMORY_LEAK,
        c"CUDA_ERROR_TENSOR_MEMORY_LEAK",
        c"tensor memory leak",
    ),
    (
        cu::CUDA_ERROR_NOT_PERMITTED,
        c"CUDA_ERROR_NOT_PERMITTED",
        c"operation not permitted",
    ),
    (
        cu::CUDA_ERROR_NOT_SUPPORTED,
        c"CUDA_ERROR_NOT_SUPPORTED",
        c"operation not supported",
    ),
    (
        cu::CUDA_ERROR_SYSTEM_NOT_READY,
        c"CUDA_ERROR_SYSTEM_NOT_READY",
        c"system not ready",
    ),
    (
        cu::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        c"system driver mismatch",
    ),
    (
        cu::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
        c"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        c"compat not supported on device",
    ),
    (
        cu::CUDA_ERROR_MPS_CONNECTION_FAILED,
        c"CUDA_ERROR_MPS_CONNECTION_FAILED",
        c"mps connection failed",
    ),
    (
        cu::CUDA_ERROR_MPS_RPC_FAILURE,
        c"CUDA_ERROR_MPS_RPC_FAILURE",
        c"mps rpc failure",
    ),
    (
        cu::CUDA_ERROR_MPS_SERVER_NOT_READY,
        c"CUDA_ERROR_MPS_SERVER_NOT_READY",
        c"mps server not ready",
    ),
    (
        cu::CUDA_ERROR_MPS_MAX_CLIENTS_REACHED,
        c"CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
        c"mps max clients reached",
    ),
    (
        cu::CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED,
        c"CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED",
        c"mps max connections reached",
    ),
    (
        cu::CUDA_ERROR_MPS_CLIENT_TERMINATED,
        c"CUDA_ERROR_MPS_CLIENT_TERMINATED",
        c"mps client terminated",
    ),
    (
        cu::CUDA_ERROR_CDP_NOT_SUPPORTED,
        c"CUDA_ERROR_CDP_NOT_SUPPORTED",
        c"cdp not supported",
    ),
    (
        cu::CUDA_ERROR_CDP_VERSION_MISMATCH,
        c"CUDA_ERROR_CDP_VERSION_MISMATCH",
        c"cdp version mismatch",
    ),
    (
        cu::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        c"stream capture unsupported",
    ),
    (
        cu::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        c"stream capture invalidated",
    ),
    (
        cu::CUDA_ERROR_STREAM_CAPTURE_MERGE,
        c"CUDA_ERROR_STREAM_CAPTURE_MERGE",
        c"stream capture merge",
    ),
    (
        cu::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
        c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
        c"stream capture unmatched",
    ),
    (
        cu::CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
        c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
        c"stream capture unjoined",
    ),
    (
        cu::CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
        c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        c"stream capture isolation",
    ),
    (
        cu::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
        c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
        c"stream capture implicit",
    ),
    (
        cu::CUDA_ERROR_CAPTURED_EVENT,
        c"CUDA_ERROR_CAPTURED_EVENT",
        c"captured event",
    ),
    (
        cu::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
        c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
        c"stream capture wrong thread",
    ),
    (
        cu::CUDA_ERROR_TIMEOUT,
        c"CUDA_ERROR_TIMEOUT",
        c"the time allowed has passed",
    ),
    (
        cu::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
        c"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
        c"graph exec update failure",
    ),
    (
        cu::CUDA_ERROR_EXTERNAL_DEVICE,
        c"CUDA_ERROR_EXTERNAL_DEVICE",
        c"external device",
    ),
    (
        cu::CUDA_ERROR_INVALID_CLUSTER_SIZE,
        c"CUDA_ERROR_INVALID_CLUSTER_SIZE",
        c"invalid cluster size",
    ),
    (
        cu::CUDA_ERROR_FUNCTION_NOT_LOADED,
        c"CUDA_ERROR_FUNCTION_NOT_LOADED",
        c"function not loaded",
    ),
    (
        cu::CUDA_ERROR_INVALID_RESOURCE_TYPE,
        c"CUDA_ERROR_INVALID_RESOURCE_TYPE",
        c"invalid resource type",
    ),
    (
        cu::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
        c"CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION",
        c"invalid resource configuration",
    ),
    (
        cu::CUDA_ERROR_KEY_ROTATION,
        c"CUDA_ERROR_KEY_ROTATION",
        c"key rotation",
    ),
    (
        cu::CUDA_ERROR_UNKNOWN,
        c"CUDA_ERROR_UNKNOWN",
        c"unknown error",
    ),
];

fn find(code: cu::CUresult) -> Option<&'static (cu::CUresult, &'static CStr, &'static CStr)> {
    CODES.iter().find(|(other, _, _)| *other == code)
}

/// The code's name as C spells it.
pub fn name(code: cu::CUresult) -> Option<&'static str> {
    find(code).and_then(|(_, name, _)| name.to_str().ok())
}

/// The code's name, NUL-terminated.
pub fn c_name(code: cu::CUresult) -> Option<&'static CStr> {
    find(code).map(|(_, name, _)| *name)
}

/// What the code means, NUL-terminated.
pub fn c_description(code: cu::CUresult) -> Option<&'static CStr> {
    find(code).map(|(_, _, description)| *description)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_c() {
        assert_eq!(
            name(cu::CUDA_ERROR_OUT_OF_MEMORY),
            Some("CUDA_ERROR_OUT_OF_MEMORY")
        );
        assert_eq!(name(9999), None);
    }
}
