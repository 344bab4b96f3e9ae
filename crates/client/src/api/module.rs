//! Exported functions for modules.

use core::ffi::{c_uint, c_void};

use fermata_abi::sys::driver as sys;

use super::jit_logs::Logs;
use crate::args::{In, Name, Out};
use crate::frame::entry::driver_api;
use crate::handles::{of, to_pointer};
use crate::link::image;
use crate::object::context::current;
use crate::object::session::session;
use crate::result::Result;
use crate::work::capture;
use crate::work::teardown;

driver_api! {
    fn cuModuleLoad(module: Out<sys::CUmodule>, path: Name) {
        let mut bytes = read_image(path.text()?)?;
        bytes.push(0);
        let handle = session()?.modules.load(&current()?, &bytes, |_| ())?.handle;
        module.set(to_pointer(handle))
    }

    fn cuModuleLoadData(module: Out<sys::CUmodule>, image: In<c_void>) {
        let handle = session()?.modules.load(&current()?, image::find(image)?.bytes()?, |_| ())?.handle;
        module.set(to_pointer(handle))
    }

    fn cuModuleLoadDataEx(
        module: Out<sys::CUmodule>,
        image: In<c_void>,
        count: c_uint,
        options: Out<sys::CUjit_option>,
        values: Out<*mut c_void>,
    ) {
        let logs = Logs::new(&options.list(count as usize)?, values)?;
        let loaded = session()?.modules.load(&current()?, image::find(image)?.bytes()?, |log| logs.fill(log));
        module.set(to_pointer(loaded?.handle))
    }

    fn cuModuleLoadFatBinary(module: Out<sys::CUmodule>, image: In<c_void>) {
        let handle = session()?.modules.load(&current()?, image::find(image)?.bytes()?, |_| ())?.handle;
        module.set(to_pointer(handle))
    }

    fn cuModuleUnload(module: sys::CUmodule) {
        let session = session()?;
        capture::forbid_unsafe(session)?;
        teardown::unload_module(session, of(module))
    }

    fn cuModuleGetLoadingMode(mode: Out<sys::CUmoduleLoadingMode>) {
        mode.set(sys::CU_MODULE_LAZY_LOADING)
    }

    fn cuModuleGetFunction(function: Out<sys::CUfunction>, module: sys::CUmodule, name: Name) {
        let modules = &session()?.modules;
        let module = modules.modules.get(of(module), sys::CUDA_ERROR_INVALID_HANDLE)?;
        function.set(to_pointer(modules.function(&module, name.text()?)?.handle))
    }

    fn cuModuleGetFunctionCount(count: Out<c_uint>, module: sys::CUmodule) {
        let module = session()?.modules.modules.get(of(module), sys::CUDA_ERROR_INVALID_HANDLE)?;
        count.set(module.names()?.len() as c_uint)
    }

    fn cuModuleEnumerateFunctions(functions: Out<sys::CUfunction>, count: c_uint, module: sys::CUmodule) {
        let modules = &session()?.modules;
        let module = modules.modules.get(of(module), sys::CUDA_ERROR_INVALID_HANDLE)?;
        for (n, name) in module.names()?.iter().take(count as usize).enumerate() {
            functions.set_at(n, to_pointer(modules.function(&module, name)?.handle))?;
        }
        Ok(())
    }

    fn cuModuleGetGlobal_v2(
        address: Out<sys::CUdeviceptr>,
        bytes: Out<usize>,
        module: sys::CUmodule,
        name: Name,
    ) {
        let session = session()?;
        let module = session.modules.modules.get(of(module), sys::CUDA_ERROR_INVALID_HANDLE)?;
        let found = module.variable(&session.memory, name.text()?)?;
        // Runtimes before CUDA 13 ask for managed variables here too.
        let (start, size) = if found.managed {
            session.managed.place((&session.memory, &session.streams), &module, &found)?
        } else {
            (found.address, found.size)
        };
        address.set_if_wanted(start.raw());
        bytes.set_if_wanted(size as usize);
        Ok(())
    }
}

/// Reads an image file.
pub(super) fn read_image(path: &str) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => sys::CUDA_ERROR_FILE_NOT_FOUND,
        _ => sys::CUDA_ERROR_INVALID_IMAGE,
    })
}
