//! Exported functions for kernel launches and host functions.

use fermata_abi::op::{ContextId, FunctionId};
use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use fermata_abi::sys::driver as cu;
use fermata_graph::{HostCall, KernelNode, LaunchAttribute, NodeKind};

use super::args::{In, Out};
use super::function::function;
use super::to_pointer;
use crate::capture;
use crate::error::{CuError, INVALID_VALUE, Result};
use crate::event::Event;
use crate::exec::KernelInfo;
use crate::stream::Stream;

/// Most bytes a parameter block has.
const MAX_PARAMS: usize = 32764;

/// Copies a launch's parameters together: from one pointer per parameter, or from a buffer.
pub fn pack_params(
    info: &KernelInfo,
    params: In<*mut c_void>,
    extra: In<*mut c_void>,
) -> Result<Vec<u8>> {
    if !extra.is_null() {
        if !params.is_null() {
            return Err(INVALID_VALUE);
        }
        let mut block = extra_params(extra)?;
        if block.len() > info.param_bytes {
            return Err(CuError(cu::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES));
        }
        block.resize(info.param_bytes, 0);
        return Ok(block);
    }
    let mut block = vec![0u8; info.param_bytes];
    for (index, param) in info.params.iter().enumerate() {
        let value = params.in_at(index)?.cast::<u8>();
        value.copy_to(&mut block[param.offset..][..param.size])?;
    }
    Ok(block)
}

/// The buffer named in a list of keys and values.
fn extra_params(extra: In<*mut c_void>) -> Result<Vec<u8>> {
    let (mut buffer, mut size) = (None, None);
    let mut index = 0;
    loop {
        let key = extra.get_at(index)?.addr();
        if key == cu::CU_LAUNCH_PARAM_END_AS_INT as usize {
            break;
        }
        let value = extra.in_at(index + 1)?;
        if key == cu::CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT as usize {
            buffer = Some(value.cast::<u8>());
        } else if key == cu::CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT as usize {
            size = Some(value.cast::<usize>().get()?);
        } else {
            return Err(INVALID_VALUE);
        }
        index += 2;
    }
    let (Some(buffer), Some(size)) = (buffer, size) else {
        return Err(INVALID_VALUE);
    };
    if size > MAX_PARAMS {
        return Err(INVALID_VALUE);
    }
    buffer.list(size)
}

/// Reads launch attributes.
pub fn read_attributes(
    attributes: In<cu::CUlaunchAttribute>,
    count: c_uint,
) -> Result<Vec<LaunchAttribute>> {
    let attributes = attributes.list(count as usize)?;
    let read = attributes.iter().map(|attribute| LaunchAttribute {
        id: attribute.id,
        // SAFETY: the value is a union of 64 bytes of which every one may be read as a byte.
        value: unsafe { attribute.value.pad }
            .map(|byte| byte as u8)
            .to_vec(),
    });
    Ok(read.collect())
}

fn launch(
    handle: cu::CUfunction,
    shape: ([u32; 3], [u32; 3]),
    shared_bytes: u32,
    stream: cu::CUstream,
    params: (In<*mut c_void>, In<*mut c_void>),
    attributes: Vec<LaunchAttribute>,
) -> Result {
    let stream = Stream::resolve(stream)?;
    let function = function(handle)?;
    if !params.1.is_null() && attributes.iter().any(is_cooperative) {
        capture::forbid_launch_on(&stream)?;
    }
    let events = events_in(&attributes)?;
    let node = KernelNode {
        function: FunctionId::from_raw(function.handle),
        context: ContextId::NULL,
        grid: shape.0,
        block: shape.1,
        shared_bytes,
        params: pack_params(&function.info, params.0, params.1)?,
        attributes,
    };
    capture::submit(&stream, NodeKind::Kernel(node))?;
    events
        .iter()
        .try_for_each(|event| capture::record_event(&stream, event, 0))
}

/// Whether the attribute makes a launch, or a graph's node, cooperative. The driver takes the parameters of a cooperative launch
/// as one block, but not those of a node.
pub fn is_cooperative(attribute: &LaunchAttribute) -> bool {
    attribute.id == cu::CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        && attribute.value.first().is_some_and(|byte| *byte != 0)
}

/// Events that a launch's attributes name. A kernel marks them when its blocks have begun, or allow it; here they
/// are marked when it has ended, which is never too early.
fn events_in(attributes: &[LaunchAttribute]) -> Result<Vec<Arc<Event>>> {
    let named = attributes.iter().filter(|attribute| {
        matches!(
            attribute.id,
            cu::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT
                | cu::CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT
        )
    });
    let handles = named.filter_map(|attribute| attribute.value.first_chunk::<8>());
    handles
        .map(|handle| Event::resolve(to_pointer(u64::from_le_bytes(*handle))))
        .collect()
}

api! {
    fn cuLaunchKernel(
        handle: cu::CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: cu::CUstream,
        params: In<*mut c_void>,
        extra: In<*mut c_void>,
    ) {
        let shape = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(handle, shape, shared_bytes, stream, (params, extra), Vec::new())
    }

    fn cuLaunchKernelEx(
        config: In<cu::CUlaunchConfig>,
        handle: cu::CUfunction,
        params: In<*mut c_void>,
        extra: In<*mut c_void>,
    ) {
        let config = config.get()?;
        let grid = [config.gridDimX, config.gridDimY, config.gridDimZ];
        let block = [config.blockDimX, config.blockDimY, config.blockDimZ];
        // SAFETY: the program's structure says that so many attributes lie there.
        let attributes = unsafe { In::from_raw(config.attrs) };
        let attributes = read_attributes(attributes, config.numAttrs)?;
        launch(handle, (grid, block), config.sharedMemBytes, config.hStream, (params, extra), attributes)
    }

    fn cuLaunchCooperativeKernel(
        handle: cu::CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: cu::CUstream,
        params: In<*mut c_void>,
    ) {
        let shape = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let mut value = vec![0; 64];
        value[0] = 1;
        let cooperative = LaunchAttribute {
            id: cu::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
            value,
        };
        launch(handle, shape, shared_bytes, stream, (params, In::null()), vec![cooperative])
    }

    fn cuLaunchHostFunc(stream: cu::CUstream, function: cu::CUhostFn, user_data: Out<c_void>) {
        let stream = Stream::resolve(stream)?;
        let function = function.ok_or(INVALID_VALUE)? as usize as u64;
        let user_data = user_data.as_ptr().expose_provenance() as u64;
        capture::submit(&stream, NodeKind::Host(HostCall { function, user_data }))
    }
}
