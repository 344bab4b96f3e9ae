//! What a program asks about its kernels, with a worker that the test plays.

#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
mod support;

use core::ffi::{c_int, c_uint, c_void};

use fermata_abi::sys::driver::*;
use fermata_client as _;
use fermata_control::agent::FromAgent;
use support::Stage;

unsafe extern "C" {
    fn cuInit(flags: c_uint) -> CUresult;
    fn cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice) -> CUresult;
    fn cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize) -> CUresult;
    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult;
    fn cuModuleGetFunction(
        function: *mut CUfunction,
        module: CUmodule,
        name: *const i8,
    ) -> CUresult;
    fn cuLibraryLoadData(
        library: *mut CUlibrary,
        code: *const c_void,
        jit: *mut CUjit_option,
        jit_values: *mut *mut c_void,
        jit_count: c_uint,
        options: *mut CUlibraryOption,
        values: *mut *mut c_void,
        count: c_uint,
    ) -> CUresult;
    fn cuLibraryGetKernel(kernel: *mut CUkernel, library: CUlibrary, name: *const i8) -> CUresult;
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

/// A call that must succeed.
macro_rules! ok {
    ($call:expr) => {{
        // SAFETY: every pointer in these programs is to a live variable or buffer of the right size.
        let status = unsafe { $call };
        assert_eq!(status, CUDA_SUCCESS, stringify!($call));
    }};
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
    // The stage stops the session, and lets it go on with another worker.
    let mut address = 0;
    ok!(cuMemAlloc_v2(&mut address, 1));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    ask(function);
}

/// The answers depend on the function's attributes, and on the very device.
#[test]
fn occupancy_is_asked_again_after_an_attribute_was_set_and_on_another_device() {
    let mut stage = Stage::start("asks_again");
    let device = stage.device.clone();
    stage.wait_for_allocation();
    assert!(matches!(stage.quiesce(), FromAgent::Quiesced { .. }));
    stage.detach();
    stage.reattach();
    assert!(stage.finish());
    let questions = &device.lock().unwrap().questions;
    assert_eq!(questions.len(), 3 * 8, "{questions:?}");
}
