//! Errors: one newtype over `cudaError_t`, the last error of each thread, and the guard around exports.
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use fermata_abi::sys::driver::CUresult;
use fermata_abi::sys::runtime::{self as sys, cudaError_t};

/// Why a runtime call failed: a `cudaError_t` other than success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Error(pub cudaError_t);

/// The result of everything behind an export.
pub type Result<T = ()> = core::result::Result<T, Error>;

impl Error {
    pub const INVALID_VALUE: Error = Error(sys::cudaErrorInvalidValue);
    pub const INVALID_DEVICE: Error = Error(sys::cudaErrorInvalidDevice);
    pub const INVALID_SYMBOL: Error = Error(sys::cudaErrorInvalidSymbol);
    pub const INVALID_FUNCTION: Error = Error(sys::cudaErrorInvalidDeviceFunction);
    pub const INVALID_CONTEXT: Error = Error(sys::cudaErrorDeviceUninitialized);
    pub const INVALID_DIRECTION: Error = Error(sys::cudaErrorInvalidMemcpyDirection);
    pub const NOT_SUPPORTED: Error = Error(sys::cudaErrorNotSupported);
    pub const NO_DRIVER: Error = Error(sys::cudaErrorInsufficientDriver);
    pub const FORKED: Error = Error(sys::cudaErrorInitializationError);
    /// The driver exports no such function, because it is older than the call.
    pub const MISSING_DRIVER_FUNCTION: Error = Error(sys::cudaErrorCallRequiresNewerDriver);

    /// The driver's answer as a runtime result.
    ///
    /// Both APIs number their errors alike; what the runtime has no name for becomes "unknown".
    #[inline]
    pub fn check(result: CUresult) -> Result {
        if result == 0 {
            Ok(())
        } else {
            Err(Self::of(result))
        }
    }

    #[cold]
    fn of(code: CUresult) -> Self {
        match crate::api::error::name(code) {
            Some(_) => Self(code),
            None => Self(sys::cudaErrorUnknown),
        }
    }
}

/// Why the driver could not be initialised when it was tried last; 0 if it could.
static NO_START: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static LAST: Cell<cudaError_t> = const { Cell::new(0) };
}

/// Runs an export's body, keeps panics inside, and records what went wrong.
#[inline]
pub fn guard(body: impl FnOnce() -> Result) -> cudaError_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => sys::cudaSuccess,
        Ok(Err(error)) => record(error),
        Err(_) => record(Error(sys::cudaErrorUnknown)),
    }
}

/// Makes `error` the thread's last one.
#[cold]
pub fn record(error: Error) -> cudaError_t {
    LAST.set(error.0);
    error.0
}

/// What an export that is not supported answers.
pub fn refuse() -> cudaError_t {
    record(Error::NOT_SUPPORTED)
}

/// Keeps the outcome of initialising the driver: while it fails, it is every thread's last error.
pub fn started(outcome: &Result) {
    let code = outcome.map_or_else(|error| error.0, |()| 0);
    NO_START.store(code, Ordering::Relaxed);
}

/// The thread's last error.
pub fn peek() -> cudaError_t {
    match NO_START.load(Ordering::Relaxed) {
        0 => LAST.get(),
        no_start => no_start,
    }
}

/// Like [`peek`], and forgets it.
pub fn take() -> cudaError_t {
    let error = peek();
    LAST.set(0);
    error
}

/// Defines exported functions that return `cudaError_t`; their bodies are unsafe and return [`Result`].
macro_rules! export {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        ///
        /// # Safety
        /// The pointers must be what the CUDA runtime API asks for.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> fermata_abi::sys::runtime::cudaError_t {
            // SAFETY: the program keeps the contract of the function it calls; `put` checks for null.
            #[allow(unused_unsafe)]
            $crate::error::guard(move || unsafe { $body })
        }
    )*};
}
pub(crate) use export;

/// Writes through a pointer the program gave.
///
/// # Safety
/// `to` is null or valid for a write.
pub unsafe fn put<T>(to: *mut T, value: T) -> Result {
    if to.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    // SAFETY: not null, and so valid by the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

/// Reads a structure the program gave.
///
/// # Safety
/// `from` is null or valid for a read.
pub unsafe fn get<'a, T>(from: *const T) -> Result<&'a T> {
    // SAFETY: null is looked for, anything else is valid by the caller's promise.
    unsafe { from.as_ref() }.ok_or(Error::INVALID_VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_results_keep_their_number_or_become_unknown() {
        assert_eq!(Error::check(0), Ok(()));
        assert_eq!(Error::check(2), Err(Error(sys::cudaErrorMemoryAllocation)));
        assert_eq!(Error::check(700), Err(Error(sys::cudaErrorIllegalAddress)));
        assert_eq!(Error::check(98_765), Err(Error(sys::cudaErrorUnknown)));
    }

    #[test]
    fn the_last_error_is_taken_once() {
        assert_eq!(
            guard(|| Err(Error::INVALID_VALUE)),
            sys::cudaErrorInvalidValue
        );
        assert_eq!(guard(|| Ok(())), sys::cudaSuccess);
        assert_eq!(peek(), sys::cudaErrorInvalidValue);
        assert_eq!(take(), sys::cudaErrorInvalidValue);
        assert_eq!(take(), sys::cudaSuccess);
    }

    #[test]
    fn a_panic_stays_inside() {
        assert_eq!(guard(|| panic!("on purpose")), sys::cudaErrorUnknown);
        take();
    }
}
