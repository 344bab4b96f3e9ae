//! Starting the driver and its version.

use std::ffi::{c_int, c_uint};

use fermata_abi::sys::driver as cu;

use super::args::Out;
use crate::driver;
use crate::error::{INVALID_VALUE, Result};
use crate::remote::helper;

/// The CUDA version this driver is of.
pub const VERSION: c_int = cu::CUDA_VERSION as c_int;

api! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        driver::init()?;
        helper::start();
        Ok(())
    }

    fn cuDriverGetVersion(version: Out<c_int>) {
        version.set(VERSION)
    }

    /// Answers that all writes are visible, as they always are.
    fn cuFlushGPUDirectRDMAWrites(
        target: cu::CUflushGPUDirectRDMAWritesTarget,
        scope: cu::CUflushGPUDirectRDMAWritesScope,
    ) {
        let _ = (target, scope);
        crate::context::current().map(drop)
    }

    /// Always succeeds: there is nothing to profile.
    fn cuProfilerStart | fn cuProfilerStop() {
        crate::context::current().map(drop)
    }
}

/// The driver, for functions that need no context.
pub fn driver() -> Result<&'static driver::Driver> {
    driver::get()
}
