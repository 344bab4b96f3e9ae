//! Libraries and kernels.

use core::ffi::{c_char, c_int, c_uint, c_void};

use fermata_abi::sys::driver as sys;

use super::function::put_param;
use super::module::read_image;
use crate::capture;
use crate::context::{current, current_or_none, with_current};
use crate::entry::{driver_api, put, put_if, text};
use crate::fault;
use crate::handles::{of, to_pointer};
use crate::image;
use crate::session::session;

driver_api! {
    fn cuLibraryLoadData(
        library: *mut sys::CUlibrary,
        code: *const c_void,
        _jit: *mut sys::CUjit_option,
        _jit_values: *mut *mut c_void,
        _jit_count: c_uint,
        _options: *mut sys::CUlibraryOption,
        _values: *mut *mut c_void,
        _count: c_uint,
    ) {
        put(library, to_pointer(session()?.modules.library(image::bytes(code)?)?.handle))
    }

    fn cuLibraryLoadFromFile(
        library: *mut sys::CUlibrary,
        path: *const c_char,
        _jit: *mut sys::CUjit_option,
        _jit_values: *mut *mut c_void,
        _jit_count: c_uint,
        _options: *mut sys::CUlibraryOption,
        _values: *mut *mut c_void,
        _count: c_uint,
    ) {
        let mut bytes = read_image(text(path)?)?;
        bytes.push(0);
        put(library, to_pointer(session()?.modules.library(&bytes)?.handle))
    }

    fn cuLibraryUnload(library: sys::CUlibrary) {
        let session = session()?;
        capture::forbid_unsafe(session)?;
        session.modules.unload_library(session, of(library))
    }

    fn cuLibraryGetKernel(kernel: *mut sys::CUkernel, library: sys::CUlibrary, name: *const c_char) {
        let modules = &session()?.modules;
        let library = modules.libraries.get(of(library), sys::CUDA_ERROR_INVALID_HANDLE)?;
        let found = modules.kernel(&library, text(name)?, current_or_none().as_ref())?;
        put(kernel, to_pointer(found.handle))
    }

    fn cuLibraryGetKernelCount(count: *mut c_uint, library: sys::CUlibrary) {
        let session = session()?;
        let library = session.modules.libraries.get(of(library), sys::CUDA_ERROR_INVALID_HANDLE)?;
        put(count, library.module(session, &current()?)?.names()?.len() as c_uint)
    }

    fn cuLibraryEnumerateKernels(kernels: *mut sys::CUkernel, count: c_uint, library: sys::CUlibrary) {
        let session = session()?;
        let library = session.modules.libraries.get(of(library), sys::CUDA_ERROR_INVALID_HANDLE)?;
        let context = current()?;
        let module = library.module(session, &context)?;
        for (n, name) in module.names()?.iter().take(count as usize).enumerate() {
            let kernel = session.modules.kernel(&library, name, Some(&context))?;
            put(kernels.add(n), to_pointer(kernel.handle))?;
        }
        Ok(())
    }

    fn cuLibraryGetModule(module: *mut sys::CUmodule, library: sys::CUlibrary) {
        let modules = &session()?.modules;
        let library = modules.libraries.get(of(library), sys::CUDA_ERROR_INVALID_HANDLE)?;
        let found = modules.library_module(&library, &current()?, |_| ())?;
        put(module, to_pointer(found.handle))
    }

    fn cuLibraryGetGlobal(
        address: *mut sys::CUdeviceptr,
        bytes: *mut usize,
        library: sys::CUlibrary,
        name: *const c_char,
    ) {
        let session = session()?;
        let library = session.modules.libraries.get(of(library), sys::CUDA_ERROR_INVALID_HANDLE)?;
        let module = session.modules.library_module(&library, &current()?, |_| ())?;
        let found = session.modules.variable(session, &module, text(name)?)?;
        let (start, size) = (found.address, found.size);
        put_if(address, start);
        put_if(bytes, size as usize);
        Ok(())
    }

    fn cuLibraryGetManaged(
        address: *mut sys::CUdeviceptr,
        bytes: *mut usize,
        library: sys::CUlibrary,
        name: *const c_char,
    ) {
        let session = session()?;
        let library = session.modules.libraries.get(of(library), sys::CUDA_ERROR_INVALID_HANDLE)?;
        // Managed variables have addresses before there is a context: runtimes ask before they make one.
        let context = match current() {
            Err(sys::CUDA_ERROR_INVALID_CONTEXT) => session.contexts.retain(session, 0)?,
            found => found?,
        };
        let module = session.modules.library_module(&library, &context, |_| ())?;
        let found = session.modules.variable(session, &module, text(name)?)?;
        let (start, size) = session.managed.place(session, &module, &found)?;
        put_if(address, start);
        put_if(bytes, size as usize);
        Ok(())
    }

    /// No device here has functions that the host can call too.
    fn cuLibraryGetUnifiedFunction(
        _function: *mut *mut c_void,
        library: sys::CUlibrary,
        name: *const c_char,
    ) {
        session()?.modules.libraries.get(of(library), sys::CUDA_ERROR_INVALID_HANDLE)?;
        text(name)?;
        Err(sys::CUDA_ERROR_NOT_FOUND)
    }

    fn cuKernelGetFunction(function: *mut sys::CUfunction, kernel: sys::CUkernel) {
        let modules = &session()?.modules;
        let kernel = modules.kernels.get(of(kernel), sys::CUDA_ERROR_INVALID_HANDLE)?;
        put(function, to_pointer(modules.kernel_function(&kernel, &current()?)?.handle))
    }

    fn cuKernelGetLibrary(library: *mut sys::CUlibrary, kernel: sys::CUkernel) {
        let kernel = session()?.modules.kernels.get(of(kernel), sys::CUDA_ERROR_INVALID_HANDLE)?;
        put(library, to_pointer(kernel.library.handle))
    }

    fn cuKernelGetName(name: *mut *const c_char, kernel: sys::CUkernel) {
        let kernel = session()?.modules.kernels.get(of(kernel), sys::CUDA_ERROR_INVALID_HANDLE)?;
        put(name, kernel.name.as_ptr())
    }

    fn cuKernelGetAttribute(
        value: *mut c_int,
        attribute: sys::CUfunction_attribute,
        kernel: sys::CUkernel,
        device: sys::CUdevice,
    ) {
        fault::check_current()?;
        let session = session()?;
        session.devices.get(device)?;
        let kernel = session.modules.kernels.get(of(kernel), sys::CUDA_ERROR_INVALID_HANDLE)?;
        let function = session.modules.kernel_function(&kernel, &context_on(device)?)?;
        put(value, function.attribute(attribute as i32)?)
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

    fn cuKernelGetParamInfo(kernel: sys::CUkernel, index: usize, offset: *mut usize, size: *mut usize) {
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
) -> crate::entry::Result<std::sync::Arc<crate::context::Context>> {
    match current_or_none() {
        Some(context) if context.device == device => Ok(context),
        _ => {
            let session = session()?;
            let context = session.contexts.retain(session, device)?;
            session.contexts.release(session, device)?;
            context.check().map(|()| context)
        }
    }
}
