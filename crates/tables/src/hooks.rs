//! The runtime's hooks for tools: two buffers in which a profiler would leave its callbacks.
//!
//! | slot | arguments | what it does |
//! | --- | --- | --- |
//! | 2 | buffer**, entries* | a zeroed buffer of 1,024 entries |
//! | 6 | buffer**, entries* | a zeroed buffer of 14 entries |
//!
//! Zero means that no tool listens. The runtime writes past the 14 bytes that the driver names, so an
//! entry has eight.

use core::ffi::c_void;
use std::sync::atomic::AtomicU64;

use fermata_abi::sys::driver as sys;

use crate::driver::{call, put};
use crate::slots::{Named, Table};

pub const ID: [u8; 16] = [
    0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66,
];

struct Hooks;

impl Named for Hooks {
    const ID: [u8; 16] = ID;
}

const LARGE: usize = 1024;
const SMALL: usize = 14;

static LARGE_BUFFER: [AtomicU64; LARGE] = [const { AtomicU64::new(0) }; LARGE];
static SMALL_BUFFER: [AtomicU64; SMALL] = [const { AtomicU64::new(0) }; SMALL];

pub static TABLE: Table = Table::new::<Hooks>(7)
    .with(2, large as *const c_void)
    .with(6, small as *const c_void);

extern "C" fn large(buffer: *mut *mut c_void, entries: *mut usize) -> sys::CUresult {
    hand_out(&LARGE_BUFFER, buffer, entries)
}

extern "C" fn small(buffer: *mut *mut c_void, entries: *mut usize) -> sys::CUresult {
    hand_out(&SMALL_BUFFER, buffer, entries)
}

fn hand_out(
    from: &'static [AtomicU64],
    buffer: *mut *mut c_void,
    entries: *mut usize,
) -> sys::CUresult {
    let start = from.as_ptr().cast_mut().cast();
    // SAFETY: the runtime passes room for both, or null.
    call(|_| unsafe {
        put(buffer, start)?;
        put(entries, from.len())
    })
}
