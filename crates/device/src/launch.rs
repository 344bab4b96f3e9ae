//! Launching kernels.

use std::ffi::c_void;

use fermata_abi::sys::driver as cu;

use crate::driver::Result;
use crate::{Driver, FunctionHandle, StreamHandle};

const PARAM_END: *mut c_void = cu::CU_LAUNCH_PARAM_END_AS_INT as usize as *mut c_void;
const PARAM_BUFFER: *mut c_void = cu::CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT as usize as *mut c_void;
const PARAM_SIZE: *mut c_void = cu::CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT as usize as *mut c_void;

/// Size of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

/// An attribute of a launch as the driver reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchAttribute {
    /// A `CUlaunchAttributeID`.
    pub id: u32,
    /// A `CUlaunchAttributeValue`.
    pub value: [u8; 64],
}

impl LaunchAttribute {
    /// An attribute whose value begins with `bytes` and goes on with zeros.
    pub fn new(id: u32, bytes: &[u8]) -> Self {
        let mut value = [0; 64];
        let len = bytes.len().min(value.len());
        value[..len].copy_from_slice(&bytes[..len]);
        Self { id, value }
    }

    pub(crate) fn raw(&self) -> cu::CUlaunchAttributeValue {
        cu::CUlaunchAttributeValue {
            pad: self.value.map(|byte| byte as i8),
        }
    }
}

/// A launch with its parameter block and attributes.
#[derive(Debug, Clone, Copy)]
pub struct KernelLaunch<'a> {
    /// The kernel.
    pub function: FunctionHandle,
    /// Its size.
    pub size: Grid,
    /// The parameter block.
    pub params: &'a [u8],
    /// Its attributes.
    pub attributes: &'a [LaunchAttribute],
}

/// The `extra` argument of launches: a parameter block by address and size.
pub(crate) fn with_extra<R>(params: &[u8], call: impl FnOnce(*mut *mut c_void) -> R) -> R {
    let mut size = params.len();
    let mut extra = [
        PARAM_BUFFER,
        params.as_ptr().cast_mut().cast::<c_void>(),
        PARAM_SIZE,
        (&raw mut size).cast::<c_void>(),
        PARAM_END,
    ];
    call(if params.is_empty() {
        std::ptr::null_mut()
    } else {
        extra.as_mut_ptr()
    })
}

/// Calls `call` with the size and the attributes of a launch as the driver wants them.
pub(crate) fn with_config<R>(
    launch: &KernelLaunch<'_>,
    stream: StreamHandle,
    call: impl FnOnce(&cu::CUlaunchConfig) -> R,
) -> R {
    let Grid {
        grid,
        block,
        shared,
    } = launch.size;
    let mut attributes: Vec<cu::CUlaunchAttribute> = launch
        .attributes
        .iter()
        .map(|it| cu::CUlaunchAttribute {
            id: it.id,
            pad: [0; 4],
            value: it.raw(),
        })
        .collect();
    call(&cu::CUlaunchConfig {
        gridDimX: grid[0],
        gridDimY: grid[1],
        gridDimZ: grid[2],
        blockDimX: block[0],
        blockDimY: block[1],
        blockDimZ: block[2],
        sharedMemBytes: shared,
        hStream: stream.raw(),
        attrs: attributes.as_mut_ptr(),
        numAttrs: attributes.len() as u32,
    })
}

impl Driver {
    /// Launches a kernel.
    ///
    /// # Errors
    /// What the driver says, failures of earlier work included.
    pub fn launch(&self, launch: &KernelLaunch<'_>, stream: StreamHandle) -> Result<()> {
        let (
            function,
            Grid {
                grid,
                block,
                shared,
            },
        ) = (launch.function.raw(), launch.size);
        if launch.attributes.is_empty() {
            return with_extra(launch.params, |extra| {
                let none = std::ptr::null_mut();
                // SAFETY: `extra` names a parameter block that outlives the call; the driver copies it.
                unsafe {
                    self.f.cuLaunchKernel(
                        function,
                        grid[0],
                        grid[1],
                        grid[2],
                        block[0],
                        block[1],
                        block[2],
                        shared,
                        stream.raw(),
                        none,
                        extra,
                    )
                }
            });
        }
        with_config(launch, stream, |config| {
            with_extra(launch.params, |extra| {
                // SAFETY: configuration, attributes and parameter block outlive the call; the driver copies them.
                unsafe {
                    self.f
                        .cuLaunchKernelEx(config, function, std::ptr::null_mut(), extra)
                }
            })
        })
    }
}
