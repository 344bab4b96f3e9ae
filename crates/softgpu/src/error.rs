//! The error of every function of this driver: a CUDA result code other than success.

use fermata_abi::sys::driver as cu;

use crate::names;

/// A CUDA result code that is not `CUDA_SUCCESS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", names::name(self.0).unwrap_or("unknown CUDA error"))]
pub struct CuError(pub cu::CUresult);

/// What the functions behind the API return.
pub type Result<T = (), E = CuError> = std::result::Result<T, E>;

/// A parameter is out of range, null or unknown.
pub const INVALID_VALUE: CuError = CuError(cu::CUDA_ERROR_INVALID_VALUE);
/// A handle is not, or no longer, valid.
pub const INVALID_HANDLE: CuError = CuError(cu::CUDA_ERROR_INVALID_HANDLE);
/// No context is current, or the one named is not valid.
pub const INVALID_CONTEXT: CuError = CuError(cu::CUDA_ERROR_INVALID_CONTEXT);
/// No such device.
pub const INVALID_DEVICE: CuError = CuError(cu::CUDA_ERROR_INVALID_DEVICE);
/// A name was not found.
pub const NOT_FOUND: CuError = CuError(cu::CUDA_ERROR_NOT_FOUND);
/// Work is still going on.
pub const NOT_READY: CuError = CuError(cu::CUDA_ERROR_NOT_READY);
/// This driver or device does not do that.
pub const NOT_SUPPORTED: CuError = CuError(cu::CUDA_ERROR_NOT_SUPPORTED);
/// No memory is left.
pub const OUT_OF_MEMORY: CuError = CuError(cu::CUDA_ERROR_OUT_OF_MEMORY);
/// The operating system refused.
pub const OPERATING_SYSTEM: CuError = CuError(cu::CUDA_ERROR_OPERATING_SYSTEM);
