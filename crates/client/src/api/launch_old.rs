//! Exported functions for launches of CUDA 2: block, shared memory and parameters are set first, and stay with the function.

use core::ffi::{c_int, c_uint, c_void};
use std::collections::HashMap;

use fermata_abi::op::FunctionId;
use fermata_abi::sys::driver as sys;
use parking_lot::Mutex;

use super::function::find;
use super::launch::issue;
use crate::args::In;
use crate::frame::entry::driver_api;
use crate::handles::of;
use crate::object::session::session;
use crate::result::Result;
use crate::work::launch::LaunchShape;

/// Most bytes of parameters.
const MOST: usize = 4096;

/// The settings of one function.
#[derive(Debug, Clone, Default)]
struct Settings {
    block: [u32; 3],
    shared: u32,
    params: Vec<u8>,
}

/// Settings by function.
static SETTINGS: Mutex<Option<HashMap<FunctionId, Settings>>> = Mutex::new(None);

driver_api! {
    fn cuFuncSetBlockShape(function: sys::CUfunction, x: c_int, y: c_int, z: c_int) {
        let sizes = [x, y, z].map(|size| u32::try_from(size).unwrap_or(0));
        if sizes.contains(&0) {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        change(function, |it| it.block = sizes)
    }

    fn cuFuncSetSharedSize(function: sys::CUfunction, bytes: c_uint) {
        change(function, |it| it.shared = bytes)
    }

    fn cuParamSetSize(function: sys::CUfunction, bytes: c_uint) {
        if bytes as usize > MOST {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        change(function, |it| it.params.resize(bytes as usize, 0))
    }

    fn cuParamSeti(function: sys::CUfunction, offset: c_int, value: c_uint) {
        set(function, offset, &value.to_ne_bytes())
    }

    fn cuParamSetf(function: sys::CUfunction, offset: c_int, value: f32) {
        set(function, offset, &value.to_ne_bytes())
    }

    fn cuParamSetv(function: sys::CUfunction, offset: c_int, value: In<c_void>, bytes: c_uint) {
        set(function, offset, &value.cast::<u8>().list(bytes as usize)?)
    }

    fn cuLaunch(function: sys::CUfunction) {
        launch(function, [1, 1], core::ptr::null_mut())
    }

    fn cuLaunchGrid(function: sys::CUfunction, width: c_int, height: c_int) {
        launch(function, [width, height], core::ptr::null_mut())
    }

    fn cuLaunchGridAsync(
        function: sys::CUfunction,
        width: c_int,
        height: c_int,
        stream: sys::CUstream,
    ) {
        launch(function, [width, height], stream)
    }
}

fn change(function: sys::CUfunction, how: impl FnOnce(&mut Settings)) -> Result {
    let function = find(function)?.handle;
    let mut settings = SETTINGS.lock();
    let known = settings.get_or_insert_default().entry(function);
    how(known.or_default());
    Ok(())
}

/// Sets bytes of the parameter block, which grows as needed.
fn set(function: sys::CUfunction, offset: c_int, bytes: &[u8]) -> Result {
    let from = usize::try_from(offset).map_err(|_| sys::CUDA_ERROR_INVALID_VALUE)?;
    let end = from.saturating_add(bytes.len());
    if end > MOST {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    change(function, |it| {
        if it.params.len() < end {
            it.params.resize(end, 0);
        }
        it.params[from..end].copy_from_slice(bytes);
    })
}

fn launch(function: sys::CUfunction, grid: [c_int; 2], stream: sys::CUstream) -> Result {
    let session = session()?;
    let [width, height] = grid.map(|size| u32::try_from(size).unwrap_or(0));
    session
        .modules
        .with_launchable(of(function), |context, function| {
            let known = SETTINGS
                .lock()
                .get_or_insert_default()
                .get(&function.handle)
                .cloned();
            let Settings {
                block,
                shared,
                mut params,
            } = known.unwrap_or_default();
            params.resize(function.params_size, 0);
            let shape = LaunchShape {
                grid: [width, height, 1],
                block,
                shared,
                cooperative: false,
            };
            issue(session, (context, function), shape, &params, &[], stream)
        })
}
