//! Exported functions for occupancy; every answer comes from the driver.

use core::ffi::{c_int, c_uint};

use fermata_abi::op::{Launch, Occupancy, STREAM_LEGACY, SharedOf, StreamRef};
use fermata_abi::sys::driver as sys;

use super::function::find;
use super::launch::Attributes;
use crate::args::{In, Out};
use crate::frame::entry::driver_api;
use crate::object::module::Function;
use crate::object::session::session;
use crate::result::Result;

driver_api! {
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<c_int>,
        function: sys::CUfunction,
        block: c_int,
        shared: usize,
    ) {
        blocks.set(active_blocks(&*find(function)?, block, shared, 0)?)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<c_int>,
        function: sys::CUfunction,
        block: c_int,
        shared: usize,
        flags: c_uint,
    ) {
        blocks.set(active_blocks(&*find(function)?, block, shared, flags)?)
    }

    fn cuOccupancyMaxPotentialBlockSize(
        grid: Out<c_int>,
        block: Out<c_int>,
        function: sys::CUfunction,
        shared_of: sys::CUoccupancyB2DSize,
        shared: usize,
        limit: c_int,
    ) {
        let (best_grid, best_block) = best(&*find(function)?, shared_of, shared, limit, 0)?;
        grid.set(best_grid)?;
        block.set(best_block)
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: Out<c_int>,
        block: Out<c_int>,
        function: sys::CUfunction,
        shared_of: sys::CUoccupancyB2DSize,
        shared: usize,
        limit: c_int,
        flags: c_uint,
    ) {
        let (best_grid, best_block) = best(&*find(function)?, shared_of, shared, limit, flags)?;
        grid.set(best_grid)?;
        block.set(best_block)
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(
        bytes: Out<usize>,
        function: sys::CUfunction,
        blocks: c_int,
        block: c_int,
    ) {
        let function = find(function)?;
        let question = Occupancy::SharedMemory { blocks, block };
        bytes.set(function.occupancy.ask(function.handle, question)?.0 as usize)
    }

    fn cuOccupancyMaxActiveClusters(
        clusters: Out<c_int>,
        function: sys::CUfunction,
        config: In<sys::CUlaunchConfig>,
    ) {
        let (function, config) = (find(function)?, config.get()?);
        let attributes = Attributes::list(&config)?;
        clusters.set(of_launch(&function, &config, &attributes, Occupancy::Clusters)?)
    }

    fn cuOccupancyMaxPotentialClusterSize(
        size: Out<c_int>,
        function: sys::CUfunction,
        config: In<sys::CUlaunchConfig>,
    ) {
        let (function, config) = (find(function)?, config.get()?);
        let attributes = Attributes::list(&config)?;
        size.set(of_launch(&function, &config, &attributes, Occupancy::ClusterSize)?)
    }
}

fn active_blocks(function: &Function, block: c_int, shared: usize, flags: u32) -> Result<c_int> {
    let question = Occupancy::Blocks {
        block,
        shared: shared as u64,
        flags,
    };
    Ok(function.occupancy.ask(function.handle, question)?.0 as c_int)
}

/// The largest block that keeps the most threads on a multiprocessor, and the grid that fills the device.
fn best(
    function: &Function,
    shared_of: sys::CUoccupancyB2DSize,
    shared: usize,
    limit: c_int,
    flags: u32,
) -> Result<(c_int, c_int)> {
    let shared = match shared_of {
        None => SharedOf::Any(shared as u64),
        Some(of) => {
            let device = session()?.devices.get(function.module.context.device)?;
            let warp = device
                .attribute(sys::CU_DEVICE_ATTRIBUTE_WARP_SIZE)
                .unwrap_or(32)
                .max(1);
            let most = function.attribute(sys::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK as i32)?;
            let most = if limit > 0 { most.min(limit) } else { most };
            // Sizes that a driver tries: whole warps, and the most that there may be.
            let whole = (1..=most / warp).rev().map(|warps| warps * warp);
            let sizes = (most % warp != 0).then_some(most).into_iter().chain(whole);
            // SAFETY: the program passes a function of this type, which only computes.
            let need = sizes.map(|size| (size, unsafe { of(size) } as u64));
            SharedOf::Sizes(need.collect())
        }
    };
    let question = Occupancy::BlockSize {
        shared,
        limit,
        flags,
    };
    let (grid, block) = function.occupancy.ask(function.handle, question)?;
    Ok((grid as c_int, block as c_int))
}

fn of_launch<'a>(
    function: &Function,
    config: &sys::CUlaunchConfig,
    attributes: &'a [sys::CUlaunchAttribute],
    question: impl FnOnce(Launch<'a>, StreamRef) -> Occupancy<'a>,
) -> Result<c_int> {
    let attributes = Attributes::of(attributes);
    let launch = Launch {
        function: function.handle,
        grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
        block: [config.blockDimX, config.blockDimY, config.blockDimZ],
        shared: config.sharedMemBytes,
        cooperative: attributes.cooperative,
        params: &[],
        attributes: attributes.plain,
    };
    let stream = session()?.streams.resolve(config.hStream)?;
    // Only the multiprocessors matter that the stream may use: in another context these are all.
    let context = function.module.context.handle;
    let stream = match stream.context == context {
        true => stream,
        false => StreamRef {
            context,
            stream: STREAM_LEGACY,
        },
    };
    Ok(function
        .occupancy
        .ask(function.handle, question(launch, stream))?
        .0 as c_int)
}
