//! The runtime over a driver of a few lines: registration, launches, devices, errors, fork.
//!
//! The driver is found by name, so that each test runs in a process of its own whose library path has it.
use std::ffi::{c_char, c_void};
use std::path::Path;
use std::process::Command;
use std::ptr::null_mut;

use fermata_abi::sys::runtime::*;
use fermata_cudart::api::{
    device::*, error::*, launch::*, memcpy::*, memory::*, registration::*, symbol::*,
};

/// Runs the test `name`, which is ignored otherwise, over the fake driver.
fn run(name: &str, with_driver: bool, variable: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    if with_driver {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_driver.c");
        let library = folder.path().join("libcuda.so.1");
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-o"])
            .args([library.as_path(), source.as_path()])
            .status()
            .expect("cc runs");
        assert!(status.success());
    }
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--exact", name])
        .env("LD_LIBRARY_PATH", folder.path())
        .env(variable, "1")
        .output()
        .expect("the test runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

#[repr(C)]
struct Wrapper(u32, u32, *const u8, *mut c_void);
static CONTAINER: [u8; 32] = {
    let mut bytes = [0; 32];
    (bytes[0], bytes[1], bytes[2], bytes[3]) = (0x50, 0xed, 0x55, 0xba);
    bytes
};
static STUBS: [c_char; 4] = [0; 4];

/// Registers what a compiled program with one kernel, one variable and one missing kernel would.
unsafe fn register() -> *mut *mut c_void {
    let wrapper = Box::leak(Box::new(Wrapper(
        0x4662_43b1,
        1,
        CONTAINER.as_ptr(),
        null_mut(),
    )));
    // SAFETY: everything passed is static.
    unsafe {
        let handle = __cudaRegisterFatBinary(std::ptr::from_mut(wrapper).cast());
        for (stub, name) in [(&STUBS[0], c"store"), (&STUBS[1], c"missing")] {
            let none = null_mut();
            __cudaRegisterFunction(
                handle,
                stub,
                none,
                name.as_ptr(),
                -1,
                none.cast(),
                none.cast(),
                null_mut(),
                null_mut(),
                null_mut(),
            );
        }
        let shadow = std::ptr::from_ref(&STUBS[2]).cast_mut();
        __cudaRegisterVar(handle, shadow, null_mut(), c"variable".as_ptr(), 0, 4, 0, 0);
        __cudaRegisterFatBinaryEnd(handle);
        handle
    }
}

fn stub(at: usize) -> *const c_void {
    std::ptr::from_ref(&STUBS[at]).cast()
}

fn dim(x: u32) -> dim3 {
    dim3 { x, y: 1, z: 1 }
}

#[test]
fn a_compiled_program_launches_by_stable_handles() {
    run("launching", true, "UNUSED");
}

#[test]
#[ignore = "run by the test above"]
fn launching() {
    // SAFETY: pointers to locals, with the sizes given.
    unsafe {
        let handle = register();
        let mut kernel = null_mut();
        assert_eq!(__cudaGetKernel(&mut kernel, stub(0)), 0);
        let mut place = null_mut();
        assert_eq!(cudaMalloc(&mut place, 4), 0);

        assert_eq!(
            __cudaPushCallConfiguration(dim(3), dim(5), 0, null_mut()),
            0
        );
        let (mut grid, mut block, mut shared, mut stream) = (dim(0), dim(0), 1, 9_usize);
        let place_of_stream = std::ptr::from_mut(&mut stream).cast();
        assert_eq!(
            __cudaPopCallConfiguration(&mut grid, &mut block, &mut shared, place_of_stream),
            0
        );
        assert_eq!((grid.x, block.x, shared, stream), (3, 5, 0, 0));
        assert_eq!(
            __cudaPopCallConfiguration(&mut grid, &mut block, &mut shared, place_of_stream),
            cudaErrorMissingConfiguration
        );

        let mut value = 37;
        let mut args = [
            std::ptr::from_mut(&mut place).cast::<c_void>(),
            std::ptr::from_mut(&mut value).cast(),
        ];
        assert_eq!(
            __cudaLaunchKernel(kernel, grid, block, args.as_mut_ptr(), 0, null_mut()),
            0
        );
        let mut back = 0_i32;
        let to = std::ptr::from_mut(&mut back).cast::<c_void>();
        assert_eq!(cudaMemcpy(to, place, 4, cudaMemcpyDeviceToHost), 0);
        assert_eq!(back, 42);

        assert_eq!(
            cudaLaunchKernel(stub(0), grid, dim(1), args.as_mut_ptr(), 0, null_mut()),
            0
        );
        assert_eq!(cudaMemcpy(to, place, 4, cudaMemcpyDeviceToHost), 0);
        assert_eq!(back, 38);

        let launch = |f, grid, args: &mut [*mut c_void; 2]| {
            cudaLaunchKernel(f, grid, dim(1), args.as_mut_ptr(), 0, null_mut())
        };
        assert_eq!(
            launch(stub(1), dim(1), &mut args),
            cudaErrorInvalidDeviceFunction
        );
        assert_eq!(
            launch(std::ptr::null(), dim(1), &mut args),
            cudaErrorInvalidDeviceFunction
        );
        assert_eq!(launch(stub(0), dim(0), &mut args), cudaErrorInvalidValue);

        let mut size = 0;
        assert_eq!(cudaGetSymbolSize(&mut size, stub(2)), 0);
        assert_eq!(size, 4);
        assert_eq!(
            cudaMemcpyFromSymbol(to, stub(2), 4, 0, cudaMemcpyDeviceToHost),
            0
        );
        assert_eq!(back, 7);
        assert_eq!(
            cudaMemcpyFromSymbol(to, stub(2), 4, 1, cudaMemcpyDeviceToHost),
            cudaErrorInvalidValue
        );
        assert_eq!(
            cudaGetSymbolSize(&mut size, stub(0)),
            cudaErrorInvalidSymbol
        );

        __cudaUnregisterFatBinary(handle);
        assert_eq!(
            __cudaGetKernel(&mut kernel, stub(0)),
            cudaErrorInvalidDeviceFunction
        );
    }
}

#[test]
fn devices_and_errors_are_per_thread() {
    run("devices", true, "UNUSED");
}

#[test]
#[ignore = "run by the test above"]
fn devices() {
    // SAFETY: pointers to locals.
    unsafe {
        let mut number = 9;
        assert_eq!(cudaGetDevice(&mut number), 0);
        assert_eq!(number, 0);
        assert_eq!(cudaSetDevice(2), cudaErrorInvalidDevice);
        assert_eq!(cudaSetDevice(1), 0);
        assert_eq!(cudaGetDevice(&mut number), 0);
        assert_eq!(number, 1);
        let other = std::thread::spawn(|| {
            let mut number = 9;
            assert_eq!(cudaGetLastError(), 0);
            assert_eq!(cudaGetDevice(&mut number), 0);
            number
        });
        assert_eq!(other.join().expect("the thread"), 0);
        assert_eq!(cudaGetLastError(), cudaErrorInvalidDevice);
        assert_eq!(cudaGetLastError(), 0);

        assert_eq!(cudaDeviceReset(), 0);
        let mut place = null_mut();
        assert_eq!(cudaMalloc(&mut place, 8), 0);
        assert_eq!(cudaMalloc(&mut place, 2 << 30), cudaErrorMemoryAllocation);
        assert_eq!(cudaMalloc(null_mut(), 8), cudaErrorInvalidValue);
        assert_eq!(
            cudaMemcpy(place, place, 8, 17),
            cudaErrorInvalidMemcpyDirection
        );
        assert_eq!(cudaFree(null_mut()), 0);
    }
}

#[test]
fn a_dead_context_answers_every_call_with_its_error() {
    run("dead", true, "UNUSED");
}

#[test]
#[ignore = "run by the test above"]
fn dead() {
    // SAFETY: the fake kernel reads no parameter for this grid.
    unsafe {
        register();
        let launched = cudaLaunchKernel(stub(0), dim(700), dim(1), null_mut(), 0, null_mut());
        assert_eq!(launched, cudaErrorIllegalAddress);
        assert_eq!(cudaGetLastError(), cudaErrorIllegalAddress);
        assert_eq!(cudaGetLastError(), 0);
        assert_eq!(cudaFree(null_mut()), cudaErrorIllegalAddress);
    }
}

#[test]
fn a_child_of_a_process_that_used_cuda_gets_a_clean_error() {
    run("forking", true, "UNUSED");
}

#[test]
#[ignore = "run by the test above"]
fn forking() {
    // SAFETY: the child only makes calls of the library and ends.
    unsafe {
        let mut place = null_mut();
        register();
        let child = libc::fork();
        if child == 0 {
            let mut place = null_mut();
            libc::_exit(cudaMalloc(&mut place, 8) as i32);
        }
        assert_eq!(exit_status(child), 0);
        assert_eq!(cudaMalloc(&mut place, 8), 0);
        let child = libc::fork();
        if child == 0 {
            let mut place = null_mut();
            libc::_exit(cudaMalloc(&mut place, 8) as i32);
        }
        assert_eq!(exit_status(child), cudaErrorInitializationError as i32);
        let child = libc::fork();
        if child == 0 {
            let mut number = 0;
            libc::_exit(cudaGetDeviceCount(&mut number) as i32 + number);
        }
        assert_eq!(exit_status(child), 2);
        assert_eq!(cudaMalloc(&mut place, 8), 0);
    }
}

fn exit_status(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: a child of this process and a place for its status.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert!(libc::WIFEXITED(status));
    libc::WEXITSTATUS(status)
}

#[test]
fn without_a_driver_calls_say_so() {
    run("no_driver", false, "UNUSED");
}

#[test]
#[ignore = "run by the test above"]
fn no_driver() {
    // SAFETY: pointers to locals.
    unsafe {
        register();
        let (mut number, mut place) = (9, null_mut());
        assert_eq!(cudaGetDeviceCount(&mut number), cudaErrorInsufficientDriver);
        assert_eq!(number, 0);
        assert_eq!(cudaMalloc(&mut place, 8), cudaErrorInsufficientDriver);
        assert_eq!(cudaDriverGetVersion(&mut number), 0);
        assert_eq!(number, 0);
        assert_eq!(cudaRuntimeGetVersion(&mut number), 0);
        assert_eq!(number, 13_000);
        assert_eq!(cudaGetLastError(), cudaErrorInsufficientDriver);
        assert_eq!(cudaGetLastError(), cudaErrorInsufficientDriver);
    }
}

#[test]
fn without_a_device_calls_say_so() {
    run("no_device", true, "FAKE_NO_DEVICE");
}

#[test]
#[ignore = "run by the test above"]
fn no_device() {
    // SAFETY: pointers to locals.
    unsafe {
        let (mut number, mut place) = (9, null_mut());
        assert_eq!(cudaGetDeviceCount(&mut number), cudaErrorNoDevice);
        assert_eq!(cudaMalloc(&mut place, 8), cudaErrorNoDevice);
    }
}
