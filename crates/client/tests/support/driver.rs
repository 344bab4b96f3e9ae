//! Functions of the library under test that several tests call.

use core::ffi::{c_uint, c_void};

use fermata_abi::sys::driver::*;

// Each test binary calls a part of them.
#[allow(dead_code)]
unsafe extern "C" {
    pub fn cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice) -> CUresult;
    pub fn cuCtxSynchronize() -> CUresult;
    pub fn cuCtxSetCurrent(context: CUcontext) -> CUresult;
    pub fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> CUresult;
    pub fn cuInit(flags: c_uint) -> CUresult;
    pub fn cuLaunchKernel(
        function: CUfunction,
        gx: c_uint,
        gy: c_uint,
        gz: c_uint,
        bx: c_uint,
        by: c_uint,
        bz: c_uint,
        shared: c_uint,
        stream: CUstream,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> CUresult;
    pub fn cuLibraryGetKernel(
        kernel: *mut CUkernel,
        library: CUlibrary,
        name: *const i8,
    ) -> CUresult;
    pub fn cuLibraryLoadData(
        library: *mut CUlibrary,
        code: *const c_void,
        jit: *mut CUjit_option,
        jit_values: *mut *mut c_void,
        jit_count: c_uint,
        options: *mut CUlibraryOption,
        values: *mut *mut c_void,
        count: c_uint,
    ) -> CUresult;
    pub fn cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize) -> CUresult;
    pub fn cuModuleGetFunction(
        function: *mut CUfunction,
        module: CUmodule,
        name: *const i8,
    ) -> CUresult;
    pub fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult;
    pub fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) -> CUresult;
    pub fn cuStreamSynchronize(stream: CUstream) -> CUresult;
}

/// A call that must succeed.
#[allow(unused_macros)]
macro_rules! ok {
    ($call:expr) => {{
        // SAFETY: every pointer in these programs is to a live variable or buffer of the right size.
        let status = unsafe { $call };
        assert_eq!(status, CUDA_SUCCESS, stringify!($call));
    }};
}

/// In a program: allocates something, and waits until [`super::Stage::change_worker`] has given it another worker and ends its input.
#[allow(dead_code)]
pub fn get_another_worker() {
    let mut address = 0;
    ok!(cuMemAlloc_v2(&mut address, 1));
    std::io::stdin().read_line(&mut String::new()).unwrap();
}
