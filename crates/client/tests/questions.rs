//! What a program asks about its kernels, with a worker that the test plays.

#![allow(clippy::unwrap_used)]

#[macro_use]
#[allow(dead_code)]
mod support;

use core::ffi::{c_int, c_uint, c_void};

use fermata_abi::sys::driver::*;
use fermata_client as _;
use support::Stage;
use support::driver::{
    cuCtxCreate_v2, cuCtxSynchronize, cuEventCreate, cuInit, cuLibraryGetKernel, cuLibraryLoadData,
    cuModuleGetFunction, cuModuleLoadData, cuStreamCreate, get_another_worker,
};

unsafe extern "C" {
    fn cuFuncSetAttribute(
        function: CUfunction,
        attribute: CUfunction_attribute,
        value: c_int,
    ) -> CUresult;
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int,
        function: CUfunction,
        block: c_int,
        shared: usize,
    ) -> CUresult;
    fn cuOccupancyMaxPotentialBlockSize(
        grid: *mut c_int,
        block: *mut c_int,
        function: CUfunction,
        shared_of: CUoccupancyB2DSize,
        shared: usize,
        limit: c_int,
    ) -> CUresult;
    fn cuOccupancyAvailableDynamicSMemPerBlock(
        bytes: *mut usize,
        function: CUfunction,
        blocks: c_int,
        block: c_int,
    ) -> CUresult;
    fn cuOccupancyMaxActiveClusters(
        clusters: *mut c_int,
        function: CUfunction,
        config: *const CUlaunchConfig,
    ) -> CUresult;
    fn cuOccupancyMaxPotentialClusterSize(
        size: *mut c_int,
        function: CUfunction,
        config: *const CUlaunchConfig,
    ) -> CUresult;
}

/// A function of a module, and a kernel of a library as a function.
fn functions() -> [CUfunction; 2] {
    let mut context = std::ptr::null_mut();
    ok!(cuInit(0));
    ok!(cuCtxCreate_v2(&mut context, 0, 0));
    let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
    let image = c".version 8.0".as_ptr().cast();
    ok!(cuModuleLoadData(&mut module, image));
    ok!(cuModuleGetFunction(
        &mut function,
        module,
        c"first".as_ptr()
    ));
    let (mut library, mut kernel) = (std::ptr::null_mut(), std::ptr::null_mut());
    let none = std::ptr::null_mut;
    ok!(cuLibraryLoadData(
        &mut library,
        image,
        none(),
        std::ptr::null_mut(),
        0,
        none(),
        std::ptr::null_mut(),
        0
    ));
    ok!(cuLibraryGetKernel(&mut kernel, library, c"second".as_ptr()));
    [function, kernel.cast()]
}

fn clusters(function: CUfunction, grid: c_uint, across: u8) -> (c_int, c_int) {
    let mut pad = [0; 64];
    pad[0] = across as i8;
    let value = CUlaunchAttributeValue { pad };
    let mut attributes = [
        CUlaunchAttribute {
            id: CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            pad: [0; 4],
            value,
        },
        CUlaunchAttribute {
            id: CU_LAUNCH_ATTRIBUTE_PRIORITY,
            pad: [0; 4],
            value,
        },
    ];
    let config = CUlaunchConfig {
        gridDimX: grid,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 128,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: std::ptr::null_mut(),
        attrs: attributes.as_mut_ptr(),
        numAttrs: 2,
    };
    let (mut active, mut largest) = (0, 0);
    ok!(cuOccupancyMaxActiveClusters(&mut active, function, &config));
    ok!(cuOccupancyMaxPotentialClusterSize(
        &mut largest,
        function,
        &config
    ));
    (active, largest)
}

unsafe extern "C" fn one_byte_a_thread(block: c_int) -> usize {
    block as usize
}

/// Every kind of question, and what the test's worker makes of it.
fn ask(function: CUfunction) {
    let mut blocks = 0;
    ok!(cuOccupancyMaxActiveBlocksPerMultiprocessor(
        &mut blocks,
        function,
        -7,
        1000
    ));
    assert_eq!(blocks, 993);
    let (mut grid, mut block) = (0, 0);
    let best = cuOccupancyMaxPotentialBlockSize;
    ok!(best(&mut grid, &mut block, function, None, 77, 500));
    assert_eq!((grid, block), (77, 500));
    let need = Some(one_byte_a_thread as unsafe extern "C" fn(c_int) -> usize);
    ok!(best(&mut grid, &mut block, function, need, 0, 100));
    assert_eq!((grid, block), (4, 100 + 96 + 64 + 32));
    let mut bytes = 0;
    ok!(cuOccupancyAvailableDynamicSMemPerBlock(
        &mut bytes, function, 3, 32
    ));
    assert_eq!(bytes, 96);
    assert_eq!(clusters(function, 64, 2), (4064, 1_004_064));
    assert_eq!(clusters(function, 64, 4), (8064, 1_008_064));
}

#[test]
#[ignore = "a program for its stage"]
fn asks() {
    for function in functions() {
        for _ in 0..3 {
            ask(function);
        }
    }
}

#[test]
fn occupancy_is_asked_of_the_driver_and_once() {
    let stage = Stage::start("asks");
    let device = stage.device.clone();
    assert!(stage.finish());
    let questions = &device.lock().unwrap().questions;
    assert_eq!(questions.len(), 2 * 8, "{questions:?}");
}

#[test]
#[ignore = "a program for its stage"]
fn asks_again() {
    let [function, _] = functions();
    ask(function);
    let carveout = CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
    ok!(cuFuncSetAttribute(function, carveout, 50));
    ask(function);
    get_another_worker();
    ask(function);
}

/// The answers depend on the function's attributes, and on the very device.
#[test]
fn occupancy_is_asked_again_after_an_attribute_was_set_and_on_another_device() {
    let mut stage = Stage::start("asks_again");
    let device = stage.device.clone();
    stage.change_worker();
    assert!(stage.finish());
    let questions = &device.lock().unwrap().questions;
    assert_eq!(questions.len(), 3 * 8, "{questions:?}");
}

#[test]
#[ignore = "a program for its stage"]
fn sets() {
    let [function, other] = functions();
    let most = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    for value in [40 << 10, 20 << 10, 20 << 10, 30 << 10, 20 << 10] {
        ok!(cuFuncSetAttribute(function, most, value));
    }
    ok!(cuFuncSetAttribute(other, most, 20 << 10));
    // What the library does not know is the driver's business.
    let carveout = CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
    ok!(cuFuncSetAttribute(function, carveout, 7));
    ok!(cuFuncSetAttribute(function, carveout, 7));
}

/// As before every launch of some libraries; it would wait for the launches before it.
#[test]
fn an_attribute_that_has_its_value_is_not_set_again() {
    let stage = Stage::start("sets");
    let device = stage.device.clone();
    assert!(stage.finish());
    let set = &device.lock().unwrap().set;
    assert_eq!(*set, [20 << 10, 30 << 10, 20 << 10, 20 << 10, 7, 7]);
}

unsafe extern "C" {
    fn cuCtxGetFlags(flags: *mut c_uint) -> CUresult;
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode) -> CUresult;
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> CUresult;
    fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) -> CUresult;
    fn cuGraphGetEdges_v2(
        graph: CUgraph,
        from: *mut CUgraphNode,
        to: *mut CUgraphNode,
        data: *mut CUgraphEdgeData,
        count: *mut usize,
    ) -> CUresult;
    fn cuGraphKernelNodeGetAttribute(
        node: CUgraphNode,
        attribute: CUlaunchAttributeID,
        value: *mut CUlaunchAttributeValue,
    ) -> CUresult;
    fn cuLaunchKernelEx(
        config: *const CUlaunchConfig,
        function: CUfunction,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> CUresult;
    fn cuTensorMapEncodeTiled(
        map: *mut CUtensorMap,
        data_type: CUtensorMapDataType,
        rank: c_uint,
        address: *mut c_void,
        dims: *const u64,
        strides: *const u64,
        box_dims: *const c_uint,
        steps: *const c_uint,
        interleave: CUtensorMapInterleave,
        swizzle: CUtensorMapSwizzle,
        promotion: CUtensorMapL2promotion,
        fill: CUtensorMapFloatOOBfill,
    ) -> CUresult;
    fn cuTensorMapReplaceAddress(map: *mut CUtensorMap, address: *mut c_void) -> CUresult;
}

fn attribute(id: CUlaunchAttributeID, words: &[u32]) -> CUlaunchAttribute {
    let mut pad = [0i8; 64];
    for (to, word) in pad.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes().map(|byte| byte as i8));
    }
    CUlaunchAttribute {
        id,
        pad: [0; 4],
        value: CUlaunchAttributeValue { pad },
    }
}

/// A launch of two clusters of two blocks that may begin before the kernel in front of it has ended, and that records
/// an event when its blocks allow that.
fn launch_special(function: CUfunction, event: CUevent, stream: CUstream) -> CUresult {
    let of_event = CUlaunchAttributeValue_union__bindgen_ty_2 {
        event,
        flags: 0,
        triggerAtBlockStart: 1,
    };
    let mut attributes = [
        attribute(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &[2, 1, 1]),
        attribute(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, &[1]),
        CUlaunchAttribute {
            id: CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT,
            pad: [0; 4],
            value: CUlaunchAttributeValue {
                programmaticEvent: of_event,
            },
        },
    ];
    let config = CUlaunchConfig {
        gridDimX: 4,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 32,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: stream,
        attrs: attributes.as_mut_ptr(),
        numAttrs: 3,
    };
    let (mut a, mut b, mut c) = (1u64, 2u32, 3u64);
    let mut params = [
        std::ptr::from_mut(&mut a).cast(),
        std::ptr::from_mut(&mut b).cast(),
        std::ptr::from_mut(&mut c).cast::<c_void>(),
    ];
    // SAFETY: every pointer is to a live variable.
    unsafe { cuLaunchKernelEx(&config, function, params.as_mut_ptr(), std::ptr::null_mut()) }
}

#[test]
#[ignore = "a program for its stage"]
fn launches() {
    let [function, _] = functions();
    let (mut event, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
    ok!(cuEventCreate(&mut event, CU_EVENT_DISABLE_TIMING));
    ok!(cuStreamCreate(&mut stream, 0));
    assert_eq!(launch_special(function, event, stream), CUDA_SUCCESS);
    let mut timed = std::ptr::null_mut();
    ok!(cuEventCreate(&mut timed, 0));
    let refused = launch_special(function, timed, stream);
    assert_eq!(refused, CUDA_ERROR_INVALID_VALUE);

    ok!(cuStreamBeginCapture_v2(
        stream,
        CU_STREAM_CAPTURE_MODE_GLOBAL
    ));
    for _ in 0..2 {
        assert_eq!(launch_special(function, event, stream), CUDA_SUCCESS);
    }
    let mut graph = std::ptr::null_mut();
    ok!(cuStreamEndCapture(stream, &mut graph));
    let (mut nodes, mut count) = ([std::ptr::null_mut(); 2], 2);
    ok!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
    assert_eq!(count, 2);
    for node in nodes {
        let mut value = CUlaunchAttributeValue::default();
        let cluster = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        ok!(cuGraphKernelNodeGetAttribute(node, cluster, &mut value));
        // SAFETY: the library has written every byte.
        let dimension = unsafe { value.clusterDim };
        assert_eq!((dimension.x, dimension.y, dimension.z), (2, 1, 1));
    }
    let (mut from, mut to) = (std::ptr::null_mut(), std::ptr::null_mut());
    let (mut data, mut edges) = (CUgraphEdgeData::default(), 1);
    ok!(cuGraphGetEdges_v2(
        graph, &mut from, &mut to, &mut data, &mut edges
    ));
    assert_eq!((edges, from, to), (1, nodes[0], nodes[1]));
    let kind = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
    assert_eq!((u32::from(data.type_), data.from_port), (kind, 1));

    let mut flags = 0;
    ok!(cuCtxGetFlags(&mut flags));
    assert_eq!(flags, CU_CTX_MAP_HOST);
    ok!(cuCtxSynchronize());
}

/// As on the device: an event of the program's is named by its handle, which the worker knows.
#[test]
fn launch_attributes_reach_the_worker_and_stay_in_captured_graphs() {
    let stage = Stage::start("launches");
    let device = stage.device.clone();
    assert!(stage.finish());
    let device = device.lock().unwrap();
    let ids: Vec<u32> = device.attributes.iter().map(|it| it.0).collect();
    let expected = [
        CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT,
    ];
    assert_eq!(ids, expected);
    let event = device.attributes[2].1[..8].try_into().unwrap();
    assert_eq!(u64::from_le_bytes(event), device.events[0]);
    assert_eq!(device.attributes[2].1[12], 1);
}

/// Room for a descriptor aligned as programs of CUDA 12 align it: to 64 bytes, not to 128.
#[repr(align(128))]
struct Room([u8; 64 + 128]);

#[test]
#[ignore = "a program for its stage"]
fn maps() {
    functions();
    let mut room = Room([0; 64 + 128]);
    let map: *mut CUtensorMap = room.0[64..].as_mut_ptr().cast();
    let dims = [64u64, 32, 16];
    let strides = [256u64, 8192];
    let (boxes, steps) = ([16u32, 8, 1], [1u32; 3]);
    let encode = |map, rank, address: usize| {
        // SAFETY: every list has three entries, and there is room for the descriptor.
        unsafe {
            cuTensorMapEncodeTiled(
                map,
                CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                rank,
                address as *mut c_void,
                dims.as_ptr(),
                strides.as_ptr(),
                boxes.as_ptr(),
                steps.as_ptr(),
                0,
                0,
                0,
                0,
            )
        }
    };
    for _ in 0..3 {
        assert_eq!(encode(map, 3, 0x3000_0000_0000), CUDA_SUCCESS);
    }
    assert_eq!(encode(map, 6, 0x3000_0000_0000), CUDA_ERROR_INVALID_VALUE);
    let crooked = map.wrapping_byte_add(8);
    assert_eq!(encode(crooked, 3, 0), CUDA_ERROR_INVALID_VALUE);
    let extent = 15 * 8192 + 31 * 256 + 64 * 4;
    let words = |room: &Room| {
        let word = |at: usize| u64::from_le_bytes(room.0[at..at + 8].try_into().unwrap());
        [word(64), word(72)]
    };
    assert_eq!(words(&room), [0x3000_0000_0000, extent]);
    ok!(cuTensorMapReplaceAddress(
        map,
        0x3000_0020_0000usize as *mut c_void
    ));
    assert_eq!(words(&room), [0x3000_0020_0000, extent]);
}

#[test]
fn tensor_maps_are_encoded_by_the_worker_and_once() {
    let stage = Stage::start("maps");
    let device = stage.device.clone();
    assert!(stage.finish());
    assert_eq!(device.lock().unwrap().questions.len(), 2);
}

unsafe extern "C" {
    fn cuLinkCreate_v2(
        count: c_uint,
        options: *mut CUjit_option,
        values: *mut *mut c_void,
        state: *mut CUlinkState,
    ) -> CUresult;
    fn cuLinkAddData_v2(
        state: CUlinkState,
        kind: CUjitInputType,
        data: *mut c_void,
        size: usize,
        name: *const i8,
        count: c_uint,
        options: *mut CUjit_option,
        values: *mut *mut c_void,
    ) -> CUresult;
    fn cuLinkComplete(state: CUlinkState, image: *mut *mut c_void, size: *mut usize) -> CUresult;
    fn cuLinkDestroy(state: CUlinkState) -> CUresult;
}

#[test]
#[ignore = "a program for its stage"]
fn links() {
    functions();
    let mut log = [b'x'; 16];
    let mut options = [
        CU_JIT_ERROR_LOG_BUFFER,
        CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        CU_JIT_MAX_REGISTERS,
        CU_JIT_WALL_TIME,
    ];
    let mut values: [*mut c_void; 4] = [
        log.as_mut_ptr().cast(),
        log.len() as *mut c_void,
        40 as *mut c_void,
        std::ptr::null_mut(),
    ];
    let mut state = std::ptr::null_mut();
    ok!(cuLinkCreate_v2(
        4,
        options.as_mut_ptr(),
        values.as_mut_ptr(),
        &mut state
    ));
    assert_eq!(log[0], 0);
    let (none, no_values) = (std::ptr::null_mut(), std::ptr::null_mut());
    for part in ["first ", "second"] {
        let (data, kind) = (part.as_ptr().cast_mut().cast(), CU_JIT_INPUT_CUBIN);
        let name = c"name".as_ptr();
        ok!(cuLinkAddData_v2(
            state,
            kind,
            data,
            part.len(),
            name,
            0,
            none,
            no_values
        ));
    }
    for _ in 0..2 {
        let (mut image, mut size) = (std::ptr::null_mut(), 0);
        ok!(cuLinkComplete(state, &mut image, &mut size));
        // SAFETY: the library has given so many bytes, which stay until the linker is destroyed.
        let image = unsafe { std::slice::from_raw_parts(image.cast::<u8>(), size) };
        assert_eq!(image, b"first second");
    }
    ok!(cuLinkDestroy(state));
    // SAFETY: a stale handle is refused.
    assert_eq!(unsafe { cuLinkDestroy(state) }, CUDA_ERROR_INVALID_HANDLE);
}

unsafe extern "C" {
    fn cuModuleLoadDataEx(
        module: *mut CUmodule,
        image: *const c_void,
        count: c_uint,
        options: *mut CUjit_option,
        values: *mut *mut c_void,
    ) -> CUresult;
}

#[test]
#[ignore = "a program for its stage"]
fn reads_logs() {
    functions();
    let image = c".version 8.0";
    for of_library in [false, true] {
        let (mut info, mut errors) = ([b'x'; 16], [b'x'; 16]);
        let mut options = [
            CU_JIT_INFO_LOG_BUFFER,
            CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
            CU_JIT_ERROR_LOG_BUFFER,
            CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        let mut values: [*mut c_void; 4] = [
            info.as_mut_ptr().cast(),
            info.len() as *mut c_void,
            errors.as_mut_ptr().cast(),
            errors.len() as *mut c_void,
        ];
        let (options, places) = (options.as_mut_ptr(), values.as_mut_ptr());
        let code = image.as_ptr().cast();
        if of_library {
            let (mut library, none, nothing) = (
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            );
            ok!(cuLibraryLoadData(
                &mut library,
                code,
                options,
                places,
                4,
                none,
                nothing,
                0
            ));
        } else {
            let mut module = std::ptr::null_mut();
            ok!(cuModuleLoadDataEx(&mut module, code, 4, options, places));
        }
        assert_eq!((info[0], errors[0]), (0, 0));
        assert_eq!((values[1].addr(), values[3].addr()), (0, 0));
    }
}

/// Programs print as much of a buffer as its size says after the call.
#[test]
fn a_load_without_messages_empties_the_log_buffers() {
    assert!(Stage::start("reads_logs").finish());
}

/// A linker is in the program alone until its image is wanted: there is nothing of it for a checkpoint to forget.
#[test]
fn linkers_send_everything_at_once() {
    let stage = Stage::start("links");
    let device = stage.device.clone();
    assert!(stage.finish());
    let questions = &device.lock().unwrap().questions;
    assert_eq!(questions.len(), 1);
    let registers = format!("options: [({CU_JIT_MAX_REGISTERS}, 40)]");
    assert!(questions[0].contains(&registers), "{questions:?}");
}

unsafe extern "C" {
    fn cuFuncSetBlockShape(function: CUfunction, x: c_int, y: c_int, z: c_int) -> CUresult;
    fn cuParamSetSize(function: CUfunction, bytes: c_uint) -> CUresult;
    fn cuParamSeti(function: CUfunction, offset: c_int, value: c_uint) -> CUresult;
    fn cuParamSetv(
        function: CUfunction,
        offset: c_int,
        value: *mut c_void,
        bytes: c_uint,
    ) -> CUresult;
    fn cuLaunchGrid(function: CUfunction, width: c_int, height: c_int) -> CUresult;
}

#[test]
#[ignore = "a program for its stage"]
fn old_launches() {
    let [function, _] = functions();
    // SAFETY: there is no block yet.
    let early = unsafe { cuLaunchGrid(function, 2, 3) };
    assert_eq!(early, CUDA_ERROR_INVALID_VALUE);
    ok!(cuFuncSetBlockShape(function, 32, 2, 1));
    let mut wide = 0x1122_3344_5566_7788u64;
    let value = std::ptr::from_mut(&mut wide).cast();
    ok!(cuParamSetv(function, 0, value, 8));
    ok!(cuParamSeti(function, 8, 0x99));
    ok!(cuParamSetSize(function, 24));
    ok!(cuLaunchGrid(function, 2, 3));
    ok!(cuCtxSynchronize());
}

#[test]
fn launches_of_cuda_2_carry_what_was_set_before() {
    let stage = Stage::start("old_launches");
    let device = stage.device.clone();
    assert!(stage.finish());
    let device = device.lock().unwrap();
    let [(_, grid, params)] = &device.launches[..] else {
        panic!("{:?}", device.launches)
    };
    assert_eq!(*grid, [2, 3, 1]);
    let mut expected = 0x1122_3344_5566_7788u64.to_le_bytes().to_vec();
    expected.extend(0x99u64.to_le_bytes());
    expected.extend([0; 8]);
    assert_eq!(*params, expected);
}
