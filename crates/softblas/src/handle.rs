//! Handles of the library: of cuBLAS and of cuBLASLt, which programs use for one another.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use fermata_abi::sys::driver as cu;
use parking_lot::Mutex;

use crate::driver::driver;
use crate::kernels::Kernels;
use crate::registry::Registry;
use crate::status::{NOT_INITIALIZED, Result};

/// One handle: the kernels in one context, and what the program has set.
#[derive(Debug)]
pub struct Handle {
    /// The kernels of its context.
    pub kernels: Kernels,
    /// What the program has set.
    pub settings: Mutex<Settings>,
}

/// What a program sets.
#[derive(Debug)]
pub struct Settings {
    /// Where kernels are launched.
    pub stream: cu::CUstream,
    /// `CUBLAS_POINTER_MODE_HOST` (0) or `_DEVICE` (1).
    pub pointer_mode: c_int,
    /// Kept for the program only: all modes compute the same here.
    pub math_mode: c_int,
    /// Kept for the program only.
    pub atomics_mode: c_int,
    /// Kept for the program only.
    pub multiprocessors: c_int,
    /// Device memory for a result that goes to the host; 0 until it is needed.
    pub scratch: cu::CUdeviceptr,
}

// SAFETY: these are handles and addresses of the driver, which any thread may use.
unsafe impl Send for Settings {}

static HANDLES: Registry<Handle> = Registry::new();

/// Makes a handle for the current context.
///
/// # Errors
/// The device is no software GPU, or the kernels cannot be loaded.
pub fn create() -> Result<*mut c_void> {
    driver()?.enter()?;
    Ok(HANDLES.insert(Handle {
        kernels: Kernels::load()?,
        settings: Mutex::new(Settings {
            stream: std::ptr::null_mut(),
            pointer_mode: 0,
            math_mode: 0,
            atomics_mode: 0,
            multiprocessors: 0,
            scratch: 0,
        }),
    }))
}

/// The handle that a program names.
///
/// # Errors
/// It is none.
pub fn get(handle: *const c_void) -> Result<Arc<Handle>> {
    HANDLES.get(handle).ok_or(NOT_INITIALIZED)
}

/// Destroys a handle.
///
/// # Errors
/// It is none.
pub fn destroy(handle: *const c_void) -> Result {
    let handle = HANDLES.remove(handle).ok_or(NOT_INITIALIZED)?;
    handle.kernels.unload();
    let scratch = handle.settings.lock().scratch;
    if scratch != 0 {
        driver()?.free(scratch);
    }
    Ok(())
}
