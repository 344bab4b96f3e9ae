//! Exported functions that start the driver and report its version.

use std::ffi::{c_int, c_uint};
use std::sync::OnceLock;

use fermata_abi::sys::driver as cu;

use super::args::Out;
use crate::driver;
use crate::error::{INVALID_VALUE, Result};
use crate::remote::helper;
use crate::settings::Settings;

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
        version.set(self::version()?)
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

/// The CUDA version that this driver reports. Runtimes ask before they start it.
pub fn version() -> Result<c_int> {
    static KNOWN: OnceLock<c_int> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(*known);
    }
    let set = Settings::from_env()?.cuda_version;
    Ok(*KNOWN.get_or_init(|| set))
}

/// The driver, for functions that need no context.
pub fn driver() -> Result<&'static driver::Driver> {
    driver::get()
}
