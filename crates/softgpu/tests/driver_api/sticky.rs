//! Kernels that fault kill their context, and only theirs.

use std::ptr::null_mut;

use fermata_abi::sys::driver as cu;
use fermata_softgpu::api::args::Out;
use fermata_softgpu::api::{context, event, memory, stream};

use crate::common::{Context, check, cuda};

fn fault(context: &Context) -> cu::CUresult {
    let kernel = context.load(crate::common::COUNT).function(c"count");
    let nowhere = 0x17ff_0000_0000u64;
    let params: [&[u8]; 4] = [
        &nowhere.to_ne_bytes(),
        &1u32.to_ne_bytes(),
        &1u32.to_ne_bytes(),
        &1u32.to_ne_bytes(),
    ];
    kernel.launch([1, 1, 1], [32, 1, 1], 0, null_mut(), &params);
    cuda!(context::cuCtxSynchronize())
}

#[test]
fn after_a_fault_every_call_on_the_context_fails_and_others_go_on() {
    common_fault_then(|| {
        let mut address = 0;
        let refused = cuda!(memory::cuMemAlloc_v2(Out::from(&mut address), 4));
        assert_eq!(refused, cu::CUDA_ERROR_ILLEGAL_ADDRESS);
        let synchronised = cuda!(stream::cuStreamSynchronize(null_mut()));
        assert_eq!(synchronised, cu::CUDA_ERROR_ILLEGAL_ADDRESS);
        let mut created = null_mut();
        let event = cuda!(event::cuEventCreate(Out::from(&mut created), 0));
        assert_eq!(event, cu::CUDA_ERROR_ILLEGAL_ADDRESS);
    });
}

fn common_fault_then(look: impl FnOnce()) {
    let dead = Context::new();
    assert_eq!(fault(&dead), cu::CUDA_ERROR_ILLEGAL_ADDRESS);
    look();
    let alive = Context::new();
    let words = alive.upload(&[1u32, 2]);
    assert_eq!(alive.download::<u32>(words, 2), [1, 2]);
    drop(alive);
    check(cuda!(context::cuCtxDestroy_v2(dead.0)));
    std::mem::forget(dead);
}

#[test]
fn a_reset_primary_context_is_as_new_unless_a_fault_has_ended_it() {
    crate::common::init();
    let retain = || {
        let mut handle = null_mut();
        let retained = cuda!(context::cuDevicePrimaryCtxRetain(Out::from(&mut handle), 1));
        (retained, handle)
    };
    let (retained, first) = retain();
    check(retained);
    check(cuda!(context::cuCtxSetCurrent(first)));
    let primary = std::mem::ManuallyDrop::new(Context(first));
    primary.upload(&[3u32]);
    check(cuda!(context::cuDevicePrimaryCtxReset_v2(1)));
    assert_eq!(
        cuda!(context::cuCtxSynchronize()),
        cu::CUDA_ERROR_CONTEXT_IS_DESTROYED
    );
    assert_eq!(retain(), (cu::CUDA_SUCCESS, first));
    let words = primary.upload(&[4u32]);
    assert_eq!(primary.download::<u32>(words, 1), [4]);
    assert_eq!(fault(&primary), cu::CUDA_ERROR_ILLEGAL_ADDRESS);
    check(cuda!(context::cuDevicePrimaryCtxReset_v2(1)));
    let (refused, _) = retain();
    assert_eq!(refused, cu::CUDA_ERROR_DEVICE_UNAVAILABLE);
    check(cuda!(context::cuDevicePrimaryCtxReset_v2(1)));
    check(cuda!(context::cuCtxSetCurrent(null_mut())));
    let released = cuda!(context::cuDevicePrimaryCtxRelease_v2(1));
    assert_eq!(released, cu::CUDA_ERROR_INVALID_CONTEXT);
}
