//! Loading PTX, launching, copying, and what is refused.

use std::ffi::c_void;
use std::ptr::null_mut;

use fermata_abi::sys::driver as cu;
use fermata_softgpu::api::args::{In, Out};
use fermata_softgpu::api::{
    context, copy, device, function, init, launch, memory, memset, module, stream,
};

use crate::common::{self, Context, Module, check, cuda};

#[test]
fn a_kernel_computes_and_its_result_is_copied_back() {
    let context = Context::new();
    let module = context.load(common::SAXPY);
    let kernel = module.function(c"saxpy");
    let n = 1000u32;
    let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let y = vec![1.0f32; n as usize];
    let (dx, dy) = (context.upload(&x), context.upload(&y));
    kernel.launch(
        [8, 1, 1],
        [128, 1, 1],
        0,
        null_mut(),
        &[
            &n.to_ne_bytes(),
            &2.0f32.to_ne_bytes(),
            &dx.to_ne_bytes(),
            &dy.to_ne_bytes(),
        ],
    );
    let result: Vec<f32> = context.download(dy, n as usize);
    assert!(
        result
            .iter()
            .enumerate()
            .all(|(i, value)| *value == 2.0 * i as f32 + 1.0)
    );
}

#[test]
fn the_device_describes_itself() {
    common::init();
    let mut value = 0;
    let attribute = cu::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
    check(cuda!(device::cuDeviceGetAttribute(
        Out::from(&mut value),
        attribute,
        0
    )));
    assert_eq!(value, 9);
    let mut name = [0 as std::ffi::c_char; 8];
    check(cuda!(device::cuDeviceGetName(
        Out::from(&mut name[..]),
        8,
        0
    )));
    assert_eq!(name[7], 0);
    assert_eq!(name[0] as u8, b'F');
    let mut handle = 0;
    assert_eq!(
        cuda!(device::cuDeviceGet(Out::from(&mut handle), 9)),
        cu::CUDA_ERROR_INVALID_DEVICE
    );
    let mut version = 0;
    check(cuda!(init::cuDriverGetVersion(Out::from(&mut version))));
    assert_eq!(version, 13000);
}

#[test]
fn copies_beyond_an_allocation_are_refused() {
    let context = Context::new();
    let address = context.allocate(4 << 20);
    let host = vec![0u8; (4 << 20) + 1];
    let from = In::from(&host[..]).cast::<c_void>();
    assert_eq!(
        cuda!(copy::cuMemcpyHtoD_v2(address, from, host.len())),
        cu::CUDA_ERROR_INVALID_VALUE
    );
    check(cuda!(copy::cuMemcpyHtoD_v2(address, from, host.len() - 1)));
}

#[test]
fn memsets_fill_rows_and_leave_the_gaps() {
    let context = Context::new();
    let address = context.upload(&[0u8; 64]);
    check(cuda!(memset::cuMemsetD2D16_v2(address, 16, 0x1234, 3, 2)));
    let bytes: Vec<u8> = context.download(address, 32);
    assert_eq!(bytes[..8], [0x34, 0x12, 0x34, 0x12, 0x34, 0x12, 0, 0]);
    assert_eq!(bytes[16..24], [0x34, 0x12, 0x34, 0x12, 0x34, 0x12, 0, 0]);
    assert_eq!(bytes[24..32], [0; 8]);
    let odd = cuda!(memset::cuMemsetD32_v2(address + 2, 1, 1));
    assert_eq!(odd, cu::CUDA_ERROR_INVALID_VALUE);
}

#[test]
fn boxes_are_copied_between_pitched_memory() {
    let context = Context::new();
    let source: Vec<u8> = (0..64).collect();
    let address = context.upload(&source);
    let mut result = [0u8; 6];
    let copy = cu::CUDA_MEMCPY2D {
        srcMemoryType: cu::CU_MEMORYTYPE_DEVICE,
        srcDevice: address,
        srcPitch: 16,
        srcXInBytes: 4,
        srcY: 1,
        dstMemoryType: cu::CU_MEMORYTYPE_HOST,
        dstHost: result.as_mut_ptr().cast(),
        dstPitch: 3,
        WidthInBytes: 3,
        Height: 2,
        ..Default::default()
    };
    check(cuda!(copy::cuMemcpy2D_v2(In::from(&copy))));
    assert_eq!(result, [20, 21, 22, 36, 37, 38]);
    let narrow = cu::CUDA_MEMCPY2D {
        dstPitch: 2,
        ..copy
    };
    assert_eq!(
        cuda!(copy::cuMemcpy2D_v2(In::from(&narrow))),
        cu::CUDA_ERROR_INVALID_VALUE
    );
}

#[test]
fn a_destroyed_context_is_not_current_any_more() {
    common::init();
    let mut handle = null_mut();
    check(cuda!(context::cuCtxCreate_v2(Out::from(&mut handle), 0, 0)));
    check(cuda!(context::cuCtxDestroy_v2(handle)));
    let mut address = 0;
    let refused = cuda!(memory::cuMemAlloc_v2(Out::from(&mut address), 4));
    assert_eq!(refused, cu::CUDA_ERROR_INVALID_CONTEXT);
    assert_eq!(
        cuda!(context::cuCtxSetCurrent(handle)),
        cu::CUDA_ERROR_INVALID_CONTEXT
    );
    check(cuda!(context::cuCtxSetCurrent(null_mut())));
}

#[test]
fn kernels_tell_their_parameters_and_limits() {
    let context = Context::new();
    let module = context.load(common::SAXPY);
    let kernel = module.function(c"saxpy");
    let (mut offset, mut size) = (0, 0);
    let info = |index, offset: &mut usize, size: &mut usize| {
        cuda!(function::cuFuncGetParamInfo(
            kernel.0,
            index,
            Out::from(offset),
            Out::from(size)
        ))
    };
    check(info(3, &mut offset, &mut size));
    assert_eq!((offset, size), (16, 8));
    assert_eq!(
        info(4, &mut offset, &mut size),
        cu::CUDA_ERROR_INVALID_VALUE
    );
    let shape = |block: u32, shared: u32| {
        cuda!(launch::cuLaunchKernel(
            kernel.0,
            1,
            1,
            1,
            block,
            1,
            1,
            shared,
            null_mut(),
            In::null(),
            In::null()
        ))
    };
    assert_eq!(shape(2048, 0), cu::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(shape(0, 0), cu::CUDA_ERROR_INVALID_VALUE);
    let mut missing = null_mut();
    let name = c"no_such_kernel".into();
    let found = cuda!(module::cuModuleGetFunction(
        Out::from(&mut missing),
        module.0,
        name
    ));
    assert_eq!(found, cu::CUDA_ERROR_NOT_FOUND);
}

#[test]
fn ptx_that_cannot_be_read_tells_the_line() {
    let _context = Context::new();
    let mut handle = null_mut();
    let mut log = [0u8; 256];
    let mut options = [
        cu::CU_JIT_ERROR_LOG_BUFFER,
        cu::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
    ];
    let mut values: [*mut c_void; 2] = [
        log.as_mut_ptr().cast(),
        std::ptr::without_provenance_mut(256),
    ];
    let text = c".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k() { frobnicate.u32 %r1 3; ret; }";
    let refused = cuda!(module::cuModuleLoadDataEx(
        Out::from(&mut handle),
        In::from(text.to_bytes_with_nul()).cast(),
        2,
        In::from(&options[..]),
        Out::from(&mut values[..]),
    ));
    options.reverse();
    assert_eq!(refused, cu::CUDA_ERROR_INVALID_PTX);
    let text = String::from_utf8_lossy(&log);
    assert!(text.contains("line 4"), "{text}");
}

#[test]
fn a_kernel_that_cannot_run_is_refused_when_it_is_launched() {
    let _context = Context::new();
    let mut handle = null_mut();
    let mut log = [0u8; 256];
    let options = [
        cu::CU_JIT_INFO_LOG_BUFFER,
        cu::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
    ];
    let mut values: [*mut c_void; 2] = [
        log.as_mut_ptr().cast(),
        std::ptr::without_provenance_mut(256),
    ];
    let text = c".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry bad() { frobnicate.u32 %r1, 3; ret; }\n.visible .entry good() { ret; }";
    check(cuda!(module::cuModuleLoadDataEx(
        Out::from(&mut handle),
        In::from(text.to_bytes_with_nul()).cast(),
        2,
        In::from(&options[..]),
        Out::from(&mut values[..]),
    )));
    let module = Module(handle);
    let text = String::from_utf8_lossy(&log).into_owned();
    assert!(
        text.contains("frobnicate") && text.contains("`bad`"),
        "{text}"
    );
    let bad = module.function(c"bad");
    let launched = bad.try_launch([1; 3], [1; 3], 0, null_mut(), &[]);
    assert_eq!(launched, cu::CUDA_ERROR_NOT_SUPPORTED);
    assert_eq!(
        cuda!(function::cuFuncLoad(bad.0)),
        cu::CUDA_ERROR_NOT_SUPPORTED
    );
    module
        .function(c"good")
        .launch([1; 3], [1; 3], 0, null_mut(), &[]);
    check(cuda!(context::cuCtxSynchronize()));
}

#[test]
fn stream_handles_are_checked() {
    let _context = Context::new();
    let bogus: cu::CUstream = std::ptr::without_provenance_mut(0x1234);
    assert_eq!(
        cuda!(stream::cuStreamSynchronize(bogus)),
        cu::CUDA_ERROR_INVALID_HANDLE
    );
    let mut handle = null_mut();
    check(cuda!(stream::cuStreamCreate(Out::from(&mut handle), 1)));
    check(cuda!(stream::cuStreamQuery(handle)));
    check(cuda!(stream::cuStreamDestroy_v2(handle)));
    assert_eq!(
        cuda!(stream::cuStreamDestroy_v2(handle)),
        cu::CUDA_ERROR_INVALID_HANDLE
    );
}
