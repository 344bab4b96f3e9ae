//! The entry points that compiler-generated start-up code calls: fat binaries, kernels, variables.
use core::ffi::{c_char, c_int, c_void};

use fermata_abi::sys::runtime::dim3;

use crate::context;
use crate::error::guard;
use crate::registry::{self, Binary};

/// A fat binary's handle as the start-up code passes it around: it never looks behind it.
type Handle = *mut *mut c_void;

/// The record behind a handle; none for null.
///
/// # Safety
/// `handle` is null or came from `__cudaRegisterFatBinary`.
unsafe fn binary(handle: Handle) -> Option<&'static Binary> {
    // SAFETY: the records are never freed.
    unsafe { handle.cast::<Binary>().as_ref() }
}

/// Registers a fat binary without loading it; the handle is good until it is unregistered.
///
/// # Safety
/// `image` points at what the compiler emitted, which stays in place.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn __cudaRegisterFatBinary(image: *mut c_void) -> Handle {
    let mut handle: Handle = core::ptr::null_mut();
    guard(|| {
        // SAFETY: the caller's promise.
        let binary = unsafe { registry::add_binary(image) };
        handle = core::ptr::from_ref(binary).cast_mut().cast();
        Ok(())
    });
    handle
}

/// Ends the registrations of a fat binary; there is nothing left to do.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn __cudaRegisterFatBinaryEnd(_handle: Handle) {}

/// Forgets a fat binary's kernels and variables.
///
/// # Safety
/// `handle` came from `__cudaRegisterFatBinary`.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn __cudaUnregisterFatBinary(handle: Handle) {
    guard(|| {
        // SAFETY: the caller's promise.
        if let Some(binary) = unsafe { binary(handle) } {
            registry::remove_binary(binary);
        }
        Ok(())
    });
}

/// Registers the kernel behind a host stub.
///
/// # Safety
/// `handle` came from `__cudaRegisterFatBinary`; the name is terminated and stays.
#[unsafe(no_mangle)]
#[allow(non_snake_case, clippy::too_many_arguments)]
pub unsafe extern "C" fn __cudaRegisterFunction(
    handle: Handle,
    stub: *const c_char,
    _device_stub: *mut c_char,
    name: *const c_char,
    _thread_limit: c_int,
    _thread: *mut c_void,
    _block: *mut c_void,
    _block_size: *mut dim3,
    _grid_size: *mut dim3,
    _warp_size: *mut c_int,
) {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(binary) = binary(handle) {
                registry::add_function(binary, stub.cast(), name);
            }
        }
        Ok(())
    });
}

/// Registers the device variable behind a host shadow.
///
/// # Safety
/// `handle` came from `__cudaRegisterFatBinary`; the name is terminated and stays.
#[unsafe(no_mangle)]
#[allow(non_snake_case, clippy::too_many_arguments)]
pub unsafe extern "C" fn __cudaRegisterVar(
    handle: Handle,
    shadow: *mut c_char,
    _device_address: *mut c_char,
    name: *const c_char,
    _external: c_int,
    _size: usize,
    _constant: c_int,
    _global: c_int,
) {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(binary) = binary(handle) {
                registry::add_variable(binary, shadow.cast(), name);
            }
        }
        Ok(())
    });
}

/// Registers a managed variable, whose address `__cudaInitModule` stores at `host_pointer`.
///
/// # Safety
/// As for `__cudaRegisterVar`; `host_pointer` stays.
#[unsafe(no_mangle)]
#[allow(non_snake_case, clippy::too_many_arguments)]
pub unsafe extern "C" fn __cudaRegisterManagedVar(
    handle: Handle,
    host_pointer: *mut *mut c_void,
    _device_address: *mut c_char,
    name: *const c_char,
    _external: c_int,
    _size: usize,
    _constant: c_int,
    _global: c_int,
) {
    guard(|| {
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(binary) = binary(handle) {
                registry::add_managed(binary, host_pointer, name);
            }
        }
        Ok(())
    });
}

/// Registers a variable of the host that device code names; only systems with shared page tables use it.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn __cudaRegisterHostVar(
    _handle: Handle,
    _name: *const c_char,
    _address: *mut c_char,
    _size: usize,
) {
}

/// Registers a table of unified functions; only systems with shared page tables use it.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn __cudaRegisterUnifiedTable(_handle: Handle, _table: *mut c_void) {}

/// Places the binary's managed variables; 1 if that worked.
///
/// # Safety
/// `handle` came from `__cudaRegisterFatBinary`.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn __cudaInitModule(handle: Handle) -> c_char {
    let result = guard(|| {
        // SAFETY: the caller's promise.
        match unsafe { binary(handle) } {
            Some(binary) if binary.has_managed() => binary.place_managed(context::ready()?),
            _ => Ok(()),
        }
    });
    c_char::from(result == 0)
}
