//! Functions of the driver by name, and the private tables, which are not given.
use core::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use fermata_abi::sys::driver::cuuint64_t;
use fermata_abi::sys::runtime::{
    cudaDriverEntryPointQueryResult, cudaDriverEntryPointSuccess,
    cudaDriverEntryPointSymbolNotFound, cudaEnableLegacyStream, cudaEnablePerThreadDefaultStream,
    cudaError_t, cudaErrorSymbolNotFound,
};

use crate::driver;
use crate::error::{self, Error, Result, export, put};

/// The version asked for when the program names none.
const VERSION: c_uint = 13_000;

/// # Safety
/// `symbol` is terminated; `place` and `status` are null or writable.
unsafe fn find(
    symbol: *const c_char,
    place: *mut *mut c_void,
    version: c_uint,
    flags: c_ulonglong,
    status: *mut cudaDriverEntryPointQueryResult,
) -> Result {
    if symbol.is_null() || place.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let calls = driver::get()?;
    let version = c_int::try_from(version).map_err(|_| Error::INVALID_VALUE)?;
    let mut found = cudaDriverEntryPointSuccess;
    let flags: cuuint64_t = flags;
    // SAFETY: the caller's promise.
    let result = unsafe {
        place.write(core::ptr::null_mut());
        calls.cuGetProcAddress_v2(symbol, place, version, flags, &mut found)
    };
    match result {
        Err(Error(cudaErrorSymbolNotFound)) => {
            if found == cudaDriverEntryPointSuccess {
                found = cudaDriverEntryPointSymbolNotFound;
            }
        }
        other => other?,
    }
    // SAFETY: the caller's promise.
    unsafe {
        if !status.is_null() {
            return put(status, found);
        }
        if place.read().is_null() {
            Err(Error(cudaErrorSymbolNotFound))
        } else {
            Ok(())
        }
    }
}

/// Flags of a program built with per-thread default streams that names no kind of stream.
fn per_thread(flags: c_ulonglong) -> c_ulonglong {
    let named = c_ulonglong::from(cudaEnableLegacyStream | cudaEnablePerThreadDefaultStream);
    if flags & named == 0 {
        flags | c_ulonglong::from(cudaEnablePerThreadDefaultStream)
    } else {
        flags
    }
}

export! {
    /// The driver function of a name, as of this runtime's version.
    fn cudaGetDriverEntryPoint(
        symbol: *const c_char,
        place: *mut *mut c_void,
        flags: c_ulonglong,
        status: *mut cudaDriverEntryPointQueryResult,
    ) {
        find(symbol, place, VERSION, flags, status)
    }

    /// The same for programs built with per-thread default streams.
    fn cudaGetDriverEntryPoint_ptsz(
        symbol: *const c_char,
        place: *mut *mut c_void,
        flags: c_ulonglong,
        status: *mut cudaDriverEntryPointQueryResult,
    ) {
        find(symbol, place, VERSION, per_thread(flags), status)
    }

    /// The driver function of a name, as of a version.
    fn cudaGetDriverEntryPointByVersion(
        symbol: *const c_char,
        place: *mut *mut c_void,
        version: c_uint,
        flags: c_ulonglong,
        status: *mut cudaDriverEntryPointQueryResult,
    ) {
        find(symbol, place, version, flags, status)
    }

    /// The same for programs built with per-thread default streams.
    fn cudaGetDriverEntryPointByVersion_ptsz(
        symbol: *const c_char,
        place: *mut *mut c_void,
        version: c_uint,
        flags: c_ulonglong,
        status: *mut cudaDriverEntryPointQueryResult,
    ) {
        find(symbol, place, version, per_thread(flags), status)
    }
}

/// A hook of the runtime's own tools, which this runtime does not have.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn __cudaGetProcAddress() -> cudaError_t {
    error::refuse()
}
