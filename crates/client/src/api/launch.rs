//! Launches and host functions.

use core::ffi::{c_uint, c_void};

use fermata_abi::op::LaunchAttribute;
use fermata_abi::sys::driver as sys;

use crate::callback::{self, Callback};
use crate::context::with_current;
use crate::entry::{array, driver_api, get};
use crate::handles::of;
use crate::launch::{Shape, launch, with_params};
use crate::session::session;

driver_api! {
    fn cuLaunchKernel(
        function: sys::CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        stream: sys::CUstream,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let session = session()?;
        let function = with_current(|context| session.modules.launchable(of(function), context))?;
        let stream = session.streams.resolve(stream)?;
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = Shape { grid, block, shared, cooperative: false };
        with_params(&function, params, extra, |params| launch(&function, shape, params, Vec::new(), stream))
    }

    fn cuLaunchCooperativeKernel(
        function: sys::CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        stream: sys::CUstream,
        params: *mut *mut c_void,
    ) {
        let session = session()?;
        let function = with_current(|context| session.modules.launchable(of(function), context))?;
        let stream = session.streams.resolve(stream)?;
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = Shape { grid, block, shared, cooperative: true };
        let none = core::ptr::null_mut();
        with_params(&function, params, none, |params| launch(&function, shape, params, Vec::new(), stream))
    }

    fn cuLaunchKernelEx(
        config: *const sys::CUlaunchConfig,
        function: sys::CUfunction,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let config = get(config)?;
        let session = session()?;
        let function = with_current(|context| session.modules.launchable(of(function), context))?;
        let stream = session.streams.resolve(config.hStream)?;
        let attributes = array(config.attrs, config.numAttrs as usize)?;
        let is_cooperative = |attribute: &&sys::CUlaunchAttribute| attribute.id == sys::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        let cooperative =
            attributes.iter().filter(is_cooperative).any(|attribute| attribute.value.cooperative != 0);
        let kept = |attribute: &&sys::CUlaunchAttribute| {
            attribute.id != sys::CU_LAUNCH_ATTRIBUTE_IGNORE && !is_cooperative(attribute)
        };
        let shape = Shape {
            grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
            block: [config.blockDimX, config.blockDimY, config.blockDimZ],
            shared: config.sharedMemBytes,
            cooperative,
        };
        let attributes = attributes.iter().filter(kept).map(encode).collect();
        with_params(&function, params, extra, |params| launch(&function, shape, params, attributes, stream))
    }

    fn cuLaunchHostFunc(stream: sys::CUstream, function: sys::CUhostFn, data: *mut c_void) {
        let call = function.ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        let stream = session()?.streams.resolve(stream)?;
        callback::enqueue(Callback::Function { call, data }, stream)
    }

    fn cuStreamAddCallback(
        stream: sys::CUstream,
        function: sys::CUstreamCallback,
        data: *mut c_void,
        flags: c_uint,
    ) {
        let call = function.ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        if flags != 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let reference = session()?.streams.resolve(stream)?;
        callback::enqueue(Callback::Stream { call, stream, data }, reference)
    }
}

fn encode(attribute: &sys::CUlaunchAttribute) -> LaunchAttribute<'_> {
    let value = std::ptr::from_ref(&attribute.value).cast();
    // SAFETY: the value is a union of 64 bytes, which live as long as the attribute.
    LaunchAttribute { id: attribute.id, value: unsafe { std::slice::from_raw_parts(value, 64) } }
}
