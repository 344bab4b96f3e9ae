//! Launches: checks a program's arguments and turns them into work.

use fermata_abi::op::ContextId;
use std::sync::Arc;

use fermata_abi::sys::driver as cu;
use fermata_graph::KernelNode;

use crate::attributes::{MAX_BLOCK, MAX_GRID, MAX_THREADS_PER_BLOCK};
use crate::context::Context;
use crate::driver::Driver;
use crate::error::{CuError, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::exec;
use crate::function::max_threads;
use crate::green;
use crate::log;
use crate::module::Function;
use crate::occupancy::{Need, active_blocks};
use crate::work::KernelWork;

/// Checks a launch. `context` is that of the stream it goes to; nodes of graphs that name their own
/// context run there.
///
/// # Errors
/// Shape, shared memory, parameters or attributes are not possible for this function.
pub fn check(driver: &Driver, context: &Context, node: &KernelNode) -> Result<KernelWork> {
    let function = Function::resolve(driver, node.function.raw())?;
    if node.context == ContextId::NULL && function.module.context.id != context.id {
        return Err(INVALID_HANDLE);
    }
    check_supported(&function)?;
    check_shape(&function, node)?;
    let cooperative = check_attributes(&function, node)?;
    let green = driver.greens().get(node.context.raw());
    let processors = green.map_or(green::ALL, |green| green.mask);
    let resident = resident(&function, node, processors.count_ones());
    if cooperative && blocks(node) > resident {
        return Err(CuError(cu::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE));
    }
    if node.params.len() < function.info.param_bytes {
        return Err(INVALID_VALUE);
    }
    Ok(KernelWork {
        grid: node.grid,
        block: node.block,
        shared_bytes: node.shared_bytes,
        cooperative,
        resident,
        processors,
        params: node.params[..function.info.param_bytes].to_vec(),
        function,
    })
}

/// Whether all that a function may run is executed here.
///
/// # Errors
/// It is not; the reason is told.
pub fn check_supported(function: &Function) -> Result {
    match &function.info.refused {
        Some(why) => Err(refuse(function, why)),
        None => Ok(()),
    }
}

fn check_shape(function: &Arc<Function>, node: &KernelNode) -> Result {
    let within = |sizes: [u32; 3], most: [u32; 3]| {
        sizes
            .iter()
            .zip(most)
            .all(|(size, most)| (1..=most).contains(size))
    };
    if !within(node.grid, MAX_GRID) || !within(node.block, MAX_BLOCK) {
        return Err(INVALID_VALUE);
    }
    let threads: u32 = node.block.iter().product();
    if threads > MAX_THREADS_PER_BLOCK || threads > function.info.max_threads {
        return Err(INVALID_VALUE);
    }
    if threads > max_threads(&function.info) {
        return Err(CuError(cu::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES));
    }
    if node.shared_bytes > function.attributes.lock().dynamic_limit(&function.info) {
        return Err(INVALID_VALUE);
    }
    Ok(())
}

/// Tells why a launch is refused.
fn refuse(function: &Function, why: &str) -> CuError {
    log::tell(format!("cannot launch `{}`: {why}", function.info.name));
    NOT_SUPPORTED
}

fn blocks(node: &KernelNode) -> u64 {
    node.grid.iter().map(|&n| u64::from(n)).product()
}

/// Blocks of a launch that so many multiprocessors run at once.
fn resident(function: &Function, node: &KernelNode, processors: u32) -> u64 {
    let shared = node
        .shared_bytes
        .saturating_add(function.info.static_shared);
    let need = Need::new(&function.info, node.block.iter().product(), shared);
    (u64::from(active_blocks(&need)) * u64::from(processors)).clamp(1, exec::MOST_BLOCKS)
}

/// Whether the launch is cooperative. Attributes that only tune are ignored; those that would change what a kernel
/// does, and are not supported, are refused.
fn check_attributes(function: &Function, node: &KernelNode) -> Result<bool> {
    let mut cooperative = false;
    for attribute in &node.attributes {
        let words = |count: usize| attribute.value.chunks_exact(4).take(count).map(word);
        match attribute.id {
            cu::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION if words(3).any(|size| size > 1) => {
                return Err(refuse(
                    function,
                    "clusters of more than one block are not supported",
                ));
            }
            cu::CU_LAUNCH_ATTRIBUTE_COOPERATIVE => cooperative = words(1).any(|on| on != 0),
            _ => {}
        }
    }
    Ok(cooperative)
}

fn word(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .rev()
        .fold(0, |word, byte| word << 8 | u32::from(*byte))
}
