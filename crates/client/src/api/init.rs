//! Exported functions for initialisation and entry points.

use core::ffi::{c_int, c_uint, c_void};

use fermata_abi::sys::driver as sys;
use fermata_abi::table::{Missing, resolve};

use super::proc_table;
use crate::agent::begin;
use crate::api::tables;
use crate::args::{In, Name, Out};
use crate::frame::entry::driver_api;
use crate::object::session::session;

driver_api! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        begin::begin()?;
        match session()?.devices.count() {
            0 => Err(sys::CUDA_ERROR_NO_DEVICE),
            _ => Ok(()),
        }
    }

    fn cuDriverGetVersion(version: Out<c_int>) {
        version.set(tables::VERSION)
    }

    fn cuGetProcAddress(
        symbol: Name,
        function: Out<*mut c_void>,
        version: c_int,
        flags: sys::cuuint64_t,
    ) {
        function.set(core::ptr::null_mut())?;
        let found = find(symbol.text()?, version, flags);
        function.set(found.map_err(|_| sys::CUDA_ERROR_NOT_FOUND)?)
    }

    fn cuGetProcAddress_v2(
        symbol: Name,
        function: Out<*mut c_void>,
        version: c_int,
        flags: sys::cuuint64_t,
        status: Out<sys::CUdriverProcAddressQueryResult>,
    ) {
        function.set(core::ptr::null_mut())?;
        let (found, result) = match find(symbol.text()?, version, flags) {
            Ok(found) => (found, sys::CU_GET_PROC_ADDRESS_SUCCESS),
            Err(Missing::NoSuchName) => {
                (core::ptr::null_mut(), sys::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)
            }
            Err(Missing::VersionTooOld) => {
                (core::ptr::null_mut(), sys::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT)
            }
        };
        status.set_if_wanted(result);
        function.set(found)?;
        // Without a place for the status, a missing name is an error.
        if found.is_null() && status.is_null() { Err(sys::CUDA_ERROR_NOT_FOUND) } else { Ok(()) }
    }

    fn cuGetExportTable(table: Out<*const c_void>, id: In<sys::CUuuid>) {
        table.set(core::ptr::null())?;
        table.set(tables::serve(&id.get()?).ok_or(sys::CUDA_ERROR_NOT_FOUND)?)
    }
}

fn find(symbol: &str, version: c_int, flags: u64) -> core::result::Result<*mut c_void, Missing> {
    let per_thread = flags & u64::from(sys::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    let version = u32::try_from(version).unwrap_or(0);
    let symbol = resolve(symbol, version, per_thread)?;
    proc_table::address(symbol)
        .map(|entry| entry as *mut c_void)
        .ok_or(Missing::NoSuchName)
}
