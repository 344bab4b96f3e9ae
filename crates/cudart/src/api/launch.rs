//! Kernel launches: configurations pushed by `<<<...>>>`, the launches themselves, host functions.
use core::ffi::{c_uint, c_void};
use std::cell::Cell;

use fermata_abi::sys::driver::{self as drv, CUlaunchConfig, CUstream};
use fermata_abi::sys::runtime::{
    cudaError_t, cudaErrorMissingConfiguration, cudaHostFn_t, cudaKernel_t, cudaLaunchConfig_t,
    cudaStream_t, cudaSuccess, dim3,
};

use crate::context;
use crate::driver::Calls;
use crate::error::{Error, Result, export, get, put, record};
use crate::registry::{self, Function};

/// Nested configurations a thread may have: one per launch whose arguments launch again.
const DEPTH: usize = 16;

#[derive(Clone, Copy)]
struct Configuration {
    grid: dim3,
    block: dim3,
    shared: usize,
    stream: usize,
}

const NO_BLOCKS: dim3 = dim3 { x: 0, y: 0, z: 0 };
const NONE: Configuration = Configuration {
    grid: NO_BLOCKS,
    block: NO_BLOCKS,
    shared: 0,
    stream: 0,
};

/// What a thread has pushed and not popped yet.
struct Pushed {
    stack: [Cell<Configuration>; DEPTH],
    depth: Cell<usize>,
}

thread_local! {
    static PUSHED: Pushed = const {
        Pushed {
            stack: [const { Cell::new(NONE) }; DEPTH],
            depth: Cell::new(0),
        }
    };
}

/// Keeps a launch configuration for the stub that is called next; 0 if that worked.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn __cudaPushCallConfiguration(
    grid: dim3,
    block: dim3,
    shared: usize,
    stream: cudaStream_t,
) -> c_uint {
    let stream = stream.expose_provenance();
    PUSHED.with(|pushed| {
        let depth = pushed.depth.get();
        let Some(slot) = pushed.stack.get(depth) else {
            return record(Error::INVALID_VALUE);
        };
        slot.set(Configuration {
            grid,
            block,
            shared,
            stream,
        });
        pushed.depth.set(depth + 1);
        cudaSuccess
    })
}

/// Hands the configuration pushed last to the stub.
///
/// # Safety
/// The pointers are null or places for what was pushed.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn __cudaPopCallConfiguration(
    grid: *mut dim3,
    block: *mut dim3,
    shared: *mut usize,
    stream: *mut c_void,
) -> cudaError_t {
    PUSHED.with(|pushed| {
        let top = pushed.depth.get().wrapping_sub(1);
        let Some(slot) = pushed.stack.get(top) else {
            return record(Error(cudaErrorMissingConfiguration));
        };
        pushed.depth.set(top);
        if grid.is_null() || block.is_null() || shared.is_null() || stream.is_null() {
            return record(Error::INVALID_VALUE);
        }
        let top = slot.get();
        // SAFETY: not null, and so places for these by the caller's promise.
        unsafe {
            grid.write(top.grid);
            block.write(top.block);
            shared.write(top.shared);
            stream.cast::<usize>().write(top.stream);
        }
        cudaSuccess
    })
}

export! {
    /// A handle of the kernel behind a host stub that stays valid for the process.
    fn __cudaGetKernel(handle: *mut cudaKernel_t, stub: *const c_void) {
        let function = core::ptr::from_ref(registry::function(stub)?);
        put(handle, function.cast_mut().cast())
    }

    /// Launches by a handle of `__cudaGetKernel`.
    fn __cudaLaunchKernel(
        handle: cudaKernel_t,
        grid: dim3,
        block: dim3,
        args: *mut *mut c_void,
        shared: usize,
        stream: cudaStream_t,
    ) {
        let function = handle.cast::<Function>().as_ref().ok_or(Error::INVALID_FUNCTION)?;
        context::with_ready(|calls| {
            launch(calls, function.kernel(calls)?.cast(), grid, block, args, shared, stream)
        })
    }

    /// The same for programs built with per-thread default streams.
    fn __cudaLaunchKernel_ptsz(
        handle: cudaKernel_t,
        grid: dim3,
        block: dim3,
        args: *mut *mut c_void,
        shared: usize,
        stream: cudaStream_t,
    ) {
        let function = handle.cast::<Function>().as_ref().ok_or(Error::INVALID_FUNCTION)?;
        context::with_ready(|calls| {
            launch(calls, function.kernel(calls)?.cast(), grid, block, args, shared, own(stream))
        })
    }

    /// Launches the kernel of a host stub or of a kernel handle.
    fn cudaLaunchKernel(
        func: *const c_void,
        grid: dim3,
        block: dim3,
        args: *mut *mut c_void,
        shared: usize,
        stream: cudaStream_t,
    ) {
        context::with_ready(|calls| {
            launch(calls, registry::launchable(calls, func)?, grid, block, args, shared, stream)
        })
    }

    /// Launches with attributes.
    fn cudaLaunchKernelExC(
        config: *const cudaLaunchConfig_t,
        func: *const c_void,
        args: *mut *mut c_void,
    ) {
        let config = get(config)?;
        launch_ex(config, config.stream, func, args)
    }

    /// The same for programs built with per-thread default streams.
    fn cudaLaunchKernelExC_ptsz(
        config: *const cudaLaunchConfig_t,
        func: *const c_void,
        args: *mut *mut c_void,
    ) {
        let config = get(config)?;
        launch_ex(config, own(config.stream), func, args)
    }

    /// Launches a grid whose blocks may wait for one another.
    fn cudaLaunchCooperativeKernel(
        func: *const c_void,
        grid: dim3,
        block: dim3,
        args: *mut *mut c_void,
        shared: usize,
        stream: cudaStream_t,
    ) {
        let calls = context::ready()?;
        let kernel = registry::launchable(calls, func)?;
        let shared = c_uint::try_from(shared).map_err(|_| Error::INVALID_VALUE)?;
        calls.cuLaunchCooperativeKernel(
            kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, stream.cast(), args,
        )
    }

    /// Calls `function` on the host when the stream gets there.
    fn cudaLaunchHostFunc(stream: cudaStream_t, function: cudaHostFn_t, data: *mut c_void) {
        if function.is_none() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuLaunchHostFunc(stream.cast(), function, data)
    }
}

/// The null stream of a program built with per-thread default streams.
fn own(stream: cudaStream_t) -> cudaStream_t {
    if stream.is_null() {
        core::ptr::without_provenance_mut(2)
    } else {
        stream
    }
}

/// # Safety
/// `args` is what the kernel's signature asks for.
unsafe fn launch(
    calls: &Calls,
    kernel: drv::CUfunction,
    grid: dim3,
    block: dim3,
    args: *mut *mut c_void,
    shared: usize,
    stream: cudaStream_t,
) -> Result {
    let shared = c_uint::try_from(shared).map_err(|_| Error::INVALID_VALUE)?;
    let extra = core::ptr::null_mut();
    let stream: CUstream = stream.cast();
    // SAFETY: a kernel handle serves as a function; the arguments are the caller's promise.
    unsafe {
        calls.cuLaunchKernel(
            kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, stream, args, extra,
        )
    }
}

/// # Safety
/// `args` is what the kernel's signature asks for, and `config` names `numAttrs` attributes.
unsafe fn launch_ex(
    config: &cudaLaunchConfig_t,
    stream: cudaStream_t,
    func: *const c_void,
    args: *mut *mut c_void,
) -> Result {
    let config = driver_config(config, stream)?;
    let extra = core::ptr::null_mut();
    context::with_ready(|calls| {
        let kernel = registry::launchable(calls, func)?;
        // SAFETY: a kernel handle serves as a function; the rest is the caller's promise.
        unsafe { calls.cuLaunchKernelEx(&config, kernel, args, extra) }
    })
}

/// The driver's form of a launch configuration. Attributes are laid out alike in both APIs.
pub fn driver_config(config: &cudaLaunchConfig_t, stream: cudaStream_t) -> Result<CUlaunchConfig> {
    let shared = c_uint::try_from(config.dynamicSmemBytes).map_err(|_| Error::INVALID_VALUE)?;
    Ok(CUlaunchConfig {
        gridDimX: config.gridDim.x,
        gridDimY: config.gridDim.y,
        gridDimZ: config.gridDim.z,
        blockDimX: config.blockDim.x,
        blockDimY: config.blockDim.y,
        blockDimZ: config.blockDim.z,
        sharedMemBytes: shared,
        hStream: stream.cast(),
        attrs: config.attrs.cast(),
        numAttrs: config.numAttrs,
    })
}

const _: () = assert!(
    size_of::<drv::CUlaunchAttribute>()
        == size_of::<fermata_abi::sys::runtime::cudaLaunchAttribute>()
);
