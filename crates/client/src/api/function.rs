//! Exported functions for `CUfunction` handles.

use core::ffi::{c_char, c_int};
use std::sync::Arc;

use fermata_abi::sys::driver as sys;

use crate::args::Out;
use crate::frame::entry::driver_api;
use crate::handles::{of, to_pointer};
use crate::link::fault;
use crate::object::context::with_current;
use crate::object::module::Function;
use crate::object::session::session;
use crate::result::Result;

driver_api! {
    fn cuFuncGetAttribute(value: Out<c_int>, attribute: sys::CUfunction_attribute, function: sys::CUfunction) {
        value.set(find(function)?.attribute(attribute as i32)?)
    }

    fn cuFuncSetAttribute(function: sys::CUfunction, attribute: sys::CUfunction_attribute, value: c_int) {
        find(function)?.set_attribute(attribute as i32, value)
    }

    fn cuFuncSetCacheConfig(function: sys::CUfunction, _config: sys::CUfunc_cache) {
        find(function).map(|_| ())
    }

    fn cuFuncSetSharedMemConfig(function: sys::CUfunction, _config: sys::CUsharedconfig) {
        find(function).map(|_| ())
    }

    fn cuFuncGetModule(module: Out<sys::CUmodule>, function: sys::CUfunction) {
        module.set(to_pointer(find(function)?.module.handle))
    }

    fn cuFuncGetName(name: Out<*const c_char>, function: sys::CUfunction) {
        name.set(find(function)?.name.as_ptr())
    }

    fn cuFuncGetParamInfo(function: sys::CUfunction, index: usize, offset: Out<usize>, size: Out<usize>) {
        put_param(&*find(function)?, index, offset, size)
    }

    fn cuFuncIsLoaded(state: Out<sys::CUfunctionLoadingState>, function: sys::CUfunction) {
        find(function)?;
        state.set(sys::CU_FUNCTION_LOADING_STATE_LOADED)
    }

    fn cuFuncLoad(function: sys::CUfunction) {
        find(function).map(|_| ())
    }
}

/// The function behind a handle, which may also be a kernel's.
pub(super) fn find(function: sys::CUfunction) -> Result<Arc<Function>> {
    fault::check_current()?;
    let modules = &session()?.modules;
    match modules
        .functions
        .get(of(function), sys::CUDA_ERROR_INVALID_HANDLE)
    {
        Ok(function) => Ok(function),
        Err(_) => with_current(|context| modules.launchable(of(function), context)),
    }
}

pub(super) fn put_param(
    function: &Function,
    index: usize,
    offset: Out<usize>,
    size: Out<usize>,
) -> Result {
    let (at, bytes) = *function
        .params
        .get(index)
        .ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
    offset.set(at as usize)?;
    size.set_if_wanted(bytes as usize);
    Ok(())
}
