//! Exported functions for `CUfunction` handles.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use fermata_abi::sys::driver as cu;

use super::args::Out;
use super::init::driver;
use super::module::sm;
use super::{to_handle, to_pointer};
use crate::error::{INVALID_VALUE, Result};
use crate::launch;
use crate::module::Function;

/// The function behind a handle, which may be a kernel's.
pub fn function(handle: cu::CUfunction) -> Result<Arc<Function>> {
    Function::resolve(driver()?, to_handle(handle))
}

api! {
    fn cuFuncGetAttribute(value: Out<c_int>, attribute: cu::CUfunction_attribute, handle: cu::CUfunction) {
        let function = function(handle)?;
        let sm = sm(function.module.context.device.ordinal)?;
        let answer = function.attributes.lock().get(&function.info, attribute, sm)?;
        value.set(answer)
    }

    fn cuFuncSetAttribute(handle: cu::CUfunction, attribute: cu::CUfunction_attribute, value: c_int) {
        let function = function(handle)?;
        function.attributes.lock().set(&function.info, attribute, value)
    }

    fn cuFuncSetCacheConfig(handle: cu::CUfunction, config: cu::CUfunc_cache) {
        function(handle)?.attributes.lock().cache_config = config;
        Ok(())
    }

    fn cuFuncSetSharedMemConfig(handle: cu::CUfunction, config: cu::CUsharedconfig) {
        let _ = config;
        function(handle).map(drop)
    }

    fn cuFuncGetModule(out: Out<cu::CUmodule>, handle: cu::CUfunction) {
        out.set(to_pointer(function(handle)?.module.handle))
    }

    fn cuFuncGetName(out: Out<*const c_char>, handle: cu::CUfunction) {
        // A kernel's name lives as long as its library, a function's as long as its module.
        if let Some(kernel) = driver()?.kernels().get(to_handle(handle)) {
            return out.set(kernel.c_name.as_ptr());
        }
        out.set(function(handle)?.c_name.as_ptr())
    }

    fn cuFuncGetParamInfo(handle: cu::CUfunction, index: usize, offset: Out<usize>, size: Out<usize>) {
        let function = function(handle)?;
        let param = function.info.params.get(index).ok_or(INVALID_VALUE)?;
        offset.set(param.offset)?;
        size.set_if_wanted(param.size);
        Ok(())
    }

    fn cuFuncIsLoaded(state: Out<cu::CUfunctionLoadingState>, handle: cu::CUfunction) {
        function(handle)?;
        state.set(cu::CU_FUNCTION_LOADING_STATE_LOADED)
    }

    /// Tells whether the function can be launched.
    fn cuFuncLoad(handle: cu::CUfunction) {
        let function = function(handle)?;
        launch::check_supported(&function)
    }
}
