//! Pointer arguments of exported functions, with this crate's error.

use fermata_abi::args;
use fermata_abi::sys::driver::CUDA_ERROR_INVALID_VALUE;

use crate::error::CuError;

/// A pointer through which results are written (and, for some functions, read before).
pub type Out<T> = args::Out<T, CuError>;

/// A pointer from which arguments are read.
pub type In<T> = args::In<T, CuError>;

/// A string that ends with a NUL.
pub type Name = args::Name<CuError>;

impl args::Refusal for CuError {
    const INVALID_VALUE: Self = Self(CUDA_ERROR_INVALID_VALUE);
}
