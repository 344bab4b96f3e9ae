//! Linking at run time.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

use fermata_abi::sys::driver as cu;
use fermata_softgpu::api::args::{In, Name, Out};
use fermata_softgpu::api::{context, link, module};

use crate::common::{Context, Module, check, cuda};

const KERNEL: &CStr = c".version 8.0\n.target sm_75\n.address_size 64
.extern .func (.param .b32 r) twice(.param .b32 x);
.global .u32 own = 5;
.visible .entry k(.param .u64 p) {
 .reg .b64 %a; .reg .b32 %v; .param .b32 x; .param .b32 r;
 ld.param.u64 %a, [p]; ld.global.u32 %v, [own]; st.param.b32 [x], %v;
 call (r), twice, (x); ld.param.b32 %v, [r]; st.global.u32 [%a], %v; ret; }";

const FUNCTION: &CStr = c".version 7.0\n.target sm_70\n.address_size 64
.global .u32 own = 3;
.visible .func (.param .b32 r) twice(.param .b32 x) {
 .reg .b32 %v<2>; ld.param.b32 %v0, [x]; add.u32 %v0, %v0, %v0;
 ld.global.u32 %v1, [own]; add.u32 %v0, %v0, %v1; st.param.b32 [r], %v0; ret; }";

fn create() -> cu::CUlinkState {
    let mut state = null_mut();
    check(cuda!(link::cuLinkCreate_v2(
        0,
        In::null(),
        Out::null(),
        Out::from(&mut state)
    )));
    state
}

fn add(state: cu::CUlinkState, kind: cu::CUjitInputType, bytes: &[u8]) -> cu::CUresult {
    let data: In<c_void> = In::from(bytes).cast();
    let name = Name::from(c"input");
    cuda!(link::cuLinkAddData_v2(
        state,
        kind,
        data,
        bytes.len(),
        name,
        0,
        In::null(),
        Out::null()
    ))
}

fn complete(state: cu::CUlinkState) -> (cu::CUresult, *mut c_void, usize) {
    let (mut image, mut size) = (null_mut(), 0);
    let code = cuda!(link::cuLinkComplete(
        state,
        Out::from(&mut image),
        Out::from(&mut size)
    ));
    (code, image, size)
}

#[test]
fn a_kernel_calls_a_function_of_another_module_that_it_is_linked_with() {
    let context = Context::new();
    let state = create();
    for text in [KERNEL, FUNCTION] {
        check(add(state, cu::CU_JIT_INPUT_PTX, text.to_bytes_with_nul()));
    }
    let (code, image, size) = complete(state);
    check(code);
    assert!(size > 0);
    let mut handle = null_mut();
    let image: In<c_void> = crate::common::out(image).to_in();
    check(cuda!(module::cuModuleLoadData(
        Out::from(&mut handle),
        image
    )));
    check(cuda!(link::cuLinkDestroy(state)));
    let word = context.upload(&[0u32]);
    let kernel = Module(handle).function(c"k");
    kernel.launch([1; 3], [1; 3], 0, null_mut(), &[&word.to_ne_bytes()]);
    check(cuda!(context::cuCtxSynchronize()));
    assert_eq!(context.download::<u32>(word, 1), [13]);
}

#[test]
fn inputs_that_cannot_be_linked_are_refused() {
    let _context = Context::new();
    let state = create();
    let machine_code = add(state, cu::CU_JIT_INPUT_CUBIN, b"\x7fELF....");
    assert_eq!(machine_code, cu::CUDA_ERROR_NO_BINARY_FOR_GPU);
    let object = add(state, cu::CU_JIT_INPUT_OBJECT, b"\x7fELF....");
    assert_eq!(object, cu::CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert_eq!(complete(state).0, cu::CUDA_ERROR_INVALID_PTX);
    for _ in 0..2 {
        check(add(state, cu::CU_JIT_INPUT_PTX, FUNCTION.to_bytes()));
    }
    assert_eq!(complete(state).0, cu::CUDA_ERROR_INVALID_PTX);
    check(cuda!(link::cuLinkDestroy(state)));
    assert_eq!(complete(state).0, cu::CUDA_ERROR_INVALID_HANDLE);
}
