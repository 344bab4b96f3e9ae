//! Names and descriptions of errors, and the calls that read the thread's last one.
use core::ffi::{CStr, c_char};

use fermata_abi::sys::runtime as sys;

use crate::error;

macro_rules! errors {
    ($($name:ident: $text:literal,)*) => {
        /// The identifier of an error, if it is one.
        pub fn name(code: sys::cudaError_t) -> Option<&'static CStr> {
            match code {
                $(sys::$name => CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()).ok(),)*
                _ => None,
            }
        }

        fn text(code: sys::cudaError_t) -> Option<&'static CStr> {
            match code {
                $(sys::$name => CStr::from_bytes_with_nul(concat!($text, "\0").as_bytes()).ok(),)*
                _ => None,
            }
        }
    };
}

errors! {
    cudaSuccess: "no error",
    cudaErrorInvalidValue: "an argument is outside its valid range",
    cudaErrorMemoryAllocation: "not enough memory for the request",
    cudaErrorInitializationError: "CUDA could not be initialised in this process",
    cudaErrorCudartUnloading: "the driver is shutting down",
    cudaErrorProfilerDisabled: "no profiler is active",
    cudaErrorProfilerNotInitialized: "the profiler was not initialised",
    cudaErrorProfilerAlreadyStarted: "profiling is on already",
    cudaErrorProfilerAlreadyStopped: "profiling is off already",
    cudaErrorInvalidConfiguration: "the launch asks for what the device cannot provide",
    cudaErrorInvalidPitchValue: "the pitch is outside its valid range",
    cudaErrorInvalidSymbol: "no device variable belongs to this symbol",
    cudaErrorInvalidHostPointer: "the host pointer is not valid here",
    cudaErrorInvalidDevicePointer: "the device pointer is not valid here",
    cudaErrorInvalidTexture: "the texture is not valid",
    cudaErrorInvalidTextureBinding: "the texture is bound to nothing valid",
    cudaErrorInvalidChannelDescriptor: "the channel format is not valid",
    cudaErrorInvalidMemcpyDirection: "the direction of the copy is not valid",
    cudaErrorAddressOfConstant: "the address of a constant was taken",
    cudaErrorTextureFetchFailed: "a texture read failed",
    cudaErrorTextureNotBound: "the texture is bound to nothing",
    cudaErrorSynchronizationError: "a synchronisation failed",
    cudaErrorInvalidFilterSetting: "the filter cannot be used with this texture",
    cudaErrorInvalidNormSetting: "the read mode cannot be used with this texture",
    cudaErrorMixedDeviceExecution: "device and host execution cannot be mixed",
    cudaErrorNotYetImplemented: "the function is not implemented",
    cudaErrorMemoryValueTooLarge: "the memory value is too large",
    cudaErrorStubLibrary: "a stub stands in for the driver library",
    cudaErrorInsufficientDriver: "no CUDA driver, or one too old for this runtime",
    cudaErrorCallRequiresNewerDriver: "the driver is too old for this call",
    cudaErrorInvalidSurface: "the surface is not valid",
    cudaErrorDuplicateVariableName: "two device variables share a name",
    cudaErrorDuplicateTextureName: "two textures share a name",
    cudaErrorDuplicateSurfaceName: "two surfaces share a name",
    cudaErrorDevicesUnavailable: "all devices are busy or out of service",
    cudaErrorIncompatibleDriverContext: "the current context was not made for this runtime",
    cudaErrorMissingConfiguration: "a kernel was launched without a configuration",
    cudaErrorPriorLaunchFailure: "an earlier launch failed",
    cudaErrorLaunchMaxDepthExceeded: "device-side launches are nested too deeply",
    cudaErrorLaunchFileScopedTex: "device-side launches cannot use file-scope textures",
    cudaErrorLaunchFileScopedSurf: "device-side launches cannot use file-scope surfaces",
    cudaErrorSyncDepthExceeded: "device-side synchronisation is nested too deeply",
    cudaErrorLaunchPendingCountExceeded: "too many device-side launches are pending",
    cudaErrorInvalidDeviceFunction: "no kernel for this device belongs to the function",
    cudaErrorNoDevice: "no CUDA device was found",
    cudaErrorInvalidDevice: "there is no device of this number",
    cudaErrorDeviceNotLicensed: "the device has no valid licence",
    cudaErrorSoftwareValidityNotEstablished: "the software could not be validated",
    cudaErrorStartupFailure: "the runtime failed to start",
    cudaErrorInvalidKernelImage: "the kernel image is damaged or not one",
    cudaErrorDeviceUninitialized: "no context is current",
    cudaErrorMapBufferObjectFailed: "mapping a buffer failed",
    cudaErrorUnmapBufferObjectFailed: "unmapping a buffer failed",
    cudaErrorArrayIsMapped: "the array is mapped",
    cudaErrorAlreadyMapped: "the resource is mapped already",
    cudaErrorNoKernelImageForDevice: "the program has no code for this device",
    cudaErrorAlreadyAcquired: "the resource is acquired already",
    cudaErrorNotMapped: "the resource is not mapped",
    cudaErrorNotMappedAsArray: "the resource is not mapped as an array",
    cudaErrorNotMappedAsPointer: "the resource is not mapped as a pointer",
    cudaErrorECCUncorrectable: "memory of the device is damaged beyond correction",
    cudaErrorUnsupportedLimit: "the device has no such limit",
    cudaErrorDeviceAlreadyInUse: "another thread is using the device",
    cudaErrorPeerAccessUnsupported: "the two devices cannot access each other",
    cudaErrorInvalidPtx: "the PTX could not be compiled",
    cudaErrorInvalidGraphicsContext: "the graphics context is not valid",
    cudaErrorNvlinkUncorrectable: "an NVLink error could not be corrected",
    cudaErrorJitCompilerNotFound: "the PTX compiler was not found",
    cudaErrorUnsupportedPtxVersion: "the PTX is of a version this driver does not know",
    cudaErrorJitCompilationDisabled: "compiling PTX is switched off",
    cudaErrorUnsupportedExecAffinity: "the device does not support this affinity",
    cudaErrorUnsupportedDevSideSync: "the code synchronises on the device, which is not supported",
    cudaErrorContained: "a memory error was contained",
    cudaErrorInvalidSource: "the source of the kernel is not valid",
    cudaErrorFileNotFound: "the file was not found",
    cudaErrorSharedObjectSymbolNotFound: "a shared object lacks a symbol",
    cudaErrorSharedObjectInitFailed: "a shared object could not be initialised",
    cudaErrorOperatingSystem: "a call to the operating system failed",
    cudaErrorInvalidResourceHandle: "the handle is not valid",
    cudaErrorIllegalState: "the object is not in the state the call needs",
    cudaErrorLossyQuery: "the answer would lose information",
    cudaErrorSymbolNotFound: "the name was not found",
    cudaErrorNotReady: "the work has not finished",
    cudaErrorIllegalAddress: "a kernel accessed memory it may not access",
    cudaErrorLaunchOutOfResources: "the launch needs more resources than there are",
    cudaErrorLaunchTimeout: "a kernel ran longer than allowed",
    cudaErrorLaunchIncompatibleTexturing: "the launch mixes texturing modes",
    cudaErrorPeerAccessAlreadyEnabled: "peer access is enabled already",
    cudaErrorPeerAccessNotEnabled: "peer access is not enabled",
    cudaErrorSetOnActiveProcess: "the setting cannot change after initialisation",
    cudaErrorContextIsDestroyed: "the context was destroyed",
    cudaErrorAssert: "an assertion failed in a kernel",
    cudaErrorTooManyPeers: "there are no resources for another peer",
    cudaErrorHostMemoryAlreadyRegistered: "the host memory is registered already",
    cudaErrorHostMemoryNotRegistered: "the host memory is not registered",
    cudaErrorHardwareStackError: "a kernel corrupted or overran its stack",
    cudaErrorIllegalInstruction: "a kernel met an instruction that is not valid",
    cudaErrorMisalignedAddress: "a kernel accessed a misaligned address",
    cudaErrorInvalidAddressSpace: "a kernel used an address of the wrong space",
    cudaErrorInvalidPc: "a kernel jumped to where there is no code",
    cudaErrorLaunchFailure: "a kernel failed",
    cudaErrorCooperativeLaunchTooLarge: "the cooperative launch does not fit on the device",
    cudaErrorTensorMemoryLeak: "a kernel ended without freeing its tensor memory",
    cudaErrorNotPermitted: "the operation is not permitted",
    cudaErrorNotSupported: "the operation is not supported",
    cudaErrorSystemNotReady: "the system is not ready for CUDA work",
    cudaErrorSystemDriverMismatch: "driver and kernel module do not match",
    cudaErrorCompatNotSupportedOnDevice: "the device is not supported by forward compatibility",
    cudaErrorMpsConnectionFailed: "the MPS server could not be reached",
    cudaErrorMpsRpcFailure: "a call to the MPS server failed",
    cudaErrorMpsServerNotReady: "the MPS server is not ready",
    cudaErrorMpsMaxClientsReached: "the MPS server has no room for another client",
    cudaErrorMpsMaxConnectionsReached: "the MPS server has no room for another connection",
    cudaErrorMpsClientTerminated: "the MPS server ended this client",
    cudaErrorCdpNotSupported: "device-side launches are not supported",
    cudaErrorCdpVersionMismatch: "versions of device-side launches are mixed",
    cudaErrorStreamCaptureUnsupported: "the operation cannot be captured",
    cudaErrorStreamCaptureInvalidated: "an earlier error ended the capture",
    cudaErrorStreamCaptureMerge: "the operation would join two captures",
    cudaErrorStreamCaptureUnmatched: "the capture was not begun on this stream",
    cudaErrorStreamCaptureUnjoined: "the capture has work that was not joined",
    cudaErrorStreamCaptureIsolation: "the capture depends on work outside it",
    cudaErrorStreamCaptureImplicit: "the operation depends on the default stream during a capture",
    cudaErrorCapturedEvent: "the event was recorded in a capture",
    cudaErrorStreamCaptureWrongThread: "the capture was begun by another thread",
    cudaErrorTimeout: "the wait took too long",
    cudaErrorGraphExecUpdateFailure: "the instantiated graph cannot be updated so",
    cudaErrorExternalDevice: "an error happened on another device",
    cudaErrorInvalidClusterSize: "the cluster size is not valid",
    cudaErrorFunctionNotLoaded: "the function is not loaded",
    cudaErrorInvalidResourceType: "the resource is of the wrong type",
    cudaErrorInvalidResourceConfiguration: "the resource is not configured for this",
    cudaErrorUnknown: "an error of unknown kind",
    cudaErrorApiFailureBase: "an error of unknown kind",
}

/// The identifier of an error; never null.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn cudaGetErrorName(error: sys::cudaError_t) -> *const c_char {
    name(error).unwrap_or(c"unrecognized error code").as_ptr()
}

/// One sentence about an error; never null.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn cudaGetErrorString(error: sys::cudaError_t) -> *const c_char {
    text(error).unwrap_or(c"unrecognized error code").as_ptr()
}

/// The thread's last error, which is then forgotten.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn cudaGetLastError() -> sys::cudaError_t {
    error::take()
}

/// The thread's last error.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn cudaPeekAtLastError() -> sys::cudaError_t {
    error::peek()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_a_name_and_a_text() {
        for code in 0..1000 {
            assert_eq!(name(code).is_some(), text(code).is_some(), "{code}");
        }
        assert_eq!(
            name(sys::cudaErrorMemoryAllocation),
            Some(c"cudaErrorMemoryAllocation")
        );
        assert_eq!(name(4711), None);
    }
}
