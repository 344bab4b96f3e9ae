//! Registered memory that does not fill its pages. Each program is a process of its own: an ignored test of this binary, which its
//! stage starts.

#![allow(clippy::unwrap_used)]

// Each test binary uses a part of it.
#[allow(dead_code)]
#[macro_use]
mod support;

use core::ffi::{c_uint, c_void};

use fermata_abi::sys::driver::*;
use fermata_client as _;
use support::Stage;
use support::driver::{cuCtxCreate_v2, cuInit};

unsafe extern "C" {
    fn cuMemHostRegister_v2(pointer: *mut c_void, size: usize, flags: c_uint) -> CUresult;
    fn cuMemHostUnregister(pointer: *mut c_void) -> CUresult;
    fn cuPointerGetAttribute(
        data: *mut c_void,
        attribute: CUpointer_attribute,
        address: CUdeviceptr,
    ) -> CUresult;
}

const PAGE: usize = 4096;

fn context() {
    let mut context = std::ptr::null_mut();
    ok!(cuInit(0));
    ok!(cuCtxCreate_v2(&mut context, 0, 0));
}

/// The first whole page of some memory.
fn first_page(memory: &mut [u8]) -> *mut u8 {
    let start = memory.as_mut_ptr();
    start.wrapping_add(start.align_offset(PAGE))
}

fn register(start: *mut u8, size: usize) -> CUresult {
    // SAFETY: the memory is the caller's.
    unsafe { cuMemHostRegister_v2(start.cast(), size, 0) }
}

fn unregister(start: *mut u8) -> CUresult {
    // SAFETY: the memory is the caller's, or was never registered.
    unsafe { cuMemHostUnregister(start.cast()) }
}

/// An attribute of an address, if it is one of CUDA's memory.
fn attribute(attribute: CUpointer_attribute, address: *mut u8) -> Option<u64> {
    let mut value = 0u64;
    let to = std::ptr::from_mut(&mut value).cast();
    // SAFETY: no attribute that these tests ask for is longer; the address is only looked up.
    let status = unsafe { cuPointerGetAttribute(to, attribute, address.addr() as u64) };
    (status == CUDA_SUCCESS).then_some(value)
}

fn is_pinned(address: *mut u8) -> bool {
    attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == Some(CU_MEMORYTYPE_HOST.into())
}

#[test]
#[ignore = "a program for its stage"]
fn part_of_a_page() {
    context();
    let mut memory: Vec<u8> = (0..3 * PAGE).map(|n| n as u8).collect();
    let before = memory.clone();
    let page = first_page(&mut memory);
    let start = page.wrapping_add(100);
    assert_eq!(register(start, 200), CUDA_SUCCESS);
    assert!(is_pinned(start) && is_pinned(start.wrapping_add(199)));
    // The rest of the page is ordinary memory: a copy from there must have taken the bytes when it returns.
    assert!(!is_pinned(page) && !is_pinned(start.wrapping_sub(1)));
    assert!(!is_pinned(start.wrapping_add(200)));
    let first = attribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, start);
    assert_eq!(first, Some(start.addr() as u64));
    let size = attribute(CU_POINTER_ATTRIBUTE_RANGE_SIZE, start);
    assert_eq!(size, Some(200));
    let overlapping = register(start.wrapping_add(199), 10);
    assert_eq!(overlapping, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    let inside = unregister(start.wrapping_add(1));
    assert_eq!(inside, CUDA_ERROR_INVALID_VALUE);
    let beside = unregister(page);
    assert_eq!(beside, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    assert_eq!(unregister(start), CUDA_SUCCESS);
    let again = unregister(start);
    assert_eq!(again, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    assert!(!is_pinned(start));
    assert!(memory == before);
}

#[test]
fn only_the_bytes_that_were_registered_are_pinned() {
    assert!(Stage::start("part_of_a_page").finish());
}

/// Libraries register several small buffers that the heap has put on one page.
#[test]
#[ignore = "a program for its stage"]
fn neighbours() {
    context();
    let mut memory: Vec<u8> = (0..4 * PAGE).map(|n| n as u8).collect();
    let mut expected = memory.clone();
    let page = first_page(&mut memory);
    let offset = page.addr() - memory.as_ptr().addr();
    let (one, two, three) = (page, page.wrapping_add(80), page.wrapping_add(3000));
    assert_eq!(register(two, 20), CUDA_SUCCESS);
    assert_eq!(register(one, 80), CUDA_SUCCESS);
    assert_eq!(register(three, 1000), CUDA_SUCCESS);
    assert!(is_pinned(one) && is_pinned(two) && is_pinned(three));
    assert!(!is_pinned(page.wrapping_add(100)));
    let twice = register(page.wrapping_add(90), 20);
    assert_eq!(twice, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    // The page is shared with the worker as long as one of them is registered.
    assert_eq!(unregister(two), CUDA_SUCCESS);
    assert!(is_pinned(one) && !is_pinned(two) && is_pinned(three));
    // SAFETY: the bytes are this function's own.
    unsafe { two.write(7) };
    expected[offset + 80] = 7;
    assert_eq!(unregister(one), CUDA_SUCCESS);
    assert_eq!(unregister(three), CUDA_SUCCESS);
    assert!(memory == expected);
    assert_eq!(register(page, 2 * PAGE), CUDA_SUCCESS);
    assert_eq!(unregister(page), CUDA_SUCCESS);
    assert!(memory == expected);
}

#[test]
fn buffers_on_one_page_are_registered_and_unregistered_independently() {
    assert!(Stage::start("neighbours").finish());
}

/// A child may unmap what its parent has registered.
#[test]
#[ignore = "a program for its stage"]
fn grandchild() {
    context();
    let (both, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, both, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    assert_eq!(register(memory.cast(), PAGE), CUDA_SUCCESS);
    // SAFETY: both children only make system calls, then end without running anything of the parent's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above; the memory is used no more.
        unsafe {
            libc::munmap(memory, PAGE);
            let last = libc::fork();
            if last == 0 {
                libc::_exit(0);
            }
            let mut status = 0;
            libc::waitpid(last, &mut status, 0);
            libc::_exit(i32::from(last < 0 || status != 0));
        }
    }
    let mut status = 0;
    // SAFETY: the child is ours.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    assert_eq!(unregister(memory.cast()), CUDA_SUCCESS);
}

#[test]
fn a_child_that_unmaps_registered_memory_can_fork() {
    assert!(Stage::start("grandchild").finish());
}

/// A stop and a fork leave a thread its stack.
#[test]
#[ignore = "a program for its stage"]
fn on_the_stack() {
    context();
    let mut words = [7u8; 3 * PAGE];
    let start = words.as_mut_ptr();
    assert_eq!(register(start, 100), CUDA_ERROR_NOT_SUPPORTED);
    assert_eq!(
        register(start.wrapping_add(2 * PAGE), PAGE),
        CUDA_ERROR_NOT_SUPPORTED
    );
    assert!(!is_pinned(start));
    assert!(std::hint::black_box(words) == [7u8; 3 * PAGE]);
}

#[test]
fn variables_on_the_stack_are_not_registered() {
    assert!(Stage::start("on_the_stack").finish());
}
