//! Kernel launches: the hot path. It allocates nothing, waits for nothing and takes no lock but the ring's.

use core::ffi::c_void;
use core::sync::atomic::Ordering;

use fermata_abi::op::{FunctionId, Launch, LaunchAttribute, Op, StreamRef};
use fermata_abi::sys::driver::{
    CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT, CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT,
    CU_LAUNCH_PARAM_END_AS_INT, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
};

use fermata_wire::BareLaunch;

use crate::args::In;
use crate::link;
use crate::object::module::Function;
use crate::result::Result;

/// Parameter blocks up to this size are packed on the stack, most of them into few bytes that are zeroed first.
const SMALL: usize = 512;
const TINY: usize = 64;
/// The largest parameter block of any device.
const LARGEST: usize = 32764;

/// Most blocks of a grid and threads of a block in each dimension, on every device (CUDA C++ Programming
/// Guide, technical specifications per compute capability).
const MOST_BLOCKS: [u32; 3] = [i32::MAX as u32, 65535, 65535];
const MOST_THREADS: [u32; 3] = [1024, 1024, 64];
/// Registers of a block; a thread gets them in lots of eight.
const REGISTERS: u32 = 65536;

/// Grid, block and shared memory.
#[derive(Debug, Clone, Copy)]
pub struct LaunchShape {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared: u32,
    /// Cooperative launch.
    pub cooperative: bool,
}

/// Calls `act` with the parameter block that the program gave in either form: `params` is null or an array of one
/// pointer per parameter, each to as many bytes as the parameter has; `extra` is null or a list as `cuLaunchKernel`
/// describes it.
///
/// # Errors
/// A pointer is null, or the list is none; those of `act`.
#[inline(always)]
pub fn with_params<T>(
    function: &Function,
    params: In<*mut c_void>,
    extra: In<*mut c_void>,
    act: impl FnOnce(&[u8]) -> Result<T>,
) -> Result<T> {
    let (mut tiny, mut small, mut large);
    let block = if !params.is_null() {
        let size = function.params_size;
        let block: &mut [u8] = if size <= TINY {
            tiny = [0; TINY];
            &mut tiny[..size]
        } else if size <= SMALL {
            small = [0; SMALL];
            &mut small[..size]
        } else {
            large = vec![0; size];
            &mut large
        };
        pack(function, params, block)?;
        block
    } else if !extra.is_null() {
        large = buffer(extra)?;
        &*large
    } else if function.params.is_empty() {
        &[]
    } else {
        return Err(CUDA_ERROR_INVALID_VALUE);
    };
    // In one place: what follows is to become part of the caller.
    act(block)
}

/// # Safety
/// As [`with_params`], `params` not null.
/// Copies each parameter to its place in `block`.
#[inline(always)]
fn pack(function: &Function, params: In<*mut c_void>, block: &mut [u8]) -> Result {
    for (n, &(offset, size)) in function.params.iter().enumerate() {
        let value = params.in_at(n)?.cast::<u8>();
        let to = &mut block[offset as usize..][..size as usize];
        // The two usual sizes without a call of `memcpy`.
        match to.len() {
            4 => to.copy_from_slice(&value.cast::<[u8; 4]>().get()?),
            8 => to.copy_from_slice(&value.cast::<[u8; 8]>().get()?),
            _ => value.copy_to(to)?,
        }
    }
    Ok(())
}

/// The parameter block in the `extra` form: pairs of key and value, ended by a key.
fn buffer(extra: In<*mut c_void>) -> Result<Vec<u8>> {
    let (mut start, mut len) = (In::<u8>::null(), 0);
    for pair in 0..8 {
        let key = extra.get_at(2 * pair)?.addr();
        if key == CU_LAUNCH_PARAM_END_AS_INT as usize {
            if start.is_null() || len > LARGEST {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            return start.list(len);
        }
        let value = extra.in_at(2 * pair + 1)?;
        if key == CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT as usize {
            start = value.cast();
        } else if key == CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT as usize {
            len = value.cast::<usize>().get()?;
        } else {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
    }
    Err(CUDA_ERROR_INVALID_VALUE)
}

/// Checks that a function can be launched in this shape. A program reads the error of the launch call, often to try
/// another shape, so the device's later error would not do.
///
/// # Errors
/// As the driver's: a dimension or the shared memory out of range, or too many threads for the registers.
#[inline(always)]
pub fn check(function: &Function, shape: &LaunchShape) -> Result {
    let within =
        |sizes: [u32; 3], most: [u32; 3]| (0..3).all(|n| sizes[n].wrapping_sub(1) < most[n]);
    if !within(shape.grid, MOST_BLOCKS) || !within(shape.block, MOST_THREADS) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let threads = shape.block.iter().product::<u32>();
    let limits = &function.limits;
    if threads > limits.threads {
        let too_many = threads.saturating_mul(limits.registers.next_multiple_of(8)) > REGISTERS;
        return Err(if too_many && threads <= MOST_THREADS[0] {
            CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
        } else {
            CUDA_ERROR_INVALID_VALUE
        });
    }
    if shape.shared > limits.shared.load(Ordering::Relaxed) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(())
}

/// Issues a launch.
#[inline(always)]
pub fn launch(
    function: &Function,
    shape: LaunchShape,
    params: &[u8],
    attributes: &[LaunchAttribute<'_>],
    stream: StreamRef,
) -> Result {
    let LaunchShape {
        grid,
        block,
        shared,
        cooperative,
    } = shape;
    let bare = BareLaunch {
        function: function.handle,
        grid,
        block,
        shared,
        cooperative,
        params,
        stream,
    };
    if attributes.is_empty() && link::try_launch(&bare)? {
        return Ok(());
    }
    launch_any(function.handle, shape, params, attributes, stream)
}

/// Posts a launch like any other operation.
#[cold]
fn launch_any(
    function: FunctionId,
    shape: LaunchShape,
    params: &[u8],
    attributes: &[LaunchAttribute<'_>],
    stream: StreamRef,
) -> Result {
    let launch = Launch {
        function,
        grid: shape.grid,
        block: shape.block,
        shared: shape.shared,
        cooperative: shape.cooperative,
        params,
        attributes: attributes.to_vec(),
    };
    link::post(&Op::Launch { launch, stream })
}
