//! Error objects, and the guard around every call.

use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use fermata_app::AppError;

use crate::OK;

/// What a caller gets when a call fails.
pub struct Failure {
    status: c_int,
    message: CString,
    hint: Option<CString>,
}

fn text(s: &str) -> CString {
    CString::new(s.replace('\0', " ")).unwrap_or_default()
}

impl Failure {
    fn new(error: &AppError) -> Self {
        Self {
            status: error.code(),
            message: text(&error.text()),
            hint: error.hint().map(text),
        }
    }
}

/// A call that makes no sense.
pub(crate) fn misuse(op: &'static str, what: &str) -> AppError {
    AppError::Misuse {
        op,
        what: what.into(),
    }
}

/// Runs a call; its failure goes to `*error` and its number is returned.
///
/// # Safety
/// `error` is null or can be written.
pub(crate) unsafe fn guard(
    error: *mut *mut Failure,
    call: impl FnOnce() -> Result<(), AppError>,
) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(call))
        .unwrap_or(Err(AppError::Fault("a call of the library")));
    let Err(failed) = result else {
        return OK;
    };
    if !error.is_null() {
        let object = Box::into_raw(Box::new(Failure::new(&failed)));
        // SAFETY: the caller says that it can be written.
        unsafe { error.write(object) };
    }
    failed.code()
}

/// The message.
///
/// # Safety
/// `error` is null or an error object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_error_message(error: *const Failure) -> *const c_char {
    // SAFETY: the caller passes null or an error object.
    unsafe { error.as_ref() }.map_or(c"".as_ptr(), |e| e.message.as_ptr())
}

/// The hint, or null.
///
/// # Safety
/// `error` is null or an error object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_error_hint(error: *const Failure) -> *const c_char {
    // SAFETY: the caller passes null or an error object.
    let hint = unsafe { error.as_ref() }.and_then(|e| e.hint.as_ref());
    hint.map_or(std::ptr::null(), |h| h.as_ptr())
}

/// The status.
///
/// # Safety
/// `error` is null or an error object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_error_status(error: *const Failure) -> c_int {
    // SAFETY: the caller passes null or an error object.
    unsafe { error.as_ref() }.map_or(OK, |e| e.status)
}

/// Frees an error.
///
/// # Safety
/// `error` is null or an error object that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_error_free(error: *mut Failure) {
    if !error.is_null() {
        // SAFETY: it was made by `guard` and is given back once.
        drop(unsafe { Box::from_raw(error) });
    }
}
