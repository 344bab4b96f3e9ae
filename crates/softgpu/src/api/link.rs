//! Exported functions for linking at run time.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use fermata_abi::sys::driver as cu;

use super::args::{In, Name, Out};
use super::init::driver;
use super::module::{read_file, sm};
use super::{to_handle, to_pointer};
use crate::context;
use crate::error::{INVALID_HANDLE, INVALID_VALUE, Result};
use crate::jit::JitOptions;
use crate::link::Linker;

fn linker(handle: cu::CUlinkState) -> Result<Arc<Linker>> {
    driver()?
        .linkers()
        .get(to_handle(handle))
        .ok_or(INVALID_HANDLE)
}

api! {
    fn cuLinkCreate | fn cuLinkCreate_v2(
        count: c_uint,
        options: In<cu::CUjit_option>,
        values: Out<*mut c_void>,
        out: Out<cu::CUlinkState>,
    ) {
        if out.is_null() {
            return Err(INVALID_VALUE);
        }
        let sm = sm(context::current()?.device.ordinal)?;
        // SAFETY: the program passed `count` options and values, and keeps buffers among them until it destroys the
        // linker.
        let jit = unsafe { JitOptions::read(count, options.as_ptr(), values.as_ptr()) }?;
        out.set(to_pointer(Linker::create(driver()?, sm, jit).handle))
    }

    fn cuLinkAddData | fn cuLinkAddData_v2(
        state: cu::CUlinkState,
        kind: cu::CUjitInputType,
        data: In<c_void>,
        size: usize,
        name: Name,
        count: c_uint,
        options: In<cu::CUjit_option>,
        values: Out<*mut c_void>,
    ) {
        let _ = (count, options, values);
        let bytes = data.cast::<u8>().list(size)?;
        linker(state)?.add(kind, &bytes, name.text().unwrap_or("data"))
    }

    fn cuLinkAddFile | fn cuLinkAddFile_v2(
        state: cu::CUlinkState,
        kind: cu::CUjitInputType,
        path: Name,
        count: c_uint,
        options: In<cu::CUjit_option>,
        values: Out<*mut c_void>,
    ) {
        let _ = (count, options, values);
        linker(state)?.add(kind, &read_file(path)?, path.text()?)
    }

    fn cuLinkComplete(state: cu::CUlinkState, image: Out<*mut c_void>, size: Out<usize>) {
        let (address, bytes) = linker(state)?.complete()?;
        image.set(std::ptr::with_exposed_provenance_mut(address as usize))?;
        size.set_if_wanted(bytes);
        Ok(())
    }

    fn cuLinkDestroy(state: cu::CUlinkState) {
        driver()?.linkers().remove(to_handle(state)).map(drop).ok_or(INVALID_HANDLE)
    }
}
