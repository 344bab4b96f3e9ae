//! The frame around every exported function: gate, panic guard, pointer checks.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fermata_abi::sys::driver::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_UNKNOWN, CUDA_SUCCESS,
    CUresult,
};

use crate::{fork, gate, tally};

/// What a driver function computes: a value, or the `CUresult` to return instead.
pub type Result<T = ()> = core::result::Result<T, CUresult>;

/// Runs the body of an exported function. Nothing unwinds out of it, and the thread does not leave or
/// enter it while the session is stopped.
#[inline(always)]
pub fn call(name: &'static str, body: impl FnOnce() -> Result) -> CUresult {
    if fork::is_orphan() {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if tally::is_on() {
        return tally::measured(name, || guarded(body));
    }
    guarded(body)
}

#[inline(always)]
fn guarded(body: impl FnOnce() -> Result) -> CUresult {
    let _inside = gate::enter();
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => CUDA_SUCCESS,
        Ok(Err(status)) => status,
        Err(_) => CUDA_ERROR_UNKNOWN,
    }
}

/// Stores a result through a pointer of the caller; a null pointer is an invalid value.
///
/// # Safety
/// `to` is null or points to room for a `T`.
pub unsafe fn put<T>(to: *mut T, value: T) -> Result {
    if to.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so room for a T by the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

/// Stores a result if the caller wants it.
///
/// # Safety
/// As [`put`].
pub unsafe fn put_if<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: as above.
        unsafe { to.write(value) };
    }
}

/// A structure passed by pointer.
///
/// # Safety
/// `from` is null or points to a `T` that lives as long as the call.
pub unsafe fn get<'a, T>(from: *const T) -> Result<&'a T> {
    // SAFETY: by the caller's promise.
    unsafe { from.as_ref() }.ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// An array passed by pointer and length; null is an empty array if the length is 0.
///
/// # Safety
/// `from` is null or points to `len` values that live as long as the call.
pub unsafe fn array<'a, T>(from: *const T, len: usize) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    if from.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, and `len` values by the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(from, len) })
}

/// A C string as UTF-8.
///
/// # Safety
/// `from` is null or points to a NUL-terminated string that lives as long as the call.
pub unsafe fn text<'a>(from: *const core::ffi::c_char) -> Result<&'a str> {
    if from.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so a string by the caller's promise.
    unsafe { core::ffi::CStr::from_ptr(from) }
        .to_str()
        .map_err(|_| CUDA_ERROR_INVALID_VALUE)
}

/// Defines exported functions of the driver API. A body is a `Result`, and sees its arguments as the C
/// caller passed them.
macro_rules! driver_api {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, missing_docs, clippy::missing_safety_doc, clippy::too_many_arguments)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> fermata_abi::sys::driver::CUresult {
            $crate::entry::call(stringify!($name), || -> $crate::entry::Result {
                // SAFETY: each pointer is as the driver API's documentation of this function demands it
                // of the caller; null is checked for wherever one is followed.
                #[allow(unused_unsafe)]
                unsafe { $body }
            })
        }
    )*};
}
pub(crate) use driver_api;
