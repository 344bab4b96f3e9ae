//! The driver's log of errors, which stays empty: what goes wrong in the worker stands in the session's log.

use core::ffi::{c_char, c_uint, c_void};

use fermata_abi::sys::driver as sys;

use crate::entry::{Result, driver_api, get, put, put_if, text};
use crate::handles;
use crate::session::session;

driver_api! {
    fn cuLogsCurrent(iterator: *mut sys::CUlogIterator, flags: c_uint) {
        session()?;
        no_flags(flags)?;
        put(iterator, 0)
    }

    fn cuLogsDumpToFile(iterator: *mut sys::CUlogIterator, path: *const c_char, flags: c_uint) {
        session()?;
        no_flags(flags)?;
        std::fs::write(text(path)?, "").map_err(|_| sys::CUDA_ERROR_OPERATING_SYSTEM)?;
        put_if(iterator, 0);
        Ok(())
    }

    fn cuLogsDumpToMemory(
        iterator: *mut sys::CUlogIterator,
        buffer: *mut c_char,
        size: *mut usize,
        flags: c_uint,
    ) {
        session()?;
        no_flags(flags)?;
        if *get(size)? > 0 {
            put(buffer, 0)?;
        }
        put(size, 0)?;
        put_if(iterator, 0);
        Ok(())
    }

    fn cuLogsRegisterCallback(
        call: sys::CUlogsCallback,
        _data: *mut c_void,
        registered: *mut sys::CUlogsCallbackHandle,
    ) {
        session()?;
        if call.is_none() {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        put(registered, handles::to_pointer(handles::fresh()))
    }

    fn cuLogsUnregisterCallback(registered: sys::CUlogsCallbackHandle) {
        session()?;
        if registered.is_null() { Err(sys::CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
    }
}

fn no_flags(flags: c_uint) -> Result {
    if flags == 0 {
        Ok(())
    } else {
        Err(sys::CUDA_ERROR_INVALID_VALUE)
    }
}
