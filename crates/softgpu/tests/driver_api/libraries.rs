//! Libraries: loaded once, with a module in every context that uses them.

use std::ffi::c_void;
use std::ptr::null_mut;

use fermata_abi::sys::driver as cu;
use fermata_softgpu::api::args::{In, Out};
use fermata_softgpu::api::{context, copy, function, launch, library, memory, stream};

use crate::common::{Context, check, cuda};

/// Stores the address of `counter` in its parameter's place, and adds 1 to the counter.
const LIBRARY: &std::ffi::CStr = c"
.version 7.0
.target sm_75
.address_size 64
.visible .global .align 4 .u32 counter = 40;
.visible .global .align 8 .u64 where_it_is = counter;
.visible .const .align 4 .u32 step = 2;
.visible .global .attribute(.managed) .align 4 .u32 both = 8;
.visible .entry advance(.param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    .shared .align 4 .b8 scratch[2048];
    ld.param.u64 %rd1, [out];
    ld.global.u32 %r1, [counter];
    ld.const.u32 %r2, [step];
    add.u32 %r3, %r1, %r2;
    st.global.u32 [counter], %r3;
    st.shared.u32 [scratch], %r3;
    ld.global.u64 %rd2, [where_it_is];
    st.global.u64 [%rd1], %rd2;
    ret;
}
.visible .entry other()
{
    .reg .b32 %r<3>;
    ld.global.u32 %r1, [both];
    add.u32 %r2, %r1, 1;
    st.global.u32 [both], %r2;
    ret;
}
";

fn load() -> cu::CUlibrary {
    let mut handle = null_mut();
    let code: In<c_void> = In::from(LIBRARY.to_bytes_with_nul()).cast();
    let none = || (In::null(), Out::null());
    let ((a, b), (c, d)) = (none(), none());
    check(cuda!(library::cuLibraryLoadData(
        Out::from(&mut handle),
        code,
        a,
        b,
        0,
        c,
        d,
        0
    )));
    handle
}

fn kernel(library: cu::CUlibrary) -> cu::CUkernel {
    kernel_called(library, c"advance")
}

fn kernel_called(library: cu::CUlibrary, name: &std::ffi::CStr) -> cu::CUkernel {
    let mut handle = null_mut();
    check(cuda!(library::cuLibraryGetKernel(
        Out::from(&mut handle),
        library,
        name.into()
    )));
    handle
}

fn global(library: cu::CUlibrary) -> u64 {
    let (mut address, mut size) = (0, 0);
    let (a, s) = (Out::from(&mut address), Out::from(&mut size));
    check(cuda!(library::cuLibraryGetGlobal(
        a,
        s,
        library,
        c"counter".into()
    )));
    assert_eq!(size, 4);
    address
}

/// Launches the kernel by its own handle.
fn run(kernel: cu::CUkernel, out: u64) {
    let mut out = out;
    let pointers: [*mut c_void; 1] = [(&raw mut out).cast()];
    let (params, extra): (In<*mut c_void>, _) = (In::from(&pointers[..]), In::null());
    let function: cu::CUfunction = kernel.cast();
    check(cuda!(launch::cuLaunchKernel(
        function,
        1,
        1,
        1,
        1,
        1,
        1,
        0,
        null_mut(),
        params,
        extra
    )));
    check(cuda!(context::cuCtxSynchronize()));
}

#[test]
fn each_context_has_its_own_variables() {
    crate::common::init();
    let library = load();
    let kernel = kernel(library);
    let first = Context::new();
    let out = first.allocate(8);
    run(kernel, out);
    run(kernel, out);
    let address = global(library);
    assert_eq!(
        first.download::<u64>(out, 1),
        [address],
        "initial values hold addresses"
    );
    assert_eq!(first.download::<u32>(address, 1), [44]);
    {
        let second = Context::on(1);
        assert_ne!(global(library), address);
        run(kernel, second.allocate(8));
        assert_eq!(second.download::<u32>(global(library), 1), [42]);
    }
    assert_eq!(first.download::<u32>(address, 1), [44]);
    check(cuda!(library::cuLibraryUnload(library)));
    let gone = cuda!(library::cuLibraryUnload(library));
    assert_eq!(gone, cu::CUDA_ERROR_INVALID_HANDLE);
}

fn managed(library: cu::CUlibrary) -> u64 {
    let (mut address, mut size) = (0, 0);
    let (a, s) = (Out::from(&mut address), Out::from(&mut size));
    check(cuda!(library::cuLibraryGetManaged(
        a,
        s,
        library,
        c"both".into()
    )));
    assert_eq!(size, 4);
    address
}

#[test]
fn managed_variables_are_the_same_in_all_contexts() {
    crate::common::init();
    let library = load();
    let kernel = kernel_called(library, c"other");
    // The first call is without a context; the variable outlives every one.
    let address = managed(library);
    let word = std::ptr::with_exposed_provenance_mut::<u32>(address as usize);
    // SAFETY: managed memory of 4 bytes that nothing uses now.
    unsafe {
        assert_eq!(*word, 8);
        *word = 20;
    }
    for device in [0, 1] {
        let _context = Context::on(device);
        assert_eq!(managed(library), address);
        run(kernel, 0);
    }
    // SAFETY: as above; the kernels have ended.
    assert_eq!(unsafe { *word }, 22);
    check(cuda!(library::cuLibraryUnload(library)));
}

#[test]
fn settings_of_a_kernel_hold_for_its_functions() {
    let _context = Context::new();
    let library = load();
    let kernel = kernel(library);
    let dynamic = cu::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    let mut handle = null_mut();
    check(cuda!(library::cuKernelGetFunction(
        Out::from(&mut handle),
        kernel
    )));
    let told = || {
        let mut value = 0;
        check(cuda!(function::cuFuncGetAttribute(
            Out::from(&mut value),
            dynamic,
            handle
        )));
        value
    };
    assert_eq!(told(), (48 << 10) - 2048);
    check(cuda!(library::cuKernelSetAttribute(
        dynamic,
        100 << 10,
        kernel,
        0
    )));
    assert_eq!(told(), 100 << 10);
    let most = (227 << 10) - 2048;
    check(cuda!(library::cuKernelSetAttribute(
        dynamic, most, kernel, 0
    )));
    let more = cuda!(library::cuKernelSetAttribute(dynamic, most + 1, kernel, 0));
    assert_eq!(more, cu::CUDA_ERROR_INVALID_VALUE);
    let mut count = 0;
    check(cuda!(library::cuLibraryGetKernelCount(
        Out::from(&mut count),
        library
    )));
    assert_eq!(count, 2);
}

#[test]
fn memory_is_copied_between_devices() {
    let source = Context::on(0);
    let from = source.upload(&[1u32, 2, 3]);
    let target = Context::on(1);
    let to = target.allocate(12);
    let (a, b) = (target.0, source.0);
    check(cuda!(copy::cuMemcpyPeerAsync(
        to,
        a,
        from,
        b,
        12,
        null_mut()
    )));
    check(cuda!(stream::cuStreamSynchronize(null_mut())));
    assert_eq!(target.download::<u32>(to, 3), [1, 2, 3]);
    check(cuda!(context::cuCtxEnablePeerAccess(source.0, 0)));
    let again = cuda!(context::cuCtxEnablePeerAccess(source.0, 0));
    assert_eq!(again, cu::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    check(cuda!(memory::cuMemFree_v2(from)));
    drop(target);
    drop(source);
}
