//! Exported functions for the driver's error log, which stays empty: errors in the worker are in the session's log.

use core::ffi::{c_char, c_uint, c_void};

use fermata_abi::sys::driver as sys;

use crate::args::{Name, Out};
use crate::frame::entry::driver_api;
use crate::handles;
use crate::object::session::session;
use crate::result::Result;

driver_api! {
    fn cuLogsCurrent(iterator: Out<sys::CUlogIterator>, flags: c_uint) {
        session()?;
        no_flags(flags)?;
        iterator.set(0)
    }

    fn cuLogsDumpToFile(iterator: Out<sys::CUlogIterator>, path: Name, flags: c_uint) {
        session()?;
        no_flags(flags)?;
        std::fs::write(path.text()?, "").map_err(|_| sys::CUDA_ERROR_OPERATING_SYSTEM)?;
        iterator.set_if_wanted(0);
        Ok(())
    }

    fn cuLogsDumpToMemory(
        iterator: Out<sys::CUlogIterator>,
        buffer: Out<c_char>,
        size: Out<usize>,
        flags: c_uint,
    ) {
        session()?;
        no_flags(flags)?;
        if size.get()? > 0 {
            buffer.set(0)?;
        }
        size.set(0)?;
        iterator.set_if_wanted(0);
        Ok(())
    }

    fn cuLogsRegisterCallback(
        call: sys::CUlogsCallback,
        _data: *mut c_void,
        registered: Out<sys::CUlogsCallbackHandle>,
    ) {
        session()?;
        if call.is_none() {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        registered.set(handles::to_pointer(handles::fresh()))
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
