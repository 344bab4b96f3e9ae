//! Wraps every exported function in the gate and a panic guard.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fermata_abi::sys::driver::{
    CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_UNKNOWN, CUDA_SUCCESS, CUresult,
};

use crate::frame::ending;
use crate::frame::fork;
use crate::result::Result;
use crate::thread::gate;
use crate::thread::quiet;
use crate::thread::tally;

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
    let _inside = gate::enter_again().unwrap_or_else(first_call);
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => CUDA_SUCCESS,
        Ok(Err(status)) => status,
        Err(_) => CUDA_ERROR_UNKNOWN,
    }
}

/// The thread's first call.
#[cold]
fn first_call() -> gate::Inside {
    quiet::arm();
    fork::watch();
    let inside = gate::enter();
    ending::watch();
    inside
}

/// Defines exported functions of the driver API. A body is a `Result`, and sees its arguments as the C caller passed them:
/// pointers are the checked types of [`crate::args`], whose promise each caller gives.
macro_rules! driver_api {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, missing_docs, clippy::missing_safety_doc, clippy::too_many_arguments)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> fermata_abi::sys::driver::CUresult {
            $crate::frame::entry::call(stringify!($name), || -> $crate::result::Result { $body })
        }
    )*};
}
pub(crate) use driver_api;
