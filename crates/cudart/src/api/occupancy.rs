//! How many blocks fit.
use core::ffi::{c_int, c_uint, c_void};

use fermata_abi::sys::runtime::cudaLaunchConfig_t;

use crate::api::launch::driver_config;
use crate::context;
use crate::error::{Error, export, get};
use crate::registry;

export! {
    /// Blocks of a kernel that fit on one multiprocessor.
    fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int,
        func: *const c_void,
        block_size: c_int,
        dynamic_shared: usize,
    ) {
        if blocks.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let calls = context::ready()?;
        let f = registry::in_context(calls, func)?;
        calls.cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, f, block_size, dynamic_shared)
    }

    /// The same, with flags.
    fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: *mut c_int,
        func: *const c_void,
        block_size: c_int,
        dynamic_shared: usize,
        flags: c_uint,
    ) {
        if blocks.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let calls = context::ready()?;
        let f = registry::in_context(calls, func)?;
        calls.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
            blocks, f, block_size, dynamic_shared, flags,
        )
    }

    /// Dynamic shared memory each block may have so that a number of them fit.
    fn cudaOccupancyAvailableDynamicSMemPerBlock(
        bytes: *mut usize,
        func: *const c_void,
        blocks: c_int,
        block_size: c_int,
    ) {
        if bytes.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let calls = context::ready()?;
        let f = registry::in_context(calls, func)?;
        calls.cuOccupancyAvailableDynamicSMemPerBlock(bytes, f, blocks, block_size)
    }

    /// Clusters of a launch that fit on the device.
    fn cudaOccupancyMaxActiveClusters(
        clusters: *mut c_int,
        func: *const c_void,
        config: *const cudaLaunchConfig_t,
    ) {
        let config = get(config)?;
        let config = driver_config(config, config.stream)?;
        let calls = context::ready()?;
        calls.cuOccupancyMaxActiveClusters(clusters, registry::in_context(calls, func)?, &config)
    }

    /// The largest cluster a launch may have.
    fn cudaOccupancyMaxPotentialClusterSize(
        size: *mut c_int,
        func: *const c_void,
        config: *const cudaLaunchConfig_t,
    ) {
        let config = get(config)?;
        let config = driver_config(config, config.stream)?;
        let calls = context::ready()?;
        calls.cuOccupancyMaxPotentialClusterSize(size, registry::in_context(calls, func)?, &config)
    }
}
