//! Exported functions for modules.

use std::ffi::{c_uint, c_void};

use fermata_abi::sys::driver as cu;

use super::args::{In, Name, Out};
use super::init::driver;
use super::{to_handle, to_pointer};
use crate::context;
use crate::error::{CuError, INVALID_HANDLE, INVALID_VALUE, Result};
use crate::function::Attributes;
use crate::hold::HeldWork;
use crate::image;
use crate::jit::JitOptions;
use crate::module::{self, Module};

/// Compute capability as 10 * major + minor, of the device that images are chosen for.
pub fn sm(device: i32) -> Result<u32> {
    let (major, minor) = driver()?.device(device)?.settings.compute_capability;
    Ok(10 * major + minor)
}

fn load(out: Out<cu::CUmodule>, ptx: &str, jit: &JitOptions) -> Result {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let context = context::current()?;
    driver()?.hold.pass(HeldWork::Modules, ptx.len() as u64);
    let code = module::compile(ptx, jit)?;
    let attributes = |_: &str| Attributes::shared();
    out.set(to_pointer(
        Module::load(driver()?, &context, code, jit, &attributes, None)?.handle,
    ))
}

fn load_data(out: Out<cu::CUmodule>, image: In<c_void>, jit: &JitOptions) -> Result {
    let sm = sm(context::current()?.device.ordinal)?;
    // SAFETY: the program passed it as a module image.
    let ptx = unsafe { image::from_pointer(image.as_ptr(), sm) }?;
    load(out, &ptx, jit)
}

/// Loads a module as `cuModuleLoadFatBinary` does.
///
/// # Safety
/// `image` is null or points to a complete module image.
pub(super) unsafe fn load_image(image: *const c_void) -> Result<cu::CUmodule> {
    let mut module = std::ptr::null_mut();
    // SAFETY: the image is good by the caller's promise.
    let image = unsafe { In::from_raw(image) };
    // SAFETY: the reference lives as long as the call.
    match unsafe { cuModuleLoadFatBinary(Out::from(&mut module), image) } {
        cu::CUDA_SUCCESS => Ok(module),
        status => Err(CuError(status)),
    }
}

/// Contents of a file of the program.
pub fn read_file(path: Name) -> Result<Vec<u8>> {
    std::fs::read(path.text()?).map_err(|_| CuError(cu::CUDA_ERROR_FILE_NOT_FOUND))
}

pub(super) fn resolve(handle: cu::CUmodule) -> Result<std::sync::Arc<Module>> {
    driver()?
        .modules()
        .get(to_handle(handle))
        .ok_or(INVALID_HANDLE)
}

api! {
    fn cuModuleLoad(out: Out<cu::CUmodule>, path: Name) {
        let sm = sm(context::current()?.device.ordinal)?;
        let ptx = image::from_bytes(&read_file(path)?, sm)?;
        load(out, &ptx, &JitOptions::default())
    }

    fn cuModuleLoadData | fn cuModuleLoadFatBinary(out: Out<cu::CUmodule>, image: In<c_void>) {
        load_data(out, image, &JitOptions::default())
    }

    fn cuModuleLoadDataEx(
        out: Out<cu::CUmodule>,
        image: In<c_void>,
        count: c_uint,
        options: In<cu::CUjit_option>,
        values: Out<*mut c_void>,
    ) {
        // SAFETY: the program passed `count` options and values.
        let jit = unsafe { JitOptions::read(count, options.as_ptr(), values.as_ptr()) }?;
        load_data(out, image, &jit)
    }

    fn cuModuleUnload(handle: cu::CUmodule) {
        crate::capture::forbid_unsafe()?;
        let module = resolve(handle)?;
        module.context.check()?;
        if driver()?.libraries().all().iter().any(|library| library.has(&module)) {
            return Err(CuError(cu::CUDA_ERROR_NOT_PERMITTED));
        }
        module.unload(driver()?);
        Ok(())
    }

    fn cuModuleGetLoadingMode(mode: Out<cu::CUmoduleLoadingMode>) {
        driver()?;
        mode.set(cu::CU_MODULE_LAZY_LOADING)
    }

    fn cuModuleGetFunction(out: Out<cu::CUfunction>, handle: cu::CUmodule, name: Name) {
        out.set(to_pointer(resolve(handle)?.function(name.text()?)?.handle))
    }

    fn cuModuleGetFunctionCount(count: Out<c_uint>, handle: cu::CUmodule) {
        count.set(resolve(handle)?.functions().len() as c_uint)
    }

    fn cuModuleEnumerateFunctions(out: Out<cu::CUfunction>, count: c_uint, handle: cu::CUmodule) {
        for (index, function) in resolve(handle)?.functions().iter().take(count as usize).enumerate() {
            out.set_at(index, to_pointer(function.handle))?;
        }
        Ok(())
    }

    fn cuModuleGetGlobal_v2(
        address: Out<cu::CUdeviceptr>,
        bytes: Out<usize>,
        handle: cu::CUmodule,
        name: Name,
    ) {
        let module = resolve(handle)?;
        let variable = module.variable(name.text()?)?;
        if address.is_null() && bytes.is_null() {
            return Err(INVALID_VALUE);
        }
        address.set_if_wanted(variable.address);
        bytes.set_if_wanted(variable.size as usize);
        Ok(())
    }
}
