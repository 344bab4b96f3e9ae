//! The tools' view of a thread: its current context.
//!
//! | slot | arguments | what it does |
//! | --- | --- | --- |
//! | 2 | context* | as `cuCtxGetCurrent`; cuBLAS asks |

use core::ffi::c_void;

use fermata_abi::sys::driver as sys;

use crate::driver::{call, put};
use crate::slots::{Named, Table};

pub const ID: [u8; 16] = [
    0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc,
];

struct ThreadState;

impl Named for ThreadState {
    const ID: [u8; 16] = ID;
}

pub static TABLE: Table = Table::new::<ThreadState>(3).with(2, current as *const c_void);

extern "C" fn current(context: *mut sys::CUcontext) -> sys::CUresult {
    // SAFETY: the caller passes room for a context, or null.
    call(|driver| unsafe { put(context, driver.current()) })
}
