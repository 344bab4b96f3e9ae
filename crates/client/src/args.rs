//! Pointer arguments of exported functions (see [`fermata_abi::args`]), with `CUresult` as the error.

use fermata_abi::args;
use fermata_abi::sys::driver::CUresult;

/// A pointer through which results are written (and, for some functions, read before).
pub type Out<T> = args::Out<T, CUresult>;

/// A pointer from which arguments are read.
pub type In<T> = args::In<T, CUresult>;

/// A string that ends with a NUL.
pub type Name = args::Name<CUresult>;
