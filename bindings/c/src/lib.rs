//! The C interface of the application library; `include/fermata.h` is its documentation.
//!
//! Nothing unwinds across it and nothing is printed. A session is a lock around [`fermata_app::Session`]; a null pointer
//! where none may be is an error, not a crash.

mod comm;
mod error;
mod info;
mod session;

use std::ffi::c_int;

/// `FERMATA_OK`.
pub(crate) const OK: c_int = 0;

/// The library's release.
#[unsafe(no_mangle)]
pub extern "C" fn fermata_version() -> *const std::ffi::c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
