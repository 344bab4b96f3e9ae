//! Occupancy.

use core::ffi::{c_int, c_uint};

use fermata_abi::op::Op;
use fermata_abi::sys::driver as sys;

use super::function::find;
use crate::context::current;
use crate::entry::{Result, driver_api, put};
use crate::link;
use crate::module::Function;
use crate::session::session;

driver_api! {
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int,
        function: sys::CUfunction,
        block: c_int,
        shared: usize,
    ) {
        put(blocks, active_blocks(&*find(function)?, block, shared, 0)?)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: *mut c_int,
        function: sys::CUfunction,
        block: c_int,
        shared: usize,
        flags: c_uint,
    ) {
        put(blocks, active_blocks(&*find(function)?, block, shared, flags)?)
    }

    fn cuOccupancyMaxPotentialBlockSize(
        grid: *mut c_int,
        block: *mut c_int,
        function: sys::CUfunction,
        shared_of: sys::CUoccupancyB2DSize,
        shared: usize,
        limit: c_int,
    ) {
        let (best_grid, best_block) = best(&*find(function)?, shared_of, shared, limit, 0)?;
        put(grid, best_grid)?;
        put(block, best_block)
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: *mut c_int,
        block: *mut c_int,
        function: sys::CUfunction,
        shared_of: sys::CUoccupancyB2DSize,
        shared: usize,
        limit: c_int,
        flags: c_uint,
    ) {
        let (best_grid, best_block) = best(&*find(function)?, shared_of, shared, limit, flags)?;
        put(grid, best_grid)?;
        put(block, best_block)
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(
        bytes: *mut usize,
        function: sys::CUfunction,
        blocks: c_int,
        block: c_int,
    ) {
        if blocks <= 0 || block <= 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let function = find(function)?;
        let device = session()?.devices.get(current()?.device)?;
        let all = device.attribute(sys::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?;
        let fixed = function.attribute(sys::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES as i32)?;
        let most = device.attribute(sys::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        put(bytes, ((all / blocks).min(most) - fixed).max(0) as usize)
    }
}

fn active_blocks(function: &Function, block: c_int, shared: usize, flags: u32) -> Result<c_int> {
    let block = u32::try_from(block).map_err(|_| sys::CUDA_ERROR_INVALID_VALUE)?;
    if block == 0 {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    let op = Op::Occupancy {
        function: function.handle,
        block,
        shared: shared as u64,
        flags,
    };
    Ok(link::ask(&op, link::number)? as c_int)
}

/// The largest block that keeps the most threads on a multiprocessor, and the grid that fills the device.
fn best(
    function: &Function,
    shared_of: sys::CUoccupancyB2DSize,
    shared: usize,
    limit: c_int,
    flags: u32,
) -> Result<(c_int, c_int)> {
    let device = session()?.devices.get(current()?.device)?;
    let warp = device.attribute(sys::CU_DEVICE_ATTRIBUTE_WARP_SIZE)?.max(1);
    let most = function.attribute(sys::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK as i32)?;
    let most = if limit > 0 { most.min(limit) } else { most };
    let mut found = (0, 0, 0);
    let mut block = (most / warp).max(1) * warp;
    while block > 0 {
        // SAFETY: the program passes a function of this type, which only computes.
        let shared = shared_of.map_or(shared, |of| unsafe { of(block) });
        let blocks = active_blocks(function, block.min(most), shared, flags)?;
        if blocks * block > found.0 {
            found = (blocks * block, blocks, block.min(most));
        }
        block -= warp;
    }
    let processors = device.attribute(sys::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    Ok((found.1 * processors, found.2))
}
