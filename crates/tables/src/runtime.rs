//! The runtime's own interface to the driver: the primary context, and modules from fat binaries.
//!
//! | slot | arguments | what it does |
//! | --- | --- | --- |
//! | 1 | module*, fat binary wrapper | loads a module |
//! | 2 | context*, device | tells the primary context, which need not be active; CUDA 13's runtime asks once for every device, and calls no other slot |
//! | 6 | module*, wrapper, 2 pointers, u32 | loads a module |
//! | 7 | number | nothing that was seen |
//! | 8 | fat binary, module*, 2 pointers, u32 | loads a module |
//! | 12 | none | makes compilers ready, which the worker has |

use core::ffi::c_void;

use fermata_abi::sys::driver as sys;

use crate::driver::{call, put};
use crate::slots::{Named, Table};

pub const ID: [u8; 16] = [
    0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9,
];

struct Runtime;

impl Named for Runtime {
    const ID: [u8; 16] = ID;
}

pub static TABLE: Table = Table::new::<Runtime>(13)
    .with(1, load as *const c_void)
    .with(2, primary as *const c_void)
    .with(6, load as *const c_void)
    .with(7, note as *const c_void)
    .with(8, load_header as *const c_void)
    .with(12, compilers as *const c_void);

extern "C" fn primary(context: *mut sys::CUcontext, device: sys::CUdevice) -> sys::CUresult {
    // SAFETY: the runtime passes room for a context, or null.
    call(|driver| unsafe { put(context, driver.primary(device)?) })
}

/// Slots 1 and 6: what follows the wrapper in the latter says how to compile, which the driver decides.
extern "C" fn load(module: *mut sys::CUmodule, image: *const c_void) -> sys::CUresult {
    // SAFETY: the runtime passes room for a module, or null, and the wrapper that nvcc made.
    call(|driver| unsafe { put(module, driver.load(image)?) })
}

extern "C" fn load_header(image: *const c_void, module: *mut sys::CUmodule) -> sys::CUresult {
    load(module, image)
}

extern "C" fn note(_: usize) {}

extern "C" fn compilers() -> sys::CUresult {
    sys::CUDA_SUCCESS
}
