//! Exported functions for launches of CUDA 2: block, shared memory and parameters are set first, and stay with the function.

use fermata_abi::op::{ContextId, FunctionId};
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};

use fermata_abi::sys::driver as cu;
use fermata_graph::{KernelNode, NodeKind};
use parking_lot::Mutex;

use super::args::Out;
use super::function::function;
use crate::capture;
use crate::error::{INVALID_VALUE, Result};
use crate::stream::Stream;

/// Most bytes of parameters.
const MOST: usize = 4096;

/// What has been set.
#[derive(Debug, Clone, Default)]
struct Settings {
    block: [u32; 3],
    shared: u32,
    params: Vec<u8>,
}

/// By the handle of a function, which is never used twice.
static SETTINGS: Mutex<Option<HashMap<u64, Settings>>> = Mutex::new(None);

fn change(handle: cu::CUfunction, how: impl FnOnce(&mut Settings)) -> Result {
    let function = function(handle)?.handle;
    let mut settings = SETTINGS.lock();
    how(settings
        .get_or_insert_default()
        .entry(function)
        .or_default());
    Ok(())
}

/// Sets bytes of the parameter block, which grows as needed.
fn set(handle: cu::CUfunction, offset: c_int, bytes: &[u8]) -> Result {
    let from = usize::try_from(offset).map_err(|_| INVALID_VALUE)?;
    let end = from.saturating_add(bytes.len());
    if end > MOST {
        return Err(INVALID_VALUE);
    }
    change(handle, |it| {
        if it.params.len() < end {
            it.params.resize(end, 0);
        }
        it.params[from..end].copy_from_slice(bytes);
    })
}

fn launch(handle: cu::CUfunction, grid: [c_int; 2], stream: cu::CUstream) -> Result {
    let stream = Stream::resolve(stream)?;
    let function = function(handle)?;
    let known = SETTINGS
        .lock()
        .get_or_insert_default()
        .get(&function.handle)
        .cloned();
    let mut set = known.unwrap_or_default();
    set.params.resize(function.info.param_bytes, 0);
    let [width, height] = grid.map(|size| u32::try_from(size).unwrap_or(0));
    let node = KernelNode {
        function: FunctionId::from_raw(function.handle),
        context: ContextId::NULL,
        grid: [width, height, 1],
        block: set.block,
        shared_bytes: set.shared,
        params: set.params,
        attributes: Vec::new(),
    };
    capture::submit(&stream, NodeKind::Kernel(node))
}

api! {
    fn cuFuncSetBlockShape(handle: cu::CUfunction, x: c_int, y: c_int, z: c_int) {
        let sizes = [x, y, z].map(|size| u32::try_from(size).unwrap_or(0));
        if sizes.contains(&0) {
            return Err(INVALID_VALUE);
        }
        change(handle, |it| it.block = sizes)
    }

    fn cuFuncSetSharedSize(handle: cu::CUfunction, bytes: c_uint) {
        change(handle, |it| it.shared = bytes)
    }

    fn cuParamSetSize(handle: cu::CUfunction, bytes: c_uint) {
        if bytes as usize > MOST {
            return Err(INVALID_VALUE);
        }
        change(handle, |it| it.params.resize(bytes as usize, 0))
    }

    fn cuParamSeti(handle: cu::CUfunction, offset: c_int, value: c_uint) {
        set(handle, offset, &value.to_ne_bytes())
    }

    fn cuParamSetf(handle: cu::CUfunction, offset: c_int, value: f32) {
        set(handle, offset, &value.to_ne_bytes())
    }

    fn cuParamSetv(handle: cu::CUfunction, offset: c_int, value: Out<c_void>, bytes: c_uint) {
        if bytes as usize > MOST {
            return Err(INVALID_VALUE);
        }
        set(handle, offset, &value.cast::<u8>().to_in().list(bytes as usize)?)
    }

    fn cuLaunch(handle: cu::CUfunction) {
        launch(handle, [1, 1], std::ptr::null_mut())
    }

    fn cuLaunchGrid(handle: cu::CUfunction, width: c_int, height: c_int) {
        launch(handle, [width, height], std::ptr::null_mut())
    }

    fn cuLaunchGridAsync(handle: cu::CUfunction, width: c_int, height: c_int, stream: cu::CUstream) {
        launch(handle, [width, height], stream)
    }
}
