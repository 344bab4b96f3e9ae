//! Lines that NVIDIA's libraries would add to a log of the driver's. They are dropped.
//!
//! | slot | arguments | what it does |
//! | --- | --- | --- |
//! | 1 | category, 0, format, ... | nothing |

use core::ffi::c_void;

use fermata_abi::sys::driver as sys;

use crate::slots::{Named, Table};

pub const ID: [u8; 16] = [
    0xf8, 0xcf, 0xf9, 0x51, 0x21, 0x46, 0x8b, 0x4e, 0xb9, 0xe2, 0xfb, 0x46, 0x9e, 0x7c, 0x0d, 0xd9,
];

struct Log;

impl Named for Log {
    const ID: [u8; 16] = ID;
}

pub static TABLE: Table = Table::new::<Log>(3).with(1, line as *const c_void);

extern "C" fn line() -> sys::CUresult {
    sys::CUDA_SUCCESS
}
