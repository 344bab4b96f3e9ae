//! `cuGetProcAddress`: from a name and a version to the function that programs of that version mean.

use std::ffi::{c_int, c_void};

use fermata_abi::sys::driver as cu;
use fermata_abi::table::{self, Missing};

use super::args::{Name, Out};
use super::proc_table;
use crate::error::{INVALID_VALUE, NOT_FOUND, Result};

/// Looks a function up; true when there is none.
fn find(
    name: Name,
    out: Out<*mut c_void>,
    version: c_int,
    flags: u64,
    status: Out<cu::CUdriverProcAddressQueryResult>,
) -> Result<bool> {
    let known =
        cu::CU_GET_PROC_ADDRESS_LEGACY_STREAM | cu::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    let (Ok(flags), Ok(version)) = (u32::try_from(flags), u32::try_from(version)) else {
        return Err(INVALID_VALUE);
    };
    if out.is_null() || flags & !known != 0 || flags == known {
        return Err(INVALID_VALUE);
    }
    let per_thread = flags & cu::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM != 0;
    let found = table::resolve(name.text()?, version, per_thread);
    let address = found.map(proc_table::address);
    let (pointer, result) = match address {
        Ok(Some(function)) => (function as *mut c_void, cu::CU_GET_PROC_ADDRESS_SUCCESS),
        Err(Missing::VersionTooOld) => (
            std::ptr::null_mut(),
            cu::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT,
        ),
        _ => (
            std::ptr::null_mut(),
            cu::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
        ),
    };
    out.set(pointer)?;
    status.set_if_wanted(result);
    Ok(pointer.is_null())
}

api! {
    fn cuGetProcAddress_v2(
        name: Name,
        out: Out<*mut c_void>,
        version: c_int,
        flags: cu::cuuint64_t,
        status: Out<cu::CUdriverProcAddressQueryResult>,
    ) {
        // Whether there is one is told by the status and the pointer alone.
        find(name, out, version, flags, status).map(drop)
    }

    fn cuGetProcAddress(name: Name, out: Out<*mut c_void>, version: c_int, flags: cu::cuuint64_t) {
        match find(name, out, version, flags, Out::null())? {
            true => Err(NOT_FOUND),
            false => Ok(()),
        }
    }
}
