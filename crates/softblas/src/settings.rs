//! Handles and what is set on them.

use std::ffi::{c_char, c_int, c_void};

use fermata_abi::sys::driver as cu;

use crate::handle;
use crate::status::{INVALID_VALUE, Result, blas, put};

type Handle = *const c_void;

/// The release whose calls these are: 13.4.1.
const VERSION: [c_int; 3] = [13, 4, 1];

fn version() -> c_int {
    VERSION[0] * 10000 + VERSION[1] * 100 + VERSION[2]
}

/// Keeps a value that must be one of `known`.
fn set(
    handle: Handle,
    value: c_int,
    known: std::ops::Range<c_int>,
    keep: fn(&mut handle::Settings, c_int),
) -> Result {
    let handle = handle::get(handle)?;
    if !known.contains(&value) {
        return Err(INVALID_VALUE);
    }
    keep(&mut handle.settings.lock(), value);
    Ok(())
}

blas! {
    fn cublasCreate_v2(to: *mut *mut c_void) {
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the program wants the handle there.
        unsafe { put(to, handle::create()?) }
    }

    fn cublasDestroy_v2(handle: Handle) {
        handle::destroy(handle)
    }

    fn cublasLtCreate(to: *mut *mut c_void) {
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the program wants the handle there.
        unsafe { put(to, handle::create()?) }
    }

    fn cublasLtDestroy(handle: Handle) {
        handle::destroy(handle)
    }

    fn cublasGetVersion_v2(_handle: Handle, to: *mut c_int) {
        // SAFETY: the program wants it there.
        unsafe { put(to, version()) }
    }

    fn cublasGetProperty(which: c_int, to: *mut c_int) {
        let part = usize::try_from(which).ok().and_then(|at| VERSION.get(at));
        // SAFETY: the program wants it there.
        unsafe { put(to, *part.ok_or(INVALID_VALUE)?) }
    }

    fn cublasLtGetProperty(which: c_int, to: *mut c_int) {
        let part = usize::try_from(which).ok().and_then(|at| VERSION.get(at));
        // SAFETY: the program wants it there.
        unsafe { put(to, *part.ok_or(INVALID_VALUE)?) }
    }

    fn cublasSetStream_v2(handle: Handle, stream: cu::CUstream) {
        handle::get(handle)?.settings.lock().stream = stream;
        Ok(())
    }

    fn cublasGetStream_v2(handle: Handle, to: *mut cu::CUstream) {
        // SAFETY: the program wants it there.
        unsafe { put(to, handle::get(handle)?.settings.lock().stream) }
    }

    // No kernel needs memory besides its operands.
    fn cublasSetWorkspace_v2(handle: Handle, _memory: *mut c_void, _bytes: usize) {
        handle::get(handle).map(drop)
    }

    fn cublasSetPointerMode_v2(handle: Handle, mode: c_int) {
        set(handle, mode, 0..2, |settings, mode| settings.pointer_mode = mode)
    }

    fn cublasGetPointerMode_v2(handle: Handle, to: *mut c_int) {
        // SAFETY: the program wants it there.
        unsafe { put(to, handle::get(handle)?.settings.lock().pointer_mode) }
    }

    // Modes are flags, and new releases add some.
    fn cublasSetMathMode(handle: Handle, mode: c_int) {
        set(handle, mode, 0..c_int::MAX, |settings, mode| settings.math_mode = mode)
    }

    fn cublasGetMathMode(handle: Handle, to: *mut c_int) {
        // SAFETY: the program wants it there.
        unsafe { put(to, handle::get(handle)?.settings.lock().math_mode) }
    }

    fn cublasSetAtomicsMode(handle: Handle, mode: c_int) {
        set(handle, mode, 0..2, |settings, mode| settings.atomics_mode = mode)
    }

    fn cublasGetAtomicsMode(handle: Handle, to: *mut c_int) {
        // SAFETY: the program wants it there.
        unsafe { put(to, handle::get(handle)?.settings.lock().atomics_mode) }
    }

    fn cublasSetSmCountTarget(handle: Handle, count: c_int) {
        set(handle, count, 0..c_int::MAX, |settings, count| settings.multiprocessors = count)
    }

    fn cublasGetSmCountTarget(handle: Handle, to: *mut c_int) {
        // SAFETY: the program wants it there.
        unsafe { put(to, handle::get(handle)?.settings.lock().multiprocessors) }
    }
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cublasLtGetVersion() -> usize {
    version() as usize
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cublasLtGetCudartVersion() -> usize {
    13020
}

/// The name of a `cublasStatus_t`.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cublasGetStatusName(status: c_int) -> *const c_char {
    let name = match status {
        0 => c"CUBLAS_STATUS_SUCCESS",
        1 => c"CUBLAS_STATUS_NOT_INITIALIZED",
        3 => c"CUBLAS_STATUS_ALLOC_FAILED",
        7 => c"CUBLAS_STATUS_INVALID_VALUE",
        8 => c"CUBLAS_STATUS_ARCH_MISMATCH",
        11 => c"CUBLAS_STATUS_MAPPING_ERROR",
        13 => c"CUBLAS_STATUS_EXECUTION_FAILED",
        14 => c"CUBLAS_STATUS_INTERNAL_ERROR",
        15 => c"CUBLAS_STATUS_NOT_SUPPORTED",
        16 => c"CUBLAS_STATUS_LICENSE_ERROR",
        _ => c"unknown",
    };
    name.as_ptr()
}

/// What a `cublasStatus_t` means; the same for cuBLASLt.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cublasGetStatusString(status: c_int) -> *const c_char {
    let text = match status {
        0 => c"success",
        1 => c"not initialized: the device is no software GPU, or the handle is none",
        3 => c"out of memory",
        7 => c"an argument is invalid",
        11 => c"the result could not be copied",
        13 => c"a kernel could not be launched",
        15 => c"the software GPU's cuBLAS does not compute this",
        _ => c"internal error",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cublasLtGetStatusName(status: c_int) -> *const c_char {
    cublasGetStatusName(status)
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
extern "C" fn cublasLtGetStatusString(status: c_int) -> *const c_char {
    cublasGetStatusString(status)
}
