//! Exported functions for libraries and their kernels.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use fermata_abi::sys::driver as cu;

use super::args::{In, Name, Out};
use super::init::driver;
use super::module::{read_file, sm};
use super::{to_handle, to_pointer};
use crate::context;
use crate::error::{INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED, Result};
use crate::hold::HeldWork;
use crate::image;
use crate::jit::JitOptions;
use crate::library::{Kernel, Library};

fn library(handle: cu::CUlibrary) -> Result<Arc<Library>> {
    driver()?
        .libraries()
        .get(to_handle(handle))
        .ok_or(INVALID_HANDLE)
}

fn kernel(handle: cu::CUkernel) -> Result<Arc<Kernel>> {
    driver()?
        .kernels()
        .get(to_handle(handle))
        .ok_or(INVALID_HANDLE)
}

fn load(out: Out<cu::CUlibrary>, ptx: String, jit: &JitOptions) -> Result {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    let driver = driver()?;
    driver.hold.pass(HeldWork::Modules, ptx.len() as u64);
    out.set(to_pointer(Library::load(driver, ptx, jit)?.handle))
}

fn find_variable(
    address: Out<cu::CUdeviceptr>,
    bytes: Out<usize>,
    handle: cu::CUlibrary,
    name: Name,
    managed: bool,
) -> Result {
    let (driver, name) = (driver()?, name.text()?);
    let variable = if managed {
        library(handle)?.managed(driver, name)?
    } else {
        let module = library(handle)?.module(driver, &context::current()?)?;
        let found = module.variable(name)?.clone();
        if found.managed {
            return Err(NOT_FOUND);
        } else {
            found
        }
    };
    address.set_if_wanted(variable.address);
    bytes.set_if_wanted(variable.size as usize);
    Ok(())
}

api! {
    fn cuLibraryLoadData(
        out: Out<cu::CUlibrary>,
        code: In<c_void>,
        jit_options: In<cu::CUjit_option>,
        jit_values: Out<*mut c_void>,
        jit_count: c_uint,
        options: In<cu::CUlibraryOption>,
        values: Out<*mut c_void>,
        count: c_uint,
    ) {
        let _ = (options, values, count);
        // SAFETY: the program passed `jit_count` options and values.
        let jit = unsafe { JitOptions::read(jit_count, jit_options.as_ptr(), jit_values.as_ptr()) }?;
        // SAFETY: the program passed it as a module image.
        let ptx = unsafe { image::from_pointer(code.as_ptr(), sm(0)?) }?;
        load(out, ptx, &jit)
    }

    fn cuLibraryLoadFromFile(
        out: Out<cu::CUlibrary>,
        path: Name,
        jit_options: In<cu::CUjit_option>,
        jit_values: Out<*mut c_void>,
        jit_count: c_uint,
        options: In<cu::CUlibraryOption>,
        values: Out<*mut c_void>,
        count: c_uint,
    ) {
        let _ = (options, values, count);
        // SAFETY: the program passed `jit_count` options and values.
        let jit = unsafe { JitOptions::read(jit_count, jit_options.as_ptr(), jit_values.as_ptr()) }?;
        load(out, image::from_bytes(&read_file(path)?, sm(0)?)?, &jit)
    }

    fn cuLibraryUnload(handle: cu::CUlibrary) {
        crate::capture::forbid_unsafe()?;
        library(handle)?.unload(driver()?);
        Ok(())
    }

    fn cuLibraryGetKernel(out: Out<cu::CUkernel>, handle: cu::CUlibrary, name: Name) {
        out.set(to_pointer(library(handle)?.kernel(name.text()?)?.handle))
    }

    fn cuLibraryGetKernelCount(count: Out<c_uint>, handle: cu::CUlibrary) {
        count.set(library(handle)?.kernels.len() as c_uint)
    }

    fn cuLibraryEnumerateKernels(out: Out<cu::CUkernel>, count: c_uint, handle: cu::CUlibrary) {
        for (index, kernel) in library(handle)?.kernels.iter().take(count as usize).enumerate() {
            out.set_at(index, to_pointer(kernel.handle))?;
        }
        Ok(())
    }

    fn cuLibraryGetModule(out: Out<cu::CUmodule>, handle: cu::CUlibrary) {
        let module = library(handle)?.module(driver()?, &context::current()?)?;
        out.set(to_pointer(module.handle))
    }

    fn cuLibraryGetGlobal(
        address: Out<cu::CUdeviceptr>,
        bytes: Out<usize>,
        handle: cu::CUlibrary,
        name: Name,
    ) {
        find_variable(address, bytes, handle, name, false)
    }

    fn cuLibraryGetManaged(
        address: Out<cu::CUdeviceptr>,
        bytes: Out<usize>,
        handle: cu::CUlibrary,
        name: Name,
    ) {
        find_variable(address, bytes, handle, name, true)
    }

    fn cuLibraryGetUnifiedFunction(out: Out<*mut c_void>, handle: cu::CUlibrary, name: Name) {
        let _ = (out, name);
        library(handle)?;
        Err(NOT_SUPPORTED)
    }

    fn cuKernelGetFunction(out: Out<cu::CUfunction>, handle: cu::CUkernel) {
        let function = kernel(handle)?.function(driver()?, &context::current()?)?;
        out.set(to_pointer(function.handle))
    }

    fn cuKernelGetLibrary(out: Out<cu::CUlibrary>, handle: cu::CUkernel) {
        out.set(to_pointer(kernel(handle)?.library))
    }

    fn cuKernelGetName(out: Out<*const c_char>, handle: cu::CUkernel) {
        out.set(kernel(handle)?.c_name.as_ptr())
    }

    fn cuKernelGetParamInfo(handle: cu::CUkernel, index: usize, offset: Out<usize>, size: Out<usize>) {
        let kernel = kernel(handle)?;
        let param = kernel.info.params.get(index).ok_or(INVALID_VALUE)?;
        offset.set(param.offset)?;
        size.set_if_wanted(param.size);
        Ok(())
    }

    fn cuKernelGetAttribute(
        value: Out<c_int>,
        attribute: cu::CUfunction_attribute,
        handle: cu::CUkernel,
        device: cu::CUdevice,
    ) {
        let (kernel, sm) = (kernel(handle)?, sm(device)?);
        let attributes = kernel.attributes(device);
        let answer = attributes.lock().get(&kernel.info, attribute, sm)?;
        value.set(answer)
    }

    fn cuKernelSetAttribute(
        attribute: cu::CUfunction_attribute,
        value: c_int,
        handle: cu::CUkernel,
        device: cu::CUdevice,
    ) {
        let kernel = kernel(handle)?;
        driver()?.device(device)?;
        kernel.attributes(device).lock().set(&kernel.info, attribute, value)
    }

    fn cuKernelSetCacheConfig(handle: cu::CUkernel, config: cu::CUfunc_cache, device: cu::CUdevice) {
        let kernel = kernel(handle)?;
        driver()?.device(device)?;
        kernel.attributes(device).lock().cache_config = config;
        Ok(())
    }
}
