//! Libraries: code that the program loads itself.
use core::ffi::{c_char, c_uint, c_void};

use fermata_abi::sys::runtime::{cudaJitOption, cudaKernel_t, cudaLibrary_t, cudaLibraryOption};

use crate::api::memory::pointer;
use crate::context;
use crate::error::{Error, Result, export, put};
use crate::registry::{self, Handle};

/// # Safety
/// `place` and `bytes` are null or writable, `library` is live and `name` terminated.
unsafe fn variable(
    place: *mut *mut c_void,
    bytes: *mut usize,
    library: cudaLibrary_t,
    name: *const c_char,
    managed: bool,
) -> Result {
    let calls = context::ready()?;
    let (mut address, mut size) = (0, 0);
    // SAFETY: the caller's promise.
    unsafe {
        if managed {
            calls.cuLibraryGetManaged(&mut address, &mut size, library.cast(), name)?;
        } else {
            calls.cuLibraryGetGlobal(&mut address, &mut size, library.cast(), name)?;
        }
        if !place.is_null() {
            put(place, pointer(address))?;
        }
        if bytes.is_null() {
            Ok(())
        } else {
            put(bytes, size)
        }
    }
}

export! {
    /// Loads code from memory.
    fn cudaLibraryLoadData(
        library: *mut cudaLibrary_t,
        code: *const c_void,
        jit_options: *mut cudaJitOption,
        jit_values: *mut *mut c_void,
        jit_count: c_uint,
        options: *mut cudaLibraryOption,
        values: *mut *mut c_void,
        count: c_uint,
    ) {
        if library.is_null() || code.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuLibraryLoadData(
            library.cast(), code, jit_options, jit_values, jit_count, options, values, count,
        )
    }

    /// Loads code from a file.
    fn cudaLibraryLoadFromFile(
        library: *mut cudaLibrary_t,
        path: *const c_char,
        jit_options: *mut cudaJitOption,
        jit_values: *mut *mut c_void,
        jit_count: c_uint,
        options: *mut cudaLibraryOption,
        values: *mut *mut c_void,
        count: c_uint,
    ) {
        if library.is_null() || path.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuLibraryLoadFromFile(
            library.cast(), path, jit_options, jit_values, jit_count, options, values, count,
        )
    }

    /// Unloads a library.
    fn cudaLibraryUnload(library: cudaLibrary_t) {
        context::ready()?.cuLibraryUnload(library.cast())
    }

    /// A kernel of a library by name; it may be launched like a host stub.
    fn cudaLibraryGetKernel(kernel: *mut cudaKernel_t, library: cudaLibrary_t, name: *const c_char) {
        if name.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let mut handle = core::ptr::null_mut();
        context::ready()?.cuLibraryGetKernel(&mut handle, library.cast(), name)?;
        registry::remember(handle.cast(), Handle::Kernel);
        put(kernel, handle.cast())
    }

    /// How many kernels a library has.
    fn cudaLibraryGetKernelCount(count: *mut c_uint, library: cudaLibrary_t) {
        if count.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuLibraryGetKernelCount(count, library.cast())
    }

    /// The kernels of a library.
    fn cudaLibraryEnumerateKernels(kernels: *mut cudaKernel_t, count: c_uint, library: cudaLibrary_t) {
        if kernels.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        kernels.write_bytes(0, count as usize);
        context::ready()?.cuLibraryEnumerateKernels(kernels.cast(), count, library.cast())?;
        for at in 0..count as usize {
            registry::remember(kernels.add(at).read().cast(), Handle::Kernel);
        }
        Ok(())
    }

    /// Address and size of a variable of a library.
    fn cudaLibraryGetGlobal(
        place: *mut *mut c_void,
        bytes: *mut usize,
        library: cudaLibrary_t,
        name: *const c_char,
    ) {
        variable(place, bytes, library, name, false)
    }

    /// Address and size of a managed variable of a library.
    fn cudaLibraryGetManaged(
        place: *mut *mut c_void,
        bytes: *mut usize,
        library: cudaLibrary_t,
        name: *const c_char,
    ) {
        variable(place, bytes, library, name, true)
    }
}
