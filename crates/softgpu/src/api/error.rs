//! Exported functions for names of result codes, and for the error log.

use std::ffi::{c_char, c_uint};

use fermata_abi::sys::driver as cu;

use super::args::{Name, Out};
use crate::error::{INVALID_VALUE, OPERATING_SYSTEM};
use crate::{log, names};

api! {
    fn cuGetErrorName(code: cu::CUresult, text: Out<*const c_char>) {
        match names::c_name(code) {
            Some(name) => text.set(name.as_ptr()),
            None => text.set(std::ptr::null()).and(Err(INVALID_VALUE)),
        }
    }

    fn cuGetErrorString(code: cu::CUresult, text: Out<*const c_char>) {
        match names::c_description(code) {
            Some(description) => text.set(description.as_ptr()),
            None => text.set(std::ptr::null()).and(Err(INVALID_VALUE)),
        }
    }

    fn cuLogsCurrent(iterator: Out<cu::CUlogIterator>, flags: c_uint) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        iterator.set(log::position())
    }

    fn cuLogsDumpToFile(iterator: Out<cu::CUlogIterator>, path: Name, flags: c_uint) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let from = if iterator.is_null() { 0 } else { iterator.get()? };
        let (messages, next) = log::since(from);
        let text: String = messages.iter().map(|message| format!("{message}\n")).collect();
        std::fs::write(path.text()?, text).map_err(|_| OPERATING_SYSTEM)?;
        iterator.set_if_wanted(next);
        Ok(())
    }

    fn cuLogsDumpToMemory(
        iterator: Out<cu::CUlogIterator>,
        buffer: Out<c_char>,
        size: Out<usize>,
        flags: c_uint,
    ) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let from = if iterator.is_null() { 0 } else { iterator.get()? };
        let (messages, next) = log::since(from);
        let text: String = messages.iter().map(|message| format!("{message}\n")).collect();
        let room = i32::try_from(size.get()?).map_err(|_| INVALID_VALUE)?;
        buffer.set_text(&text, room)?;
        iterator.set_if_wanted(next);
        size.set(text.len().min(room as usize - 1))
    }
}
