//! The result type of this library's functions.

use fermata_abi::sys::driver::CUresult;

/// What a driver function computes: a value, or the `CUresult` to return instead.
pub type Result<T = ()> = core::result::Result<T, CUresult>;
