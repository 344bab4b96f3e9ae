//! How many blocks fit on a multiprocessor.

use std::ffi::{c_int, c_uint};

use fermata_abi::sys::driver as cu;

use super::args::{In, Out};
use super::function::function;
use crate::device::MULTIPROCESSORS;
use crate::error::{INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::module::Function;
use crate::occupancy::{Need, active_blocks, available_shared, best_block};

fn need(function: &Function, block: u32, shared: usize) -> Need {
    let shared = u32::try_from(shared)
        .unwrap_or(u32::MAX)
        .saturating_add(function.info.static_shared);
    Need::new(&function.info, block, shared)
}

fn blocks(
    out: Out<c_int>,
    handle: cu::CUfunction,
    block: c_int,
    shared: usize,
    flags: c_uint,
) -> Result {
    let function = function(handle)?;
    let block = u32::try_from(block)
        .ok()
        .filter(|block| *block > 0)
        .ok_or(INVALID_VALUE)?;
    if flags > cu::CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE {
        return Err(INVALID_VALUE);
    }
    out.set(active_blocks(&need(&function, block, shared)) as c_int)
}

fn best(
    outs: (Out<c_int>, Out<c_int>),
    handle: cu::CUfunction,
    shared_of: cu::CUoccupancyB2DSize,
    shared: usize,
    limit: c_int,
) -> Result {
    let function = function(handle)?;
    let limit = u32::try_from(limit).map_err(|_| INVALID_VALUE)?;
    let shared_for = |block: u32| match shared_of {
        // SAFETY: the program passed it to be called with block sizes.
        Some(shared_of) => unsafe { shared_of(block as c_int) },
        None => shared,
    };
    let most = crate::function::max_threads(&function.info);
    let most = if limit == 0 { most } else { most.min(limit) };
    let (block, per_multiprocessor) =
        best_block(most, |block| need(&function, block, shared_for(block)));
    outs.0
        .set((per_multiprocessor * MULTIPROCESSORS) as c_int)?;
    outs.1.set(block as c_int)
}

api! {
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        out: Out<c_int>,
        handle: cu::CUfunction,
        block: c_int,
        shared: usize,
    ) {
        blocks(out, handle, block, shared, 0)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        out: Out<c_int>,
        handle: cu::CUfunction,
        block: c_int,
        shared: usize,
        flags: c_uint,
    ) {
        blocks(out, handle, block, shared, flags)
    }

    fn cuOccupancyMaxPotentialBlockSize(
        grid: Out<c_int>,
        block: Out<c_int>,
        handle: cu::CUfunction,
        shared_of: cu::CUoccupancyB2DSize,
        shared: usize,
        limit: c_int,
    ) {
        best((grid, block), handle, shared_of, shared, limit)
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: Out<c_int>,
        block: Out<c_int>,
        handle: cu::CUfunction,
        shared_of: cu::CUoccupancyB2DSize,
        shared: usize,
        limit: c_int,
        flags: c_uint,
    ) {
        if flags > cu::CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE {
            return Err(INVALID_VALUE);
        }
        best((grid, block), handle, shared_of, shared, limit)
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(
        out: Out<usize>,
        handle: cu::CUfunction,
        blocks: c_int,
        block: c_int,
    ) {
        let function = function(handle)?;
        let (Ok(blocks), Ok(block)) = (u32::try_from(blocks), u32::try_from(block)) else {
            return Err(INVALID_VALUE);
        };
        if blocks == 0 || active_blocks(&need(&function, block, 0)) < blocks {
            return Err(INVALID_VALUE);
        }
        let room = available_shared(blocks).saturating_sub(function.info.static_shared);
        let allowed = function.attributes.lock().dynamic_limit(&function.info);
        out.set(room.min(allowed) as usize)
    }

    fn cuOccupancyMaxActiveClusters(
        out: Out<c_int>,
        handle: cu::CUfunction,
        config: In<cu::CUlaunchConfig>,
    ) {
        let _ = (out, config);
        function(handle)?;
        Err(NOT_SUPPORTED)
    }
}
