//! Results of calls, and the way into the library.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A `cublasStatus_t` other than success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(c_int);

/// The library could not be set up, or the handle is none.
pub const NOT_INITIALIZED: Status = Status(1);
/// Memory is short.
pub const ALLOC_FAILED: Status = Status(3);
/// An argument is wrong.
pub const INVALID_VALUE: Status = Status(7);
/// A copy of a result failed.
pub const MAPPING_ERROR: Status = Status(11);
/// A kernel could not be launched.
pub const EXECUTION_FAILED: Status = Status(13);
/// Something that cannot happen has.
pub const INTERNAL_ERROR: Status = Status(14);
/// What is asked for is not among what this library computes.
pub const NOT_SUPPORTED: Status = Status(15);

/// What a call comes to.
pub type Result<T = ()> = std::result::Result<T, Status>;

impl Status {
    /// As C sees it.
    pub fn code(self) -> c_int {
        self.0
    }
}

/// Runs the body of a call. A panic becomes an error of the call.
pub fn answer(body: impl FnOnce() -> Result) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(status)) => status.code(),
        Err(_) => INTERNAL_ERROR.code(),
    }
}

/// Writes a result where the caller wants it.
///
/// # Errors
/// It is wanted nowhere.
///
/// # Safety
/// `to` is null or may be written.
pub unsafe fn put<T>(to: *mut T, value: T) -> Result {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller says so; C structures may lie unaligned.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Exports functions with C's calling convention, whose bodies come to a [`Result`].
macro_rules! blas {
    ($($(#[$attribute:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => {$(
        $(#[$attribute])*
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> std::ffi::c_int {
            $crate::status::answer(move || $body)
        }
    )*};
}
pub(crate) use blas;
