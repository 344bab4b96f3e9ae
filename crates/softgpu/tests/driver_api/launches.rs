//! Launches with attributes, and how many blocks fit.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use fermata_abi::sys::driver as cu;
use fermata_softgpu::api::args::{In, Out};
use fermata_softgpu::api::{
    capture, context, event, function, graph, graph_exec, graph_nodes, launch, memory, occupancy,
    stream,
};

use crate::common::{COUNT, Context, Kernel, check, cuda};

/// Each block counts itself in the launch's barrier, waits for all others, and counts again.
const MEET: &std::ffi::CStr = c"
.version 8.0
.target sm_75
.address_size 64
.visible .entry meet(.param .u64 p)
{
    .reg .pred %p;
    .reg .b32 %r<8>;
    .reg .b64 %a<4>;
    ld.param.u64 %a0, [p];
    mov.u32 %r0, %envreg1;
    mov.u32 %r1, %envreg2;
    mov.b64 %a1, {%r1, %r0};
    mov.u32 %r3, %nctaid.x;
    atom.global.add.u32 %r4, [%a1+4], 1;
again:
    ld.acquire.gpu.global.u32 %r4, [%a1+4];
    setp.lt.u32 %p, %r4, %r3;
    @%p bra again;
    red.global.add.u32 [%a0], 1;
    ret;
}
";

/// Three times, each thread counts and then sees, behind the runtime's barrier of the grid, that all have counted.
const TOGETHER: &std::ffi::CStr = c"
.version 8.0
.target sm_75
.address_size 64
.extern .func (.param .b64 r) cudaCGGetIntrinsicHandle(.param .b32 scope);
.extern .func (.param .b32 r) cudaCGSynchronize(.param .b64 handle, .param .b32 flags);
.visible .entry together(.param .u64 p)
{
    .reg .pred %p;
    .reg .b32 %r<8>;
    .reg .b64 %a<4>;
    ld.param.u64 %a0, [p];
    {
    .param .b32 scope; .param .b64 handle;
    st.param.b32 [scope], 1;
    call (handle), cudaCGGetIntrinsicHandle, (scope);
    ld.param.b64 %a1, [handle];
    }
    mov.u32 %r0, %nctaid.x;
    mov.u32 %r1, %ntid.x;
    mul.lo.u32 %r2, %r0, %r1;
    mov.u32 %r3, 0;
again:
    add.u32 %r3, %r3, %r2;
    red.global.add.u32 [%a0], 1;
    {
    .param .b64 q0; .param .b32 q1; .param .b32 code;
    st.param.b64 [q0], %a1;
    st.param.b32 [q1], 0;
    call (code), cudaCGSynchronize, (q0, q1);
    }
    ld.relaxed.gpu.global.u32 %r4, [%a0];
    setp.ne.u32 %p, %r4, %r3;
    @%p trap;
    {
    .param .b64 s0; .param .b32 s1; .param .b32 end;
    st.param.b64 [s0], %a1;
    st.param.b32 [s1], 0;
    call (end), cudaCGSynchronize, (s0, s1);
    }
    mul.lo.u32 %r5, %r2, 3;
    setp.lt.u32 %p, %r3, %r5;
    @%p bra again;
    ret;
}
";

fn cooperative(kernel: &Kernel, blocks: c_uint, threads: c_uint, word: u64) -> cu::CUresult {
    let params = [(&raw const word).cast_mut().cast()];
    cuda!(launch::cuLaunchCooperativeKernel(
        kernel.0,
        blocks,
        1,
        1,
        threads,
        1,
        1,
        0,
        null_mut(),
        In::from(&params[..]),
    ))
}

#[test]
fn the_barrier_of_the_devices_runtime_holds_all_threads_of_a_grid() {
    let context = Context::new();
    let kernel = context.load(TOGETHER).function(c"together");
    let word = context.upload(&[0u32]);
    check(cooperative(&kernel, 12, 40, word));
    check(cuda!(context::cuCtxSynchronize()));
    assert_eq!(context.download::<u32>(word, 1), [3 * 12 * 40]);
}

#[test]
fn blocks_of_a_cooperative_launch_meet_and_too_many_are_refused() {
    let context = Context::new();
    let kernel = context.load(MEET).function(c"meet");
    let word = context.upload(&[0u32]);
    for _ in 0..2 {
        check(cooperative(&kernel, 24, 1, word));
    }
    check(cuda!(context::cuCtxSynchronize()));
    assert_eq!(context.download::<u32>(word, 1), [48]);
    let mut each = 0;
    check(cuda!(
        occupancy::cuOccupancyMaxActiveBlocksPerMultiprocessor(
            Out::from(&mut each),
            kernel.0,
            1024,
            0
        )
    ));
    let most = (each * 16) as c_uint;
    check(cooperative(&kernel, most, 1024, word));
    check(cuda!(context::cuCtxSynchronize()));
    assert_eq!(
        cooperative(&kernel, most + 1, 1024, word),
        cu::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
    );
}

/// A launch's parameters as one block.
fn with_block<T>(word: &u64, call: impl FnOnce(In<*mut c_void>) -> T) -> T {
    let mut size = size_of::<u64>();
    let extra = [
        cu::CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT as usize as *mut c_void,
        (&raw const *word).cast_mut().cast(),
        cu::CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT as usize as *mut c_void,
        (&raw mut size).cast(),
        cu::CU_LAUNCH_PARAM_END_AS_INT as usize as *mut c_void,
    ];
    call(In::from(&extra[..]))
}

/// The driver takes the parameters of a cooperative launch as one block, but makes no node of a graph of it: neither by an
/// attribute nor by a capture (driver 580.159.04).
#[test]
fn a_cooperative_node_has_its_parameters_one_by_one() {
    let context = Context::new();
    let kernel = context.load(TOGETHER).function(c"together");
    let word = context.upload(&[0u32]);
    let mut value = cu::CUlaunchAttributeValue::default();
    value.cooperative = 1;
    let mut made = null_mut();
    check(cuda!(graph::cuGraphCreate(Out::from(&mut made), 0)));
    let mut params = [(&raw const word).cast_mut().cast()];
    let node = |list: *mut *mut c_void, block: *mut *mut c_void| {
        let mut node = null_mut();
        let given = cu::CUDA_KERNEL_NODE_PARAMS_v2 {
            func: kernel.0,
            gridDimX: 12,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 40,
            blockDimY: 1,
            blockDimZ: 1,
            kernelParams: list,
            extra: block,
            ..Default::default()
        };
        check(cuda!(graph_nodes::cuGraphAddKernelNode_v2(
            Out::from(&mut node),
            made,
            In::null(),
            0,
            In::from(&given),
        )));
        (
            node,
            cuda!(graph_nodes::cuGraphKernelNodeSetAttribute(
                node,
                cu::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
                In::from(&value),
            )),
        )
    };
    let (refused, code) = with_block(&word, |extra| node(null_mut(), extra.as_ptr().cast_mut()));
    assert_eq!(code, cu::CUDA_ERROR_INVALID_VALUE);
    check(cuda!(graph::cuGraphDestroyNode(refused)));
    check(node(params.as_mut_ptr(), null_mut()).1);
    let mut exec = null_mut();
    check(cuda!(graph_exec::cuGraphInstantiateWithFlags(
        Out::from(&mut exec),
        made,
        0
    )));
    check(cuda!(graph_exec::cuGraphLaunch(exec, null_mut())));
    check(cuda!(context::cuCtxSynchronize()));
    assert_eq!(context.download::<u32>(word, 1), [3 * 12 * 40]);

    let word = context.upload(&[0u32]);
    let mut captured = null_mut();
    check(cuda!(stream::cuStreamCreate(Out::from(&mut captured), 1)));
    let attributes = [cu::CUlaunchAttribute {
        id: cu::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
        pad: [0; 4],
        value,
    }];
    let config = cu::CUlaunchConfig {
        gridDimX: 12,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 40,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: captured,
        attrs: attributes.as_ptr().cast_mut(),
        numAttrs: 1,
    };
    let launch = || {
        with_block(&word, |extra| {
            cuda!(launch::cuLaunchKernelEx(
                In::from(&config),
                kernel.0,
                In::null(),
                extra
            ))
        })
    };
    check(launch());
    check(cuda!(context::cuCtxSynchronize()));
    assert_eq!(context.download::<u32>(word, 1), [3 * 12 * 40]);
    let mode = cu::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    check(cuda!(capture::cuStreamBeginCapture_v2(captured, mode)));
    assert_eq!(launch(), cu::CUDA_ERROR_INVALID_VALUE);
    let ended = cuda!(capture::cuStreamEndCapture(captured, Out::from(&mut made)));
    assert_eq!(ended, cu::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

/// A launch marks the events that its attributes name, and not before it has written.
#[test]
fn an_event_in_a_launch_s_attributes_is_marked_by_the_launch() {
    const LOOPS: u32 = 20_000_000;
    let context = Context::new();
    let kernel = context.load(COUNT).function(c"count");
    let mut word = null_mut();
    check(cuda!(memory::cuMemHostAlloc(Out::from(&mut word), 4, 0)));
    for (attribute, name) in [
        cu::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT,
        cu::CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT,
    ]
    .iter()
    .zip(1u32..)
    {
        let mut marked = null_mut();
        check(cuda!(event::cuEventCreate(
            Out::from(&mut marked),
            cu::CU_EVENT_DISABLE_TIMING
        )));
        let mut attributes = [cu::CUlaunchAttribute {
            id: *attribute,
            ..Default::default()
        }];
        attributes[0].value.launchCompletionEvent.event = marked;
        let config = cu::CUlaunchConfig {
            gridDimX: 1,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 1,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: null_mut(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: 1,
        };
        let (address, one, loops) = (word.addr() as u64, 1u32, LOOPS);
        let params = [
            (&raw const address).cast_mut().cast(),
            (&raw const one).cast_mut().cast(),
            (&raw const loops).cast_mut().cast(),
            (&raw const one).cast_mut().cast(),
        ];
        check(cuda!(launch::cuLaunchKernelEx(
            In::from(&config),
            kernel.0,
            In::from(&params[..]),
            In::null()
        )));
        check(cuda!(event::cuEventSynchronize(marked)));
        // SAFETY: pinned memory of this test; the kernel has ended, as the event says.
        let found = unsafe { word.cast::<u32>().read_volatile() };
        assert_eq!(found, LOOPS.wrapping_mul(name));
        check(cuda!(event::cuEventDestroy_v2(marked)));
    }
    check(cuda!(memory::cuMemFreeHost(crate::common::out(word))));
}

/// What the driver answers for a launch in clusters of `size` blocks; of none if `size` is 0.
fn clusters(kernel: &Kernel, size: c_uint, shared: c_uint) -> (cu::CUresult, c_int, c_int) {
    let mut attribute = cu::CUlaunchAttribute {
        id: cu::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        ..Default::default()
    };
    attribute.value.clusterDim = cu::CUlaunchAttributeValue_union__bindgen_ty_1 {
        x: size,
        y: 1,
        z: 1,
    };
    let config = cu::CUlaunchConfig {
        gridDimX: 48,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1024,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: shared,
        hStream: null_mut(),
        attrs: &raw mut attribute,
        numAttrs: u32::from(size > 0),
    };
    let (mut active, mut potential) = (-1, -1);
    let code = cuda!(occupancy::cuOccupancyMaxActiveClusters(
        Out::from(&mut active),
        kernel.0,
        In::from(&config)
    ));
    check(cuda!(occupancy::cuOccupancyMaxPotentialClusterSize(
        Out::from(&mut potential),
        kernel.0,
        In::from(&config)
    )));
    (code, active, potential)
}

/// The cases of which an H200 was asked; it has more multiprocessors.
#[test]
fn clusters_fit_as_the_driver_answers() {
    let context = Context::new();
    let kernel = context.load(MEET).function(c"meet");
    assert_eq!(clusters(&kernel, 4, 0), (cu::CUDA_SUCCESS, 8, 8));
    assert_eq!(clusters(&kernel, 0, 0), (cu::CUDA_SUCCESS, 0, 8));
    assert_eq!(clusters(&kernel, 3, 0), (cu::CUDA_SUCCESS, 10, 8));
    let wrong = cu::CUDA_ERROR_INVALID_CLUSTER_SIZE;
    assert_eq!(clusters(&kernel, 5, 0), (wrong, -1, 8));
    assert_eq!(clusters(&kernel, 16, 0), (wrong, -1, 8));
    assert_eq!(clusters(&kernel, 4, 100 << 10), (cu::CUDA_SUCCESS, 0, 0));
    let set = |attribute, value| {
        check(cuda!(function::cuFuncSetAttribute(
            kernel.0, attribute, value
        )));
    };
    set(
        cu::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
        200 << 10,
    );
    assert_eq!(clusters(&kernel, 4, 200 << 10), (cu::CUDA_SUCCESS, 4, 8));
    set(cu::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
    assert_eq!(clusters(&kernel, 16, 0), (cu::CUDA_SUCCESS, 2, 16));
    assert_eq!(clusters(&kernel, 24, 0), (cu::CUDA_SUCCESS, 0, 16));
}
