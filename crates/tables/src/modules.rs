//! The tools' view of modules: cuFFT goes through the functions of one that it has linked.
//!
//! | slot | arguments | what it does |
//! | --- | --- | --- |
//! | 7 | context, module, callback, argument | calls the callback with argument and each function; returns their number |

use core::ffi::{c_int, c_void};

use fermata_abi::sys::driver as sys;

use crate::driver::call;
use crate::slots::{Named, Table};

pub const ID: [u8; 16] = [
    0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99, 0x1e,
];

struct Modules;

impl Named for Modules {
    const ID: [u8; 16] = ID;
}

type Each = extern "C" fn(*mut c_void, sys::CUfunction);

pub static TABLE: Table = Table::new::<Modules>(99).with(7, each as *const c_void);

extern "C" fn each(
    _: sys::CUcontext,
    module: sys::CUmodule,
    visit: Option<Each>,
    argument: *mut c_void,
) -> c_int {
    let mut functions = Vec::new();
    let listed = call(|driver| {
        functions = driver.functions(module)?;
        Ok(())
    });
    let Some(visit) = visit.filter(|_| listed == sys::CUDA_SUCCESS) else {
        return 0;
    };
    // The callback is the program's code: it runs outside of the driver's call.
    for function in &functions {
        visit(argument, *function);
    }
    c_int::try_from(functions.len()).unwrap_or(c_int::MAX)
}
