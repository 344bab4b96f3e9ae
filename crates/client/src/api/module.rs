//! Modules.

use core::ffi::{c_char, c_uint, c_void};

use fermata_abi::sys::driver as sys;

use crate::capture;
use crate::context::current;
use crate::entry::{Result, array, driver_api, put, put_if, text};
use crate::handles::{of, to_pointer};
use crate::image;
use crate::session::session;

driver_api! {
    fn cuModuleLoad(module: *mut sys::CUmodule, path: *const c_char) {
        let mut bytes = read_image(text(path)?)?;
        bytes.push(0);
        let handle = session()?.modules.load(&current()?, &bytes, |_| ())?.handle;
        put(module, to_pointer(handle))
    }

    fn cuModuleLoadData(module: *mut sys::CUmodule, image: *const c_void) {
        let handle = session()?.modules.load(&current()?, image::bytes(image)?, |_| ())?.handle;
        put(module, to_pointer(handle))
    }

    fn cuModuleLoadDataEx(
        module: *mut sys::CUmodule,
        image: *const c_void,
        count: c_uint,
        options: *mut sys::CUjit_option,
        values: *mut *mut c_void,
    ) {
        let logs = Logs::new(array(options, count as usize)?, values);
        let loaded = session()?.modules.load(&current()?, image::bytes(image)?, |log| logs.fill(log));
        put(module, to_pointer(loaded?.handle))
    }

    fn cuModuleLoadFatBinary(module: *mut sys::CUmodule, image: *const c_void) {
        let handle = session()?.modules.load(&current()?, image::bytes(image)?, |_| ())?.handle;
        put(module, to_pointer(handle))
    }

    fn cuModuleUnload(module: sys::CUmodule) {
        let session = session()?;
        capture::forbid_unsafe(session)?;
        session.modules.unload_own(session, of(module))
    }

    fn cuModuleGetLoadingMode(mode: *mut sys::CUmoduleLoadingMode) {
        put(mode, sys::CU_MODULE_LAZY_LOADING)
    }

    fn cuModuleGetFunction(function: *mut sys::CUfunction, module: sys::CUmodule, name: *const c_char) {
        let modules = &session()?.modules;
        let module = modules.modules.get(of(module), sys::CUDA_ERROR_INVALID_HANDLE)?;
        put(function, to_pointer(modules.function(&module, text(name)?)?.handle))
    }

    fn cuModuleGetFunctionCount(count: *mut c_uint, module: sys::CUmodule) {
        let module = session()?.modules.modules.get(of(module), sys::CUDA_ERROR_INVALID_HANDLE)?;
        put(count, module.names()?.len() as c_uint)
    }

    fn cuModuleEnumerateFunctions(functions: *mut sys::CUfunction, count: c_uint, module: sys::CUmodule) {
        let modules = &session()?.modules;
        let module = modules.modules.get(of(module), sys::CUDA_ERROR_INVALID_HANDLE)?;
        for (n, name) in module.names()?.iter().take(count as usize).enumerate() {
            put(functions.add(n), to_pointer(modules.function(&module, name)?.handle))?;
        }
        Ok(())
    }

    fn cuModuleGetGlobal_v2(
        address: *mut sys::CUdeviceptr,
        bytes: *mut usize,
        module: sys::CUmodule,
        name: *const c_char,
    ) {
        let session = session()?;
        let module = session.modules.modules.get(of(module), sys::CUDA_ERROR_INVALID_HANDLE)?;
        let found = session.modules.variable(session, &module, text(name)?)?;
        // Runtimes before CUDA 13 ask for managed variables here too.
        let (start, size) = if found.managed {
            session.managed.place(session, &module, &found)?
        } else {
            (found.address, found.size)
        };
        put_if(address, start);
        put_if(bytes, size as usize);
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

/// The log buffers among the options of a load.
pub(super) struct Logs {
    error: Option<(*mut u8, usize)>,
}

impl Logs {
    /// # Safety
    /// `values` has a value for each option; a log buffer is as large as its size option says.
    pub(super) unsafe fn new(options: &[sys::CUjit_option], values: *mut *mut c_void) -> Self {
        let value = |wanted| {
            let at = options.iter().position(|option| *option == wanted)?;
            // SAFETY: each option has a value.
            Some(unsafe { values.add(at).read() })
        };
        let buffer = value(sys::CU_JIT_ERROR_LOG_BUFFER).filter(|buffer| !buffer.is_null());
        let size = value(sys::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
            .map_or(0, |size| size.addr() as u32 as usize);
        Self {
            error: buffer
                .map(|buffer| (buffer.cast(), size))
                .filter(|(_, size)| *size > 0),
        }
    }

    /// Writes what the compiler said, cut to the buffer.
    pub(super) fn fill(&self, log: &str) {
        let Some((buffer, size)) = self.error else {
            return;
        };
        let copied = log.len().min(size - 1);
        // SAFETY: the buffer is `size` bytes long by the promise given to `new`.
        unsafe {
            std::ptr::copy_nonoverlapping(log.as_ptr(), buffer, copied);
            buffer.add(copied).write(0);
        }
    }
}
