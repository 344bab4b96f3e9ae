//! Exported functions for libraries and kernels.

use core::ffi::{c_char, c_int, c_uint, c_void};

use fermata_abi::sys::driver as sys;

use super::function::put_param;
use super::jit_logs::Logs;
use super::module::read_image;
use crate::args::{In, Name, Out};
use crate::frame::entry::driver_api;
use crate::handles::{of, to_pointer};
use crate::link::fault;
use crate::link::image;
use crate::object::context::{current, current_or_none, with_current};
use crate::object::session::session;
use crate::work::capture;
use crate::work::teardown;

driver_api! {
    fn cuLibraryLoadData(
        library: Out<sys::CUlibrary>,
        code: In<c_void>,
        jit: Out<sys::CUjit_option>,
        jit_values: Out<*mut c_void>,
        jit_count: c_uint,
        _options: Out<sys::CUlibraryOption>,
        _values: Out<*mut c_void>,
        _count: c_uint,
    ) {
        let modules = &session()?.modules;
        let logs = Logs::new(&jit.to_in().list_if_any(jit_count as usize)?, jit_values)?;
        let made = modules.library(image::find(code)?.bytes()?, |log| logs.fill(log))?;
        library.set(to_pointer(made.handle))
    }

    fn cuLibraryLoadFromFile(
        library: Out<sys::CUlibrary>,
        path: Name,
        jit: Out<sys::CUjit_option>,
        jit_values: Out<*mut c_void>,
        jit_count: c_uint,
        _options: Out<sys::CUlibraryOption>,
        _values: Out<*mut c_void>,
        _count: c_uint,
    ) {
        let mut bytes = read_image(path.text()?)?;
        bytes.push(0);
        let modules = &session()?.modules;
        let logs = Logs::new(&jit.to_in().list_if_any(jit_count as usize)?, jit_values)?;
        library.set(to_pointer(modules.library(&bytes, |log| logs.fill(log))?.handle))
    }

    fn cuLibraryUnload(library: sys::CUlibrary) {
        let session = session()?;
        capture::forbid_unsafe(session)?;
        teardown::unload_library(session, of(library))
    }

    fn cuLibraryGetKernel(kernel: Out<sys::CUkernel>, library: sys::CUlibrary, name: Name) {
        let modules = &session()?.modules;
        let library = modules.libraries.get(of(library), sys::CUDA_ERROR_INVALID_HANDLE)?;
        let found = modules.kernel(&library, name.text()?, current_or_none().as_ref())?;
        kernel.set(to_pointer(found.handle))
    }

    fn cuLibraryGetKernelCount(count: Out<c_uint>, library: sys::CUlibrary) {
        let session = session()?;
        let library = session.modules.libraries.get(of(library), sys::CUDA_ERROR_INVALID_HANDLE)?;
        count.set(session.modules.library_module(&library, &current()?, |_| ())?.names()?.len() as c_uint)
    }

    fn cuLibraryEnumerateKernels(kernels: Out<sys::CUkernel>, count: c_uint, library: sys::CUlibrary) {
        let session = session()?;
        let library = session.modules.libraries.get(of(library), sys::CUDA_ERROR_INVALID_HANDLE)?;
        let context = current()?;
        let module = session.modules.library_module(&library, &context, |_| ())?;
        for (n, name) in module.names()?.iter().take(count as usize).enumerate() {
            let kernel = session.modules.kernel(&library, name, Some(&context))?;
            kernels.set_at(n, to_pointer(kernel.handle))?;
        }
        Ok(())
    }

    fn cuLibraryGetModule(module: Out<sys::CUmodule>, library: sys::CUlibrary) {
        let modules = &session()?.modules;
        let library = modules.libraries.get(of(library), sys::CUDA_ERROR_INVALID_HANDLE)?;
        let found = modules.library_module(&library, &current()?, |_| ())?;
        module.set(to_pointer(found.handle))
    }

    fn cuLibraryGetGlobal(
        address: Out<sys::CUdeviceptr>,
        bytes: Out<usize>,
        library: sys::CUlibrary,
        name: Name,
    ) {
        let session = session()?;
        let library = session.modules.libraries.get(of(library), sys::CUDA_ERROR_INVALID_HANDLE)?;
        let module = session.modules.library_module(&library, &current()?, |_| ())?;
        let found = module.variable(&session.memory, name.text()?)?;
        let (start, size) = (found.address, found.size);
        address.set_if_wanted(start.raw());
        bytes.set_if_wanted(size as usize);
        Ok(())
    }

    fn cuLibraryGetManaged(
        address: Out<sys::CUdeviceptr>,
        bytes: Out<usize>,
        library: sys::CUlibrary,
        name: Name,
    ) {
        let session = session()?;
        let library = session.modules.libraries.get(of(library), sys::CUDA_ERROR_INVALID_HANDLE)?;
        // Managed variables have addresses before there is a context: runtimes ask before they make one.
        let context = match current() {
            Err(sys::CUDA_ERROR_INVALID_CONTEXT) => session.contexts.retain(&session.devices, 0)?,
            found => found?,
        };
        let module = session.modules.library_module(&library, &context, |_| ())?;
        let found = module.variable(&session.memory, name.text()?)?;
        let (start, size) = session.managed.place((&session.memory, &session.streams), &module, &found)?;
        address.set_if_wanted(start.raw());
        bytes.set_if_wanted(size as usize);
        Ok(())
    }

    /// Always fails: no device here has functions that the host can call, too.
    fn cuLibraryGetUnifiedFunction(
        _function: Out<*mut c_void>,
        library: sys::CUlibrary,
        name: Name,
    ) {
        session()?.modules.libraries.get(of(library), sys::CUDA_ERROR_INVALID_HANDLE)?;
        name.text()?;
        Err(sys::CUDA_ERROR_NOT_FOUND)
    }

    fn cuKernelGetFunction(function: Out<sys::CUfunction>, kernel: sys::CUkernel) {
        let modules = &session()?.modules;
        let kernel = modules.kernels.get(of(kernel), sys::CUDA_ERROR_INVALID_HANDLE)?;
        function.set(to_pointer(modules.kernel_function(&kernel, &current()?)?.handle))
    }

    fn cuKernelGetLibrary(library: Out<sys::CUlibrary>, kernel: sys::CUkernel) {
        let kernel = session()?.modules.kernels.get(of(kernel), sys::CUDA_ERROR_INVALID_HANDLE)?;
        library.set(to_pointer(kernel.library.handle))
    }

    fn cuKernelGetName(name: Out<*const c_char>, kernel: sys::CUkernel) {
        let kernel = session()?.modules.kernels.get(of(kernel), sys::CUDA_ERROR_INVALID_HANDLE)?;
        name.set(kernel.name.as_ptr())
    }

    fn cuKernelGetAttribute(
        value: Out<c_int>,
        attribute: sys::CUfunction_attribute,
        kernel: sys::CUkernel,
        device: sys::CUdevice,
    ) {
        fault::check_current()?;
        let session = session()?;
        session.devices.get(device)?;
        let kernel = session.modules.kernels.get(of(kernel), sys::CUDA_ERROR_INVALID_HANDLE)?;
        let function = session.modules.kernel_function(&kernel, &context_on(device)?)?;
        value.set(function.attribute(attribute as i32)?)
    }

    fn cuKernelSetAttribute(
        attribute: sys::CUfunction_attribute,
        value: c_int,
        kernel: sys::CUkernel,
        device: sys::CUdevice,
    ) {
        let session = session()?;
        session.devices.get(device)?;
        let kernel = session.modules.kernels.get(of(kernel), sys::CUDA_ERROR_INVALID_HANDLE)?;
        session.modules.set_kernel_attribute(&kernel, attribute as i32, value)
    }

    fn cuKernelSetCacheConfig(kernel: sys::CUkernel, _config: sys::CUfunc_cache, device: sys::CUdevice) {
        fault::check_current()?;
        let session = session()?;
        session.devices.get(device)?;
        session.modules.kernels.get(of(kernel), sys::CUDA_ERROR_INVALID_HANDLE).map(|_| ())
    }

    fn cuKernelGetParamInfo(kernel: sys::CUkernel, index: usize, offset: Out<usize>, size: Out<usize>) {
        let modules = &session()?.modules;
        let kernel = modules.kernels.get(of(kernel), sys::CUDA_ERROR_INVALID_HANDLE)?;
        let function = with_current(|context| modules.kernel_function(&kernel, context))?;
        put_param(&function, index, offset, size)
    }
}

/// The context in which a kernel's properties on a device are looked up: the current one if it is there,
/// else the primary one.
fn context_on(
    device: sys::CUdevice,
) -> crate::result::Result<std::sync::Arc<crate::object::context::Context>> {
    match current_or_none() {
        Some(context) if context.device == device => Ok(context),
        _ => {
            let session = session()?;
            let context = session.contexts.retain(&session.devices, device)?;
            teardown::release_primary(session, device)?;
            context.check().map(|()| context)
        }
    }
}
