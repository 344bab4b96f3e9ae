//! The tools' view of contexts, of which cuBLAS, cuFFT and their heuristics use three functions.
//!
//! | slot | arguments | what it does |
//! | --- | --- | --- |
//! | 4 | context, u64* | as `cuCtxGetId` |
//! | 39 | context, stream, u64* | as `cuStreamGetId` |
//! | 51 | context, stream, stream* | the stream itself; for a null one, the legacy default stream |
//!
//! It has 93 slots in the driver of CUDA 13.0, 94 from 13.4 on.

use core::ffi::c_void;

use fermata_abi::sys::driver as sys;

use crate::driver::{call, put};
use crate::slots::{Named, Table};

pub const ID: [u8; 16] = [
    0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8, 0xf2,
];

struct Contexts;

impl Named for Contexts {
    const ID: [u8; 16] = ID;
}

/// `CU_STREAM_LEGACY`.
const LEGACY: sys::CUstream = core::ptr::without_provenance_mut(1);

pub static TABLE: Table = Table::new::<Contexts>(94)
    .with(4, context_id as *const c_void)
    .with(39, stream_id as *const c_void)
    .with(51, stream as *const c_void);

extern "C" fn context_id(context: sys::CUcontext, id: *mut u64) -> sys::CUresult {
    // SAFETY: the caller passes room for the number, or null.
    call(|driver| unsafe { put(id, driver.context_id(context)?) })
}

extern "C" fn stream_id(
    context: sys::CUcontext,
    stream: sys::CUstream,
    id: *mut u64,
) -> sys::CUresult {
    // SAFETY: as above.
    call(|driver| unsafe { put(id, driver.stream_id(context, stream)?) })
}

extern "C" fn stream(
    _: sys::CUcontext,
    stream: sys::CUstream,
    found: *mut sys::CUstream,
) -> sys::CUresult {
    let stream = if stream.is_null() { LEGACY } else { stream };
    // SAFETY: the caller passes room for a stream, or null.
    call(|_| unsafe { put(found, stream) })
}
