//! Arguments of exported functions that are pointers of the program (see [`fermata_abi::args`]), as this crate's functions
//! report errors.

use fermata_abi::args;
use fermata_abi::sys::driver::CUresult;

/// A pointer through which results are written (and, for some functions, read before).
pub type Out<T> = args::Out<T, CUresult>;

/// A pointer from which arguments are read.
pub type In<T> = args::In<T, CUresult>;

/// A string that ends with a NUL.
pub type Name = args::Name<CUresult>;
