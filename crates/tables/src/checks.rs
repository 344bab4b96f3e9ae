//! Checks of a context that the runtime makes before it uses one. They never find anything.
//!
//! | slot | arguments | what it does |
//! | --- | --- | --- |
//! | 2 | context, u32*, pointer* | writes 0 to the first, leaves the second alone |
//! | 3 | none | returns 0 |

use core::ffi::c_void;

use fermata_abi::sys::driver as sys;

use crate::driver::{call, put};
use crate::slots::{Named, Table};

pub const ID: [u8; 16] = [
    0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa, 0x7e,
];

struct Checks;

impl Named for Checks {
    const ID: [u8; 16] = ID;
}

pub static TABLE: Table = Table::new::<Checks>(15)
    .with(2, context as *const c_void)
    .with(3, nothing as *const c_void);

extern "C" fn context(_: sys::CUcontext, found: *mut u32) -> sys::CUresult {
    // SAFETY: the caller passes room for the number, or null.
    call(|_| unsafe { put(found, 0) })
}

extern "C" fn nothing() -> u32 {
    0
}
