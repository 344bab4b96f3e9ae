//! Exported functions for occupancy.

use std::ffi::{c_int, c_uint};

use fermata_abi::sys::driver as cu;

use super::args::{In, Out};
use super::function::function;
use super::launch::read_attributes;
use crate::error::{CuError, INVALID_VALUE, Result};
use crate::module::Function;
use crate::occupancy::{
    LARGEST_CLUSTER, Need, PORTABLE_CLUSTER, active_blocks, active_clusters, available_shared,
    best_block,
};
use crate::settings::MULTIPROCESSORS;

/// What a block with `shared` bytes of dynamic shared memory needs.
fn need(function: &Function, block: u32, shared: usize) -> Need {
    let shared = u32::try_from(shared).unwrap_or(u32::MAX);
    let allowed = shared <= function.attributes.lock().dynamic_limit(&function.info);
    let all = if allowed {
        shared.saturating_add(function.info.static_shared)
    } else {
        u32::MAX
    };
    Need::new(&function.info, block, all)
}

/// The cluster that a launch asks for; none if it asks for none.
fn cluster(config: &cu::CUlaunchConfig) -> Result<Option<[u32; 3]>> {
    // SAFETY: the program's structure says that so many attributes lie there.
    let attributes = unsafe { In::from_raw(config.attrs) };
    let attributes = read_attributes(attributes, config.numAttrs)?;
    let dimension = attributes
        .iter()
        .rev()
        .find(|attribute| attribute.id == cu::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
    Ok(dimension.map(|attribute| {
        let word = |at: usize| {
            let bytes = attribute.value.get(4 * at..4 * at + 4);
            bytes.map_or(0, |b| b.iter().rev().fold(0, |n, b| n << 8 | u32::from(*b)))
        };
        [word(0), word(1), word(2)]
    }))
}

fn cluster_need(function: &Function, config: &cu::CUlaunchConfig) -> Need {
    let threads = config
        .blockDimX
        .saturating_mul(config.blockDimY)
        .saturating_mul(config.blockDimZ);
    need(function, threads, config.sharedMemBytes as usize)
}

/// Clusters that run at once; none where the launch asks for no clusters.
fn clusters(function: &Function, config: &cu::CUlaunchConfig) -> Result<u32> {
    let Some(cluster) = cluster(config)? else {
        return Ok(0);
    };
    let grid = [config.gridDimX, config.gridDimY, config.gridDimZ];
    let fits = grid
        .iter()
        .zip(cluster)
        .all(|(blocks, size)| size > 0 && blocks.is_multiple_of(size));
    let size = cluster.iter().fold(1u32, |n, d| n.saturating_mul(*d));
    let allowed = size <= PORTABLE_CLUSTER || function.attributes.lock().non_portable_cluster;
    if !fits || !allowed {
        return Err(CuError(cu::CUDA_ERROR_INVALID_CLUSTER_SIZE));
    }
    Ok(active_clusters(
        &cluster_need(function, config),
        MULTIPROCESSORS,
        size,
    ))
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
        let function = function(handle)?;
        out.set(clusters(&function, &config.get()?)? as c_int)
    }

    fn cuOccupancyMaxPotentialClusterSize(
        out: Out<c_int>,
        handle: cu::CUfunction,
        config: In<cu::CUlaunchConfig>,
    ) {
        let function = function(handle)?;
        let possible = active_blocks(&cluster_need(&function, &config.get()?)) > 0;
        let largest = if function.attributes.lock().non_portable_cluster {
            LARGEST_CLUSTER
        } else {
            PORTABLE_CLUSTER
        };
        out.set(if possible { largest as c_int } else { 0 })
    }
}
