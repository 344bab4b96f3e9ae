//! Launches: from what the program said to checked work.

use std::sync::Arc;

use fermata_abi::sys::driver as cu;
use fermata_graph::KernelNode;

use crate::attributes::{MAX_BLOCK, MAX_GRID, MAX_THREADS_PER_BLOCK};
use crate::context::Context;
use crate::driver::Driver;
use crate::error::{CuError, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::function::max_threads;
use crate::module::Function;
use crate::work::KernelWork;

/// Checks a launch. `context` is that of the stream it goes to; nodes of graphs that name their own
/// context run there.
///
/// # Errors
/// Shape, shared memory, parameters or attributes are not possible for this function.
pub fn check(driver: &Driver, context: &Context, node: &KernelNode) -> Result<KernelWork> {
    let function = Function::resolve(driver, node.function)?;
    if node.context == 0 && function.module.context.id != context.id {
        return Err(INVALID_HANDLE);
    }
    check_shape(&function, node)?;
    check_attributes(node)?;
    if node.params.len() < function.info.param_bytes {
        return Err(INVALID_VALUE);
    }
    Ok(KernelWork {
        grid: node.grid,
        block: node.block,
        shared_bytes: node.shared_bytes,
        params: node.params[..function.info.param_bytes].to_vec(),
        function,
    })
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

/// Attributes that only tune are ignored; those that would change what a kernel does are refused.
fn check_attributes(node: &KernelNode) -> Result {
    for attribute in &node.attributes {
        let words = |count: usize| attribute.value.chunks_exact(4).take(count).map(word);
        let changes_kernel = match attribute.id {
            cu::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION => words(3).any(|size| size > 1),
            cu::CU_LAUNCH_ATTRIBUTE_COOPERATIVE => words(1).any(|on| on != 0),
            _ => false,
        };
        if changes_kernel {
            return Err(NOT_SUPPORTED);
        }
    }
    Ok(())
}

fn word(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .rev()
        .fold(0, |word, byte| word << 8 | u32::from(*byte))
}
