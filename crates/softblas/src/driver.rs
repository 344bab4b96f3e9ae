//! The few functions of the CUDA driver that are called, of the `libcuda.so.1` that the program uses.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::OnceLock;

use fermata_abi::sys::driver as cu;
use libloading::os::unix::Library;

use crate::status::{ALLOC_FAILED, EXECUTION_FAILED, MAPPING_ERROR, NOT_INITIALIZED, Result};

macro_rules! functions {
    ($($field:ident = $name:literal: fn($($argument:ty),*);)*) => {
        /// Addresses of the driver's functions.
        pub struct Driver {
            $($field: unsafe extern "C" fn($($argument),*) -> cu::CUresult,)*
        }

        impl Driver {
            fn load() -> Option<Self> {
                // SAFETY: the program's driver is loaded already, or is what the program would load.
                let library = unsafe { Library::new("libcuda.so.1") }.ok()?;
                // Its functions are used until the process ends.
                let library = ManuallyDrop::new(library);
                Some(Self {
                    // SAFETY: these are the functions' types in the driver's header.
                    $($field: *unsafe { library.get($name) }.ok()?,)*
                })
            }
        }
    };
}

functions! {
    init = b"cuInit\0": fn(c_uint);
    context = b"cuCtxGetCurrent\0": fn(*mut cu::CUcontext);
    set_context = b"cuCtxSetCurrent\0": fn(cu::CUcontext);
    primary = b"cuDevicePrimaryCtxRetain\0": fn(*mut cu::CUcontext, cu::CUdevice);
    device = b"cuCtxGetDevice\0": fn(*mut cu::CUdevice);
    attribute = b"cuDeviceGetAttribute\0": fn(*mut c_int, c_uint, cu::CUdevice);
    load_module = b"cuModuleLoadData\0": fn(*mut cu::CUmodule, *const c_void);
    unload_module = b"cuModuleUnload\0": fn(cu::CUmodule);
    function = b"cuModuleGetFunction\0": fn(*mut cu::CUfunction, cu::CUmodule, *const c_char);
    launch = b"cuLaunchKernel\0": fn(cu::CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint,
        cu::CUstream, *mut *mut c_void, *mut *mut c_void);
    allocate = b"cuMemAlloc_v2\0": fn(*mut cu::CUdeviceptr, usize);
    free = b"cuMemFree_v2\0": fn(cu::CUdeviceptr);
    download = b"cuMemcpyDtoHAsync_v2\0": fn(*mut c_void, cu::CUdeviceptr, usize, cu::CUstream);
    copy_all = b"cuMemcpy2D_v2\0": fn(*const cu::CUDA_MEMCPY2D);
    copy_async = b"cuMemcpy2DAsync_v2\0": fn(*const cu::CUDA_MEMCPY2D, cu::CUstream);
    synchronize = b"cuStreamSynchronize\0": fn(cu::CUstream);
}

/// The program's driver.
///
/// # Errors
/// There is none.
pub fn driver() -> Result<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    DRIVER
        .get_or_init(Driver::load)
        .as_ref()
        .ok_or(NOT_INITIALIZED)
}

fn done(result: cu::CUresult) -> bool {
    result == cu::CUDA_SUCCESS
}

impl Driver {
    /// Makes sure that the calling thread has a context, as the runtime would, and that it is one of a software GPU.
    ///
    /// # Errors
    /// There is no device, or it is a GPU: that has a number on its bus.
    pub fn enter(&self) -> Result {
        let mut context: cu::CUcontext = ptr::null_mut();
        let (mut device, mut number) = (0, -1);
        // SAFETY: all results are written to variables of their type.
        let ready = unsafe {
            done((self.init)(0))
                && done((self.context)(&mut context))
                && (!context.is_null()
                    || done((self.primary)(&mut context, 0)) && done((self.set_context)(context)))
                && done((self.device)(&mut device))
                && done((self.attribute)(
                    &mut number,
                    cu::CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID,
                    device,
                ))
        };
        if ready && number == 0 {
            return Ok(());
        }
        Err(NOT_INITIALIZED)
    }

    /// Loads PTX into the current context.
    ///
    /// # Errors
    /// The driver does not take it.
    pub fn load_module(&self, text: &CStr) -> Result<cu::CUmodule> {
        let mut module: cu::CUmodule = ptr::null_mut();
        // SAFETY: the text ends with a NUL.
        let result = unsafe { (self.load_module)(&mut module, text.as_ptr().cast()) };
        if done(result) {
            Ok(module)
        } else {
            Err(NOT_INITIALIZED)
        }
    }

    /// Unloads a module. It may have gone with its context; then nothing is left to be done.
    pub fn unload_module(&self, module: cu::CUmodule) {
        // SAFETY: the driver refuses handles that it does not know.
        unsafe { (self.unload_module)(module) };
    }

    /// A kernel of a module.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn function(&self, module: cu::CUmodule, name: &CStr) -> Result<cu::CUfunction> {
        let mut function: cu::CUfunction = ptr::null_mut();
        // SAFETY: the name ends with a NUL.
        let result = unsafe { (self.function)(&mut function, module, name.as_ptr()) };
        if done(result) {
            Ok(function)
        } else {
            Err(NOT_INITIALIZED)
        }
    }

    /// Launches a kernel whose one parameter is `parameter`.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Safety
    /// `P` is laid out as the kernel's parameter, and the pointers in it may be used as the kernel uses them.
    pub unsafe fn launch<P>(
        &self,
        function: cu::CUfunction,
        blocks: u32,
        threads: u32,
        stream: cu::CUstream,
        parameter: &P,
    ) -> Result {
        let mut parameters = [ptr::from_ref(parameter).cast_mut().cast::<c_void>()];
        let all = parameters.as_mut_ptr();
        // SAFETY: the driver copies the parameter before it returns.
        let result = unsafe {
            (self.launch)(
                function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                stream,
                all,
                ptr::null_mut(),
            )
        };
        if done(result) {
            Ok(())
        } else {
            Err(EXECUTION_FAILED)
        }
    }

    /// Allocates device memory.
    ///
    /// # Errors
    /// There is not enough.
    pub fn allocate(&self, bytes: usize) -> Result<cu::CUdeviceptr> {
        let mut address = 0;
        // SAFETY: the address is written to a variable.
        if done(unsafe { (self.allocate)(&mut address, bytes) }) {
            Ok(address)
        } else {
            Err(ALLOC_FAILED)
        }
    }

    /// Frees device memory.
    pub fn free(&self, address: cu::CUdeviceptr) {
        // SAFETY: the driver refuses addresses that it has not given.
        unsafe { (self.free)(address) };
    }

    /// Copies device memory to the host, after all work of `stream`, and waits for it.
    ///
    /// # Errors
    /// The copy or work before it failed.
    ///
    /// # Safety
    /// `bytes` bytes at `to` may be written.
    pub unsafe fn download(
        &self,
        to: *mut c_void,
        from: cu::CUdeviceptr,
        bytes: usize,
        stream: cu::CUstream,
    ) -> Result {
        // SAFETY: the caller says so, and the copy has ended when this returns.
        let copied = unsafe {
            done((self.download)(to, from, bytes, stream)) && done((self.synchronize)(stream))
        };
        if copied { Ok(()) } else { Err(MAPPING_ERROR) }
    }

    /// Copies rows; in a stream, or before this returns.
    ///
    /// # Errors
    /// The copy, or work before it, failed.
    ///
    /// # Safety
    /// The memory that `copy` names may be read and written, until the stream has come so far.
    pub unsafe fn copy(&self, copy: &cu::CUDA_MEMCPY2D, stream: Option<cu::CUstream>) -> Result {
        // SAFETY: the caller says so.
        let copied = unsafe {
            match stream {
                Some(stream) => (self.copy_async)(copy, stream),
                None => (self.copy_all)(copy),
            }
        };
        if done(copied) {
            Ok(())
        } else {
            Err(MAPPING_ERROR)
        }
    }
}
