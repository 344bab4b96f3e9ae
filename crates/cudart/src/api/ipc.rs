//! Memory and events of other processes. The driver decides whether it offers them.
use core::ffi::{c_uint, c_void};

use fermata_abi::sys::driver::{CUipcEventHandle, CUipcMemHandle};
use fermata_abi::sys::runtime::{cudaEvent_t, cudaIpcEventHandle_t, cudaIpcMemHandle_t};

use crate::api::memory::{address, pointer};
use crate::context;
use crate::error::{Error, export, put};

export! {
    /// A handle of device memory for another process.
    fn cudaIpcGetMemHandle(handle: *mut cudaIpcMemHandle_t, start: *mut c_void) {
        if handle.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuIpcGetMemHandle(handle.cast(), address(start))
    }

    /// Maps device memory of another process.
    fn cudaIpcOpenMemHandle(place: *mut *mut c_void, handle: cudaIpcMemHandle_t, flags: c_uint) {
        let handle = CUipcMemHandle { reserved: handle.reserved };
        let mut start = 0;
        context::ready()?.cuIpcOpenMemHandle_v2(&mut start, handle, flags)?;
        put(place, pointer(start))
    }

    /// Unmaps device memory of another process.
    fn cudaIpcCloseMemHandle(start: *mut c_void) {
        context::ready()?.cuIpcCloseMemHandle(address(start))
    }

    /// A handle of an event for another process.
    fn cudaIpcGetEventHandle(handle: *mut cudaIpcEventHandle_t, event: cudaEvent_t) {
        if handle.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuIpcGetEventHandle(handle.cast(), event.cast())
    }

    /// Opens an event of another process.
    fn cudaIpcOpenEventHandle(event: *mut cudaEvent_t, handle: cudaIpcEventHandle_t) {
        if event.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let handle = CUipcEventHandle { reserved: handle.reserved };
        context::ready()?.cuIpcOpenEventHandle(event.cast(), handle)
    }
}
