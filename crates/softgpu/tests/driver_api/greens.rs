//! Green contexts: splits of multiprocessors, streams that use a part, and events of whole contexts.

use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use fermata_abi::sys::driver as cu;
use fermata_softgpu::api::args::{In, Out};
use fermata_softgpu::api::{
    capture, context, copy, event, graph, graph_exec, green, memory, module, stream,
};

use crate::common::{Kernel, check, cuda};
use crate::streams::Gate;

/// Writes 1 at the index of each multiprocessor that it runs on.
const PLACES: &std::ffi::CStr = c"
.version 7.0
.target sm_75
.address_size 64
.visible .entry places(.param .u64 p)
{
    .reg .b32 %r<3>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [p];
    cvta.to.global.u64 %d1, %d1;
    mov.u32 %r1, %smid;
    mul.wide.u32 %d2, %r1, 4;
    add.s64 %d3, %d1, %d2;
    mov.u32 %r2, 1;
    st.global.u32 [%d3], %r2;
    ret;
}
";

/// The primary context of device 0, current while this lives. It is never released: its end would free the memory pools of
/// other tests.
struct Primary(cu::CUcontext);

impl Primary {
    fn new() -> Self {
        crate::common::init();
        let mut handle = null_mut();
        check(cuda!(context::cuDevicePrimaryCtxRetain(
            Out::from(&mut handle),
            0
        )));
        check(cuda!(context::cuCtxPushCurrent_v2(handle)));
        Self(handle)
    }
}

impl Drop for Primary {
    fn drop(&mut self) {
        cuda!(context::cuCtxPopCurrent_v2(Out::null()));
    }
}

struct Green(cu::CUgreenCtx);

impl Green {
    fn new(resource: cu::CUdevResource) -> Self {
        Self(try_create(&mut [resource]).expect("a green context"))
    }

    fn context(&self) -> cu::CUcontext {
        let mut handle = null_mut();
        check(cuda!(green::cuCtxFromGreenCtx(
            Out::from(&mut handle),
            self.0
        )));
        handle
    }

    fn stream(&self) -> cu::CUstream {
        let mut handle = null_mut();
        check(cuda!(green::cuGreenCtxStreamCreate(
            Out::from(&mut handle),
            self.0,
            cu::CU_STREAM_NON_BLOCKING,
            0
        )));
        handle
    }

    fn destroy(self) {
        check(cuda!(green::cuGreenCtxDestroy(self.0)));
    }
}

fn try_create(resources: &mut [cu::CUdevResource]) -> Result<cu::CUgreenCtx, cu::CUresult> {
    let (mut descriptor, mut handle) = (null_mut(), null_mut());
    let count = resources.len() as u32;
    let code = cuda!(green::cuDevResourceGenerateDesc(
        Out::from(&mut descriptor),
        Out::from(resources),
        count
    ));
    if code != cu::CUDA_SUCCESS {
        return Err(code);
    }
    match cuda!(green::cuGreenCtxCreate(
        Out::from(&mut handle),
        descriptor,
        0,
        cu::CU_GREEN_CTX_DEFAULT_STREAM
    )) {
        cu::CUDA_SUCCESS => Ok(handle),
        code => Err(code),
    }
}

fn count(resource: &cu::CUdevResource) -> u32 {
    match resource.type_ {
        // SAFETY: the type says that this part of the union was written.
        cu::CU_DEV_RESOURCE_TYPE_SM => unsafe { resource.__bindgen_anon_1.sm }.smCount,
        _ => 0,
    }
}

fn whole() -> cu::CUdevResource {
    let mut resource = cu::CUdevResource::default();
    check(cuda!(green::cuDeviceGetDevResource(
        0,
        Out::from(&mut resource),
        cu::CU_DEV_RESOURCE_TYPE_SM
    )));
    resource
}

/// A group of 8 multiprocessors and the rest.
fn halves(of: &cu::CUdevResource) -> (cu::CUdevResource, cu::CUdevResource) {
    let (mut group, mut rest) = (cu::CUdevResource::default(), cu::CUdevResource::default());
    let mut groups = 1;
    check(cuda!(green::cuDevSmResourceSplitByCount(
        Out::from(&mut group),
        Out::from(&mut groups),
        In::from(of),
        Out::from(&mut rest),
        0,
        8
    )));
    assert_eq!(groups, 1);
    (group, rest)
}

fn event(flags: u32) -> cu::CUevent {
    let mut handle = null_mut();
    check(cuda!(event::cuEventCreate(Out::from(&mut handle), flags)));
    handle
}

fn words(bytes: usize) -> u64 {
    let mut address = 0;
    check(cuda!(memory::cuMemAlloc_v2(Out::from(&mut address), bytes)));
    address
}

#[test]
fn splits_and_contexts_are_told_by_their_descriptions() {
    let primary = Primary::new();
    let (all, mut groups) = (whole(), 0);
    assert_eq!(count(&all), 16);
    let split = |of: &cu::CUdevResource, groups: &mut u32, minimum| {
        cuda!(green::cuDevSmResourceSplitByCount(
            Out::null(),
            Out::from(groups),
            In::from(of),
            Out::null(),
            0,
            minimum
        ))
    };
    check(split(&all, &mut groups, 3));
    assert_eq!(groups, 2);
    let wrong = split(&all, &mut groups, 17);
    assert_eq!(wrong, cu::CUDA_ERROR_INVALID_VALUE);
    let (group, rest) = halves(&all);
    assert_eq!((count(&group), count(&rest)), (8, 8));
    let unsplittable = split(&group, &mut groups, 8);
    assert_eq!(unsplittable, cu::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    // What one call has made goes together, whatever is made of it next.
    let (other, nothing) = halves(&{
        let green = Green::new(rest);
        let mut own = cu::CUdevResource::default();
        check(cuda!(green::cuGreenCtxGetDevResource(
            green.0,
            Out::from(&mut own),
            cu::CU_DEV_RESOURCE_TYPE_SM
        )));
        green.destroy();
        own
    });
    assert_eq!((count(&other), count(&nothing)), (8, 0));
    let mixed = try_create(&mut [group, other]);
    assert_eq!(mixed, Err(cu::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION));
    let none = try_create(&mut [nothing]);
    assert_eq!(none, Err(cu::CUDA_ERROR_INVALID_RESOURCE_TYPE));
    let both = Green(try_create(&mut [rest, group]).expect("parts of one split"));
    let mut own = cu::CUdevResource::default();
    for context in [both.context(), primary.0] {
        check(cuda!(green::cuCtxGetDevResource(
            context,
            Out::from(&mut own),
            cu::CU_DEV_RESOURCE_TYPE_SM
        )));
        assert_eq!(count(&own), 16);
    }
    let invalid = cuda!(green::cuCtxGetDevResource(
        primary.0,
        Out::from(&mut own),
        cu::CU_DEV_RESOURCE_TYPE_INVALID
    ));
    assert_eq!(invalid, cu::CUDA_ERROR_INVALID_RESOURCE_TYPE);
    both.destroy();
}

#[test]
fn a_green_context_can_be_current_and_is_the_primary_one_but_for_its_streams() {
    let primary = Primary::new();
    let green = Green::new(halves(&whole()).0);
    let context = green.context();
    let own = green.stream();
    let mut id = 0;
    check(cuda!(green::cuGreenCtxGetId(green.0, Out::from(&mut id))));
    check(cuda!(context::cuCtxPushCurrent_v2(context)));
    let (mut current, mut current_id) = (null_mut(), 0);
    check(cuda!(context::cuCtxGetCurrent(Out::from(&mut current))));
    assert_eq!(current, context);
    assert_ne!(context.addr(), green.0.addr());
    check(cuda!(green::cuGreenCtxGetId(
        null_mut(),
        Out::from(&mut current_id)
    )));
    assert_eq!(current_id, id);
    let destroyed = cuda!(context::cuCtxDestroy_v2(context));
    assert_eq!(destroyed, cu::CUDA_ERROR_INVALID_CONTEXT);
    let unconverted = cuda!(context::cuCtxSetCurrent(green.0.cast()));
    assert_eq!(unconverted, cu::CUDA_ERROR_INVALID_CONTEXT);
    for handle in [null_mut(), own] {
        let (mut of, mut of_stream, mut found) = (null_mut(), null_mut(), null_mut());
        check(cuda!(stream::cuStreamGetCtx(handle, Out::from(&mut of))));
        assert_eq!(of, context);
        check(cuda!(stream::cuStreamGetCtx_v2(
            handle,
            Out::from(&mut of),
            Out::from(&mut of_stream)
        )));
        assert_eq!((of, of_stream), (primary.0, green.0));
        check(cuda!(green::cuStreamGetGreenCtx(
            handle,
            Out::from(&mut found)
        )));
        assert_eq!(found, green.0);
    }
    let of_thread: cu::CUstream = std::ptr::without_provenance_mut(2);
    let none = cuda!(stream::cuStreamSynchronize(of_thread));
    assert_eq!(none, cu::CUDA_ERROR_INVALID_HANDLE);
    let mut blocking = null_mut();
    let refused = cuda!(stream::cuStreamCreate(Out::from(&mut blocking), 0));
    assert_eq!(refused, cu::CUDA_ERROR_NOT_SUPPORTED);
    let memory = words(64);
    check(cuda!(context::cuCtxPopCurrent_v2(Out::null())));
    // Memory stays when the green context is gone.
    check(cuda!(stream::cuStreamDestroy_v2(own)));
    green.destroy();
    check(cuda!(memory::cuMemFree_v2(memory)));
    let gone = cuda!(context::cuCtxSetCurrent(context));
    assert_eq!(gone, cu::CUDA_ERROR_INVALID_CONTEXT);
}

#[test]
fn kernels_run_on_the_multiprocessors_of_their_stream_or_graph() {
    let _primary = Primary::new();
    let (group, rest) = halves(&whole());
    let (first, second) = (Green::new(group), Green::new(rest));
    let mut loaded = null_mut();
    let image: In<std::ffi::c_void> = In::from(PLACES.to_bytes_with_nul()).cast();
    check(cuda!(module::cuModuleLoadData(
        Out::from(&mut loaded),
        image
    )));
    let mut kernel = null_mut();
    check(cuda!(module::cuModuleGetFunction(
        Out::from(&mut kernel),
        loaded,
        c"places".into()
    )));
    let kernel = Kernel(kernel);
    let memory = words(64);
    let places = |run: &dyn Fn()| {
        check(cuda!(fermata_softgpu::api::memset::cuMemsetD32_v2(
            memory, 0, 16
        )));
        // The streams here do not wait for the default stream.
        check(cuda!(context::cuCtxSynchronize()));
        run();
        check(cuda!(context::cuCtxSynchronize()));
        let mut found = [0u32; 16];
        let to: Out<std::ffi::c_void> = Out::from(&mut found[..]).cast();
        check(cuda!(copy::cuMemcpyDtoH_v2(to, memory, 64)));
        found
            .iter()
            .enumerate()
            .fold(0, |mask, (at, it)| mask | it << at)
    };
    let launch = |stream| {
        let params: &[&[u8]] = &[&memory.to_le_bytes()];
        kernel.launch([64, 1, 1], [32, 1, 1], 0, stream, params);
    };
    let (one, other) = (first.stream(), second.stream());
    assert_eq!(places(&|| launch(null_mut())), 0xffff);
    assert_eq!(places(&|| launch(one)), 0x00ff);
    assert_eq!(places(&|| launch(other)), 0xff00);
    let in_default = || {
        check(cuda!(context::cuCtxPushCurrent_v2(second.context())));
        launch(null_mut());
        check(cuda!(context::cuCtxPopCurrent_v2(Out::null())));
    };
    assert_eq!(places(&in_default), 0xff00);

    // A captured kernel stays where its stream was.
    check(cuda!(capture::cuStreamBeginCapture_v2(
        one,
        cu::CU_STREAM_CAPTURE_MODE_RELAXED
    )));
    launch(one);
    let (mut captured, mut exec) = (null_mut(), null_mut());
    check(cuda!(capture::cuStreamEndCapture(
        one,
        Out::from(&mut captured)
    )));
    check(cuda!(graph_exec::cuGraphInstantiateWithFlags(
        Out::from(&mut exec),
        captured,
        0
    )));
    let replay = |stream| check(cuda!(graph_exec::cuGraphLaunch(exec, stream)));
    assert_eq!(places(&|| replay(other)), 0x00ff);
    assert_eq!(places(&|| replay(null_mut())), 0x00ff);
    check(cuda!(graph_exec::cuGraphExecDestroy(exec)));
    check(cuda!(graph::cuGraphDestroy(captured)));
    for stream in [one, other] {
        check(cuda!(stream::cuStreamDestroy_v2(stream)));
    }
    check(cuda!(memory::cuMemFree_v2(memory)));
    first.destroy();
    second.destroy();
}

#[test]
fn events_of_a_green_context_are_behind_all_its_streams_and_hold_up_all_of_them() {
    let _primary = Primary::new();
    let (group, rest) = halves(&whole());
    let (first, second) = (Green::new(group), Green::new(rest));
    let (busy, free) = (first.stream(), second.stream());
    let (gate, behind) = (Gate::default(), event(cu::CU_EVENT_DISABLE_TIMING));
    gate.close(busy);
    check(cuda!(green::cuGreenCtxRecordEvent(first.0, behind)));
    check(cuda!(green::cuGreenCtxWaitEvent(second.0, behind)));
    let later = second.stream();
    for waiting in [free, later] {
        let query = cuda!(stream::cuStreamQuery(waiting));
        assert_eq!(query, cu::CUDA_ERROR_NOT_READY);
    }
    // An event behind the other part is behind the wait, one behind the primary context is, too.
    let of_all = event(cu::CU_EVENT_DISABLE_TIMING);
    check(cuda!(green::cuCtxRecordEvent(null_mut(), of_all)));
    assert_eq!(cuda!(event::cuEventQuery(of_all)), cu::CUDA_ERROR_NOT_READY);
    gate.open.store(true, Ordering::SeqCst);
    check(cuda!(context::cuCtxSynchronize_v2(second.context())));
    for done in [free, later, busy] {
        check(cuda!(stream::cuStreamQuery(done)));
    }
    check(cuda!(event::cuEventSynchronize(of_all)));
    let elsewhere = crate::common::Context::new();
    let foreign = event(cu::CU_EVENT_DISABLE_TIMING);
    let refused = cuda!(green::cuGreenCtxRecordEvent(first.0, foreign));
    assert_eq!(refused, cu::CUDA_ERROR_INVALID_HANDLE);
    drop(elsewhere);
    // A stream that is left is of no more use.
    first.destroy();
    for code in [
        cuda!(stream::cuStreamSynchronize(busy)),
        cuda!(stream::cuStreamDestroy_v2(busy)),
    ] {
        assert_eq!(code, cu::CUDA_ERROR_CONTEXT_IS_DESTROYED);
    }
    second.destroy();
    for event in [behind, of_all] {
        check(cuda!(event::cuEventDestroy_v2(event)));
    }
}
