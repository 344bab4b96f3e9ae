//! What tests of the driver API share: a context of their own, and shorthand for common calls.
#![allow(dead_code)]

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

use fermata_abi::sys::driver as cu;
use fermata_softgpu::api::args::{In, Out};
use fermata_softgpu::api::{context, copy, init, launch, memory, module};

/// Calls a function of the driver API.
macro_rules! cuda {
    ($call:expr) => {
        // SAFETY: the test passes null or pointers to live values.
        unsafe { $call }
    };
}
pub(crate) use cuda;

/// Fails the test unless the call succeeded.
#[track_caller]
pub fn check(code: cu::CUresult) {
    assert_eq!(code, cu::CUDA_SUCCESS);
}

/// y = a * x + y
pub const SAXPY: &CStr = c"
.version 7.0
.target sm_75
.address_size 64
.visible .entry saxpy(.param .u32 n, .param .f32 a, .param .u64 x, .param .u64 y)
{
    .reg .pred %p<2>;
    .reg .f32 %f<5>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<8>;
    ld.param.u32 %r1, [n];
    ld.param.f32 %f1, [a];
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra done;
    cvta.to.global.u64 %rd3, %rd1;
    cvta.to.global.u64 %rd4, %rd2;
    mul.wide.u32 %rd5, %r5, 4;
    add.s64 %rd6, %rd3, %rd5;
    add.s64 %rd7, %rd4, %rd5;
    ld.global.f32 %f2, [%rd6];
    ld.global.f32 %f3, [%rd7];
    fma.rn.f32 %f4, %f2, %f1, %f3;
    st.global.f32 [%rd7], %f4;
done:
    ret;
}
";

/// Adds `step` to each of `n` words, `loops` times: slow enough to be caught in the middle.
pub const COUNT: &CStr = c"
.version 7.0
.target sm_75
.address_size 64
.visible .entry count(.param .u64 p, .param .u32 n, .param .u32 loops, .param .u32 step)
{
    .reg .pred %p<3>;
    .reg .b32 %r<10>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [p];
    ld.param.u32 %r1, [n];
    ld.param.u32 %r2, [loops];
    ld.param.u32 %r3, [step];
    mov.u32 %r4, %ctaid.x;
    mov.u32 %r5, %ntid.x;
    mov.u32 %r6, %tid.x;
    mad.lo.s32 %r7, %r4, %r5, %r6;
    setp.ge.u32 %p1, %r7, %r1;
    @%p1 bra done;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r7, 4;
    add.s64 %rd4, %rd2, %rd3;
    mov.u32 %r9, 0;
again:
    setp.ge.u32 %p2, %r9, %r2;
    @%p2 bra done;
    ld.volatile.global.u32 %r8, [%rd4];
    add.u32 %r8, %r8, %r3;
    st.volatile.global.u32 [%rd4], %r8;
    add.u32 %r9, %r9, 1;
    bra again;
done:
    ret;
}
";

/// Starts the driver, with two devices unless something else was asked for.
pub fn init() {
    static DEVICES: std::sync::Once = std::sync::Once::new();
    const NAME: &str = "FERMATA_SOFTGPU_DEVICES";
    DEVICES.call_once(|| {
        if std::env::var_os(NAME).is_none() {
            // SAFETY: the driver, which reads the environment, starts after this, and tests do not.
            unsafe { std::env::set_var(NAME, "2") };
        }
    });
    check(cuda!(init::cuInit(0)));
}

/// A context that is current while it lives.
pub struct Context(pub cu::CUcontext);

/// A loaded module.
pub struct Module(pub cu::CUmodule);

/// A kernel.
pub struct Kernel(pub cu::CUfunction);

impl Context {
    /// On device 0.
    pub fn new() -> Self {
        Self::on(0)
    }

    pub fn on(device: i32) -> Self {
        init();
        let mut handle = null_mut();
        check(cuda!(context::cuCtxCreate_v2(
            Out::from(&mut handle),
            0,
            device
        )));
        Self(handle)
    }

    pub fn load(&self, ptx: &CStr) -> Module {
        let mut handle = null_mut();
        let image: In<c_void> = In::from(ptx.to_bytes_with_nul()).cast();
        check(cuda!(module::cuModuleLoadData(
            Out::from(&mut handle),
            image
        )));
        Module(handle)
    }

    pub fn allocate(&self, bytes: usize) -> u64 {
        let mut address = 0;
        check(cuda!(memory::cuMemAlloc_v2(Out::from(&mut address), bytes)));
        address
    }

    pub fn upload<T>(&self, values: &[T]) -> u64 {
        let address = self.allocate(size_of_val(values));
        let from: In<c_void> = In::from(values).cast();
        check(cuda!(copy::cuMemcpyHtoD_v2(
            address,
            from,
            size_of_val(values)
        )));
        address
    }

    pub fn download<T: Default + Clone>(&self, address: u64, count: usize) -> Vec<T> {
        let mut values = vec![T::default(); count];
        let to: Out<c_void> = Out::from(&mut values[..]).cast();
        check(cuda!(copy::cuMemcpyDtoH_v2(
            to,
            address,
            count * size_of::<T>()
        )));
        values
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let code = cuda!(context::cuCtxDestroy_v2(self.0));
        if !std::thread::panicking() {
            check(code);
        }
    }
}

impl Module {
    pub fn function(&self, name: &CStr) -> Kernel {
        let mut handle = null_mut();
        check(cuda!(module::cuModuleGetFunction(
            Out::from(&mut handle),
            self.0,
            name.into()
        )));
        Kernel(handle)
    }
}

impl Kernel {
    pub fn launch(
        &self,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        stream: cu::CUstream,
        params: &[&[u8]],
    ) {
        check(self.try_launch(grid, block, shared, stream, params));
    }

    pub fn try_launch(
        &self,
        [gx, gy, gz]: [u32; 3],
        [bx, by, bz]: [u32; 3],
        shared: u32,
        stream: cu::CUstream,
        params: &[&[u8]],
    ) -> cu::CUresult {
        let pointers: Vec<*mut c_void> = params
            .iter()
            .map(|bytes| bytes.as_ptr().cast_mut().cast())
            .collect();
        let params: In<*mut c_void> = In::from(&pointers[..]);
        cuda!(launch::cuLaunchKernel(
            self.0,
            gx,
            gy,
            gz,
            bx,
            by,
            bz,
            shared,
            stream,
            params,
            In::null()
        ))
    }
}

/// A pointer of the test as the driver takes it.
pub fn out<T>(pointer: *mut T) -> Out<T> {
    // SAFETY: each test passes a pointer that is good for what the called function does with it.
    unsafe { Out::from_raw(pointer) }
}
