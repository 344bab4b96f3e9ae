//! Green contexts as the library sends them to the worker, which the test plays.

#![allow(clippy::unwrap_used)]

#[macro_use]
#[allow(dead_code)]
mod support;

use core::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::ptr::{null, null_mut};

use fermata_abi::sys::driver::*;
use fermata_client as _;
use support::Stage;
use support::driver::{
    cuCtxSetCurrent, cuCtxSynchronize, cuEventCreate, cuInit, cuLaunchKernel, cuMemAlloc_v2,
    cuModuleGetFunction, cuModuleLoadData, cuStreamCreate, cuStreamSynchronize, get_another_worker,
};

unsafe extern "C" {
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) -> CUresult;
    fn cuDevicePrimaryCtxReset_v2(device: CUdevice) -> CUresult;
    fn cuDeviceGetDevResource(
        device: CUdevice,
        resource: *mut CUdevResource,
        kind: CUdevResourceType,
    ) -> CUresult;
    fn cuCtxGetDevResource(
        context: CUcontext,
        resource: *mut CUdevResource,
        kind: CUdevResourceType,
    ) -> CUresult;
    fn cuGreenCtxGetDevResource(
        green: CUgreenCtx,
        resource: *mut CUdevResource,
        kind: CUdevResourceType,
    ) -> CUresult;
    fn cuDevSmResourceSplitByCount(
        result: *mut CUdevResource,
        groups: *mut c_uint,
        input: *const CUdevResource,
        remaining: *mut CUdevResource,
        flags: c_uint,
        minimum: c_uint,
    ) -> CUresult;
    fn cuDevResourceGenerateDesc(
        descriptor: *mut CUdevResourceDesc,
        resources: *mut CUdevResource,
        count: c_uint,
    ) -> CUresult;
    fn cuGreenCtxCreate(
        green: *mut CUgreenCtx,
        descriptor: CUdevResourceDesc,
        device: CUdevice,
        flags: c_uint,
    ) -> CUresult;
    fn cuGreenCtxDestroy(green: CUgreenCtx) -> CUresult;
    fn cuCtxFromGreenCtx(context: *mut CUcontext, green: CUgreenCtx) -> CUresult;
    fn cuGreenCtxStreamCreate(
        stream: *mut CUstream,
        green: CUgreenCtx,
        flags: c_uint,
        priority: c_int,
    ) -> CUresult;
    fn cuGreenCtxRecordEvent(green: CUgreenCtx, event: CUevent) -> CUresult;
    fn cuGreenCtxWaitEvent(green: CUgreenCtx, event: CUevent) -> CUresult;
    fn cuGreenCtxGetId(green: CUgreenCtx, id: *mut c_ulonglong) -> CUresult;
    fn cuCtxGetId(context: CUcontext, id: *mut c_ulonglong) -> CUresult;
    fn cuCtxDestroy_v2(context: CUcontext) -> CUresult;
    fn cuCtxGetCurrent(context: *mut CUcontext) -> CUresult;
    fn cuCtxRecordEvent(context: CUcontext, event: CUevent) -> CUresult;
    fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext) -> CUresult;
    fn cuStreamGetCtx_v2(
        stream: CUstream,
        context: *mut CUcontext,
        green: *mut CUgreenCtx,
    ) -> CUresult;
    fn cuStreamGetGreenCtx(stream: CUstream, green: *mut CUgreenCtx) -> CUresult;
    fn cuStreamGetFlags(stream: CUstream, flags: *mut c_uint) -> CUresult;
    fn cuStreamDestroy_v2(stream: CUstream) -> CUresult;
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode) -> CUresult;
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> CUresult;
    fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) -> CUresult;
    fn cuGraphKernelNodeGetParams_v2(
        node: CUgraphNode,
        params: *mut CUDA_KERNEL_NODE_PARAMS,
    ) -> CUresult;
}

const SM: CUdevResourceType = CU_DEV_RESOURCE_TYPE_SM;

fn code(status: CUresult) -> CUresult {
    status
}

/// A call that must fail.
macro_rules! refused {
    ($call:expr, $code:ident) => {{
        // SAFETY: every pointer in these programs is to a live variable, or null.
        let status = unsafe { $call };
        assert_eq!(code(status), $code, stringify!($call));
    }};
}

fn count(resource: &CUdevResource) -> u32 {
    match resource.type_ {
        // SAFETY: the type says that this part of the union was written.
        SM => unsafe { resource.__bindgen_anon_1.sm }.smCount,
        _ => 0,
    }
}

/// Groups of 16 multiprocessors and the rest.
fn split(of: &CUdevResource, groups: &mut [CUdevResource]) -> CUdevResource {
    let (mut made, mut rest) = (groups.len() as c_uint, CUdevResource::default());
    ok!(cuDevSmResourceSplitByCount(
        groups.as_mut_ptr(),
        &mut made,
        of,
        &mut rest,
        0,
        16
    ));
    assert_eq!(made as usize, groups.len());
    rest
}

fn green(parts: &mut [CUdevResource]) -> CUgreenCtx {
    let (mut descriptor, mut green) = (null_mut(), null_mut());
    ok!(cuDevResourceGenerateDesc(
        &mut descriptor,
        parts.as_mut_ptr(),
        parts.len() as c_uint
    ));
    ok!(cuGreenCtxCreate(
        &mut green,
        descriptor,
        0,
        CU_GREEN_CTX_DEFAULT_STREAM
    ));
    green
}

fn context(green: CUgreenCtx) -> CUcontext {
    let mut context = null_mut();
    ok!(cuCtxFromGreenCtx(&mut context, green));
    context
}

fn stream(green: CUgreenCtx) -> CUstream {
    let mut stream = null_mut();
    ok!(cuGreenCtxStreamCreate(
        &mut stream,
        green,
        CU_STREAM_NON_BLOCKING,
        0
    ));
    stream
}

fn primary() -> CUcontext {
    let mut context = null_mut();
    ok!(cuInit(0));
    ok!(cuDevicePrimaryCtxRetain(&mut context, 0));
    ok!(cuCtxSetCurrent(context));
    context
}

fn kernel() -> CUfunction {
    let (mut module, mut function) = (null_mut(), null_mut());
    ok!(cuModuleLoadData(
        &mut module,
        c".version 8.0".as_ptr().cast()
    ));
    ok!(cuModuleGetFunction(
        &mut function,
        module,
        c"first".as_ptr()
    ));
    function
}

fn launch(function: CUfunction, stream: CUstream) {
    let (mut a, mut b, mut c) = (1u64, 2u32, 3u64);
    let mut params = [
        (&raw mut a).cast(),
        (&raw mut b).cast(),
        (&raw mut c).cast::<c_void>(),
    ];
    let list = params.as_mut_ptr();
    ok!(cuLaunchKernel(
        function,
        1,
        1,
        1,
        1,
        1,
        1,
        0,
        stream,
        list,
        null_mut()
    ));
}

#[test]
#[ignore = "a program for its stage"]
fn describes() {
    let primary = primary();
    let mut all = CUdevResource::default();
    ok!(cuDeviceGetDevResource(0, &mut all, SM));
    assert_eq!(count(&all), 132);
    refused!(
        cuDeviceGetDevResource(0, &mut all, 0),
        CUDA_ERROR_INVALID_RESOURCE_TYPE
    );
    refused!(
        cuDeviceGetDevResource(7, &mut all, SM),
        CUDA_ERROR_INVALID_DEVICE
    );
    refused!(
        cuDeviceGetDevResource(0, null_mut(), SM),
        CUDA_ERROR_INVALID_VALUE
    );
    let mut most = 0;
    ok!(cuDevSmResourceSplitByCount(
        null_mut(),
        &mut most,
        &all,
        null_mut(),
        0,
        16
    ));
    assert_eq!(most, 8);
    let mut groups = [CUdevResource::default(); 3];
    let rest = split(&all, &mut groups);
    assert_eq!((count(&groups[2]), count(&rest)), (16, 84));
    let mut made = 1;
    refused!(
        cuDevSmResourceSplitByCount(null_mut(), &mut made, &rest, null_mut(), 0, 16),
        CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION
    );
    let nothing = CUdevResource::default();
    refused!(
        cuDevSmResourceSplitByCount(null_mut(), &mut made, &nothing, null_mut(), 0, 16),
        CUDA_ERROR_INVALID_RESOURCE_TYPE
    );
    refused!(
        cuDevSmResourceSplitByCount(null_mut(), null_mut(), &all, null_mut(), 0, 16),
        CUDA_ERROR_INVALID_VALUE
    );
    refused!(
        cuDevSmResourceSplitByCount(null_mut(), &mut made, null(), null_mut(), 0, 16),
        CUDA_ERROR_INVALID_VALUE
    );
    // Whatever the program copies them to.
    let copies = Box::new([rest, groups[0]]);
    let outer = green(&mut copies.clone()[..]);
    let mut own = CUdevResource::default();
    ok!(cuGreenCtxGetDevResource(outer, &mut own, SM));
    let inner = split(&own, &mut groups[..1]);
    assert_eq!((count(&groups[0]), inner.type_), (16, SM));
    let mut descriptor = null_mut();
    let mut mixed = [groups[0], groups[1]];
    refused!(
        cuDevResourceGenerateDesc(&mut descriptor, mixed.as_mut_ptr(), 2),
        CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION
    );
    refused!(
        cuDevResourceGenerateDesc(&mut descriptor, mixed.as_mut_ptr(), 0),
        CUDA_ERROR_INVALID_VALUE
    );
    let mut made = null_mut();
    ok!(cuDevResourceGenerateDesc(
        &mut descriptor,
        mixed.as_mut_ptr(),
        1
    ));
    for (descriptor, device, flags) in [(descriptor, 0, 0), (descriptor, 1, 1), (null_mut(), 0, 1)]
    {
        refused!(
            cuGreenCtxCreate(&mut made, descriptor, device, flags),
            CUDA_ERROR_INVALID_VALUE
        );
    }
    let nested = green(&mut mixed[..1]);
    for context in [primary, null_mut()] {
        ok!(cuCtxGetDevResource(context, &mut own, SM));
        assert_eq!(count(&own), 132);
    }
    ok!(cuCtxGetDevResource(context(nested), &mut own, SM));
    assert_eq!(count(&own), 16);
}

#[test]
fn a_part_goes_by_the_splits_that_lead_to_it() {
    let stage = Stage::start("describes");
    let device = stage.device.clone();
    assert!(stage.finish());
    let ordered = &device.lock().unwrap().ordered;
    let greens: Vec<_> = ordered
        .iter()
        .filter(|it| it.starts_with("green"))
        .collect();
    let outer =
        "SmCut { split: SmSplit { groups: 3, flags: 0, minimum: 16 }, parts: [0, 4294967295] }";
    let inner = "SmCut { split: SmSplit { groups: 1, flags: 0, minimum: 16 }, parts: [0] }";
    assert_eq!(greens.len(), 2, "{ordered:?}");
    assert!(greens[0].ends_with(&format!("of [{outer}]")), "{ordered:?}");
    assert!(
        greens[1].ends_with(&format!("of [{outer}, {inner}]")),
        "{ordered:?}"
    );
}

#[test]
#[ignore = "a program for its stage"]
fn becomes_current() {
    let primary = primary();
    let mut all = CUdevResource::default();
    ok!(cuDeviceGetDevResource(0, &mut all, SM));
    let mut group = [CUdevResource::default()];
    split(&all, &mut group);
    let green = green(&mut group);
    let (converted, created) = (context(green), stream(green));
    assert_ne!(converted.addr(), green.addr());
    refused!(cuCtxSetCurrent(green.cast()), CUDA_ERROR_INVALID_CONTEXT);
    refused!(cuCtxDestroy_v2(converted), CUDA_ERROR_INVALID_CONTEXT);
    ok!(cuCtxSetCurrent(converted));
    let (mut current, mut id, mut green_id) = (null_mut(), 0, 0);
    ok!(cuCtxGetCurrent(&mut current));
    ok!(cuCtxGetId(null_mut(), &mut id));
    ok!(cuGreenCtxGetId(null_mut(), &mut green_id));
    assert_eq!((current, id), (converted, green_id));
    for (stream, has) in [
        (null_mut(), CU_STREAM_DEFAULT),
        (created, CU_STREAM_NON_BLOCKING),
    ] {
        let (mut of, mut of_green, mut flags) = (null_mut(), null_mut(), 9);
        ok!(cuStreamGetCtx(stream, &mut of));
        assert_eq!(of, converted);
        ok!(cuStreamGetCtx_v2(stream, &mut of, &mut of_green));
        assert_eq!((of, of_green), (primary, green));
        of_green = null_mut();
        ok!(cuStreamGetGreenCtx(stream, &mut of_green));
        assert_eq!(of_green, green);
        ok!(cuStreamGetFlags(stream, &mut flags));
        assert_eq!(flags, has);
    }
    let mut unsupported = null_mut();
    refused!(
        cuStreamCreate(&mut unsupported, 0),
        CUDA_ERROR_NOT_SUPPORTED
    );
    let of_thread: CUstream = std::ptr::without_provenance_mut(2);
    refused!(
        cuStreamGetCtx(of_thread, &mut current),
        CUDA_ERROR_INVALID_HANDLE
    );
    // Everything but streams is the primary context's.
    let mut address = 0;
    ok!(cuMemAlloc_v2(&mut address, 1));
    let function = kernel();
    launch(function, null_mut());
    ok!(cuCtxSynchronize());
    refused!(
        cuStreamBeginCapture_v2(null_mut(), CU_STREAM_CAPTURE_MODE_RELAXED),
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    );
    ok!(cuCtxSetCurrent(primary));
    launch(function, created);
    ok!(cuStreamBeginCapture_v2(
        created,
        CU_STREAM_CAPTURE_MODE_RELAXED
    ));
    launch(function, created);
    let (mut graph, mut node, mut one) = (null_mut(), null_mut(), 1);
    ok!(cuStreamEndCapture(created, &mut graph));
    ok!(cuGraphGetNodes(graph, &mut node, &mut one));
    let mut params = CUDA_KERNEL_NODE_PARAMS::default();
    ok!(cuGraphKernelNodeGetParams_v2(node, &mut params));
    assert_eq!(params.ctx, converted);

    ok!(cuGreenCtxDestroy(green));
    launch(function, null_mut());
    refused!(
        cuStreamSynchronize(created),
        CUDA_ERROR_CONTEXT_IS_DESTROYED
    );
    refused!(cuStreamDestroy_v2(created), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    refused!(cuCtxSetCurrent(converted), CUDA_ERROR_INVALID_CONTEXT);
    refused!(cuGreenCtxDestroy(green), CUDA_ERROR_INVALID_CONTEXT);
}

/// Handles are counted up by 16: the names of the lines follow from the first one.
fn named(lines: &[String]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut name = |word: &str| match u64::from_str_radix(word, 16) {
        Ok(number) if number >= 0x100 => {
            let known = names.iter().position(|it| it == word);
            let at = known.unwrap_or_else(|| {
                names.push(word.to_owned());
                names.len() - 1
            });
            char::from(b'a' + at as u8).to_string()
        }
        _ => word.to_owned(),
    };
    let short = |line: &String| line.split(" of [").next().unwrap_or(line).to_owned();
    lines
        .iter()
        .map(|line| short(line).split(' ').map(&mut name).collect::<Vec<_>>())
        .map(|words| words.join(" "))
        .collect()
}

#[test]
fn a_green_context_is_the_primary_one_but_for_its_streams() {
    let stage = Stage::start("becomes_current");
    let device = stage.device.clone();
    assert!(stage.finish());
    let lines = named(&device.lock().unwrap().ordered);
    // a: the green context, b: its default stream, c: its stream, d: the primary context, e: the kernel.
    let expected = [
        "green a",
        "stream b in a",
        "stream c in a",
        "memory in d",
        "launch e in b",
        "sync b",
        "sync c",
        "launch e in c",
        "no green a",
        "launch e in 1",
    ];
    // The streams of a context are in no order.
    let mut lines = lines;
    lines[5..7].sort();
    assert_eq!(lines, expected);
}

#[test]
#[ignore = "a program for its stage"]
fn waits() {
    let primary = primary();
    let mut all = CUdevResource::default();
    ok!(cuDeviceGetDevResource(0, &mut all, SM));
    let mut groups = [CUdevResource::default(); 2];
    split(&all, &mut groups);
    let (first, second) = (green(&mut groups[..1]), green(&mut groups[1..]));
    let mut event = null_mut();
    ok!(cuEventCreate(&mut event, CU_EVENT_DISABLE_TIMING));
    ok!(cuGreenCtxRecordEvent(first, event));
    ok!(cuGreenCtxWaitEvent(second, event));
    stream(second);
    ok!(cuCtxRecordEvent(primary, event));
    get_another_worker();
    ok!(cuGreenCtxWaitEvent(first, event));
    ok!(cuDevicePrimaryCtxReset_v2(0));
    refused!(cuGreenCtxDestroy(first), CUDA_ERROR_INVALID_CONTEXT);
}

#[test]
fn events_of_contexts_are_events_of_their_streams() {
    let mut stage = Stage::start("waits");
    let device = stage.device.clone();
    stage.change_worker();
    assert!(stage.finish());
    let lines = named(&device.lock().unwrap().ordered);
    let until_all = [
        // The green contexts a and c with their default streams.
        "green a",
        "stream b in a",
        "green c",
        "stream d in c",
        // The event, g, behind all of a.
        "stream e in a",
        "record f in b",
        "wait f in e",
        "record g in e",
        "no stream e",
        // All of c waits for it, with a gate h for streams to come.
        "stream h in c",
        "wait g in d",
        "wait g in h",
        // One comes.
        "stream i in c",
        "record j in h",
        "wait j in i",
        // Behind all of the primary context: its default stream, b, d and i.
        "stream k",
        "record l in 1",
        "wait l in k",
    ];
    assert_eq!(lines[..until_all.len()], until_all);
    let behind_all = &lines[until_all.len()..];
    let recorded = |stream: &str| {
        let end = format!("in {stream}");
        behind_all
            .iter()
            .take(6)
            .filter(|it| it.ends_with(&end))
            .count()
    };
    let counts = ["b", "d", "i", "k"].map(recorded);
    assert_eq!(counts, [1, 1, 1, 3], "{behind_all:?}");
    assert_eq!(behind_all[6], "record g in k");
    assert_eq!(behind_all[7], "no stream k");
}
