//! Physical memory and its handles, with a worker that the test plays.

#![allow(clippy::unwrap_used)]

#[macro_use]
#[allow(dead_code)]
mod support;

use core::ffi::{c_int, c_void};

use fermata_abi::sys::driver::*;
use fermata_client as _;
use support::Stage;
use support::driver::{cuCtxCreate_v2, cuInit, cuMemAlloc_v2};

unsafe extern "C" {
    fn cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle,
        size: usize,
        prop: *const CUmemAllocationProp,
        flags: u64,
    ) -> CUresult;
    fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult;
    fn cuMemExportToShareableHandle(
        shareable: *mut c_void,
        handle: CUmemGenericAllocationHandle,
        kind: CUmemAllocationHandleType,
        flags: u64,
    ) -> CUresult;
    fn cuMemImportFromShareableHandle(
        handle: *mut CUmemGenericAllocationHandle,
        shareable: *mut c_void,
        kind: CUmemAllocationHandleType,
    ) -> CUresult;
}

/// Bytes of the memory.
const SIZE: usize = 2 << 20;

/// Memory on the device that can be shared as `kind`.
fn create(kind: CUmemAllocationHandleType) -> CUmemGenericAllocationHandle {
    let prop = CUmemAllocationProp {
        type_: CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: kind,
        location: CUmemLocation {
            type_: CU_MEM_LOCATION_TYPE_DEVICE,
            id: 0,
        },
        ..Default::default()
    };
    let mut memory = 0;
    ok!(cuMemCreate(&mut memory, SIZE, &prop, 0));
    memory
}

fn context() {
    let mut context = std::ptr::null_mut();
    ok!(cuInit(0));
    ok!(cuCtxCreate_v2(&mut context, 0, 0));
}

#[test]
#[ignore = "a program for its stage"]
fn shares() {
    context();
    let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let memory = create(kind);
    let mut descriptor: c_int = -1;
    let to = std::ptr::from_mut(&mut descriptor).cast();
    ok!(cuMemExportToShareableHandle(to, memory, kind, 0));
    let import = |descriptor: c_int, found: &mut CUmemGenericAllocationHandle| {
        let given = descriptor as usize as *mut c_void;
        // SAFETY: the handle has room; the descriptor is only looked at.
        unsafe { cuMemImportFromShareableHandle(found, given, kind) }
    };
    let mut found = 0;
    assert_eq!(import(descriptor, &mut found), CUDA_SUCCESS);
    assert_eq!(found, memory);
    // Held twice now, and gone after the second release.
    ok!(cuMemRelease(found));
    assert_eq!(import(descriptor, &mut found), CUDA_SUCCESS);
    ok!(cuMemRelease(memory));
    ok!(cuMemRelease(memory));
    assert_eq!(import(descriptor, &mut found), CUDA_ERROR_INVALID_VALUE);
    // Neither standard input nor a number that is no descriptor is memory.
    for other in [0, 9999, -1] {
        assert_eq!(import(other, &mut found), CUDA_ERROR_INVALID_VALUE);
    }
}

#[test]
fn memory_is_found_again_by_its_descriptor() {
    let stage = Stage::start("shares");
    let device = stage.device.clone();
    assert!(stage.finish());
    assert_eq!(device.lock().unwrap().released, 1);
}

unsafe extern "C" {
    fn cuMemAddressReserve(
        address: *mut CUdeviceptr,
        size: usize,
        align: usize,
        wanted: CUdeviceptr,
        flags: u64,
    ) -> CUresult;
    fn cuMemMap(
        address: CUdeviceptr,
        size: usize,
        offset: usize,
        handle: CUmemGenericAllocationHandle,
        flags: u64,
    ) -> CUresult;
    fn cuPointerGetAttribute(
        data: *mut c_void,
        attribute: CUpointer_attribute,
        address: CUdeviceptr,
    ) -> CUresult;
}

/// `CU_POINTER_ATTRIBUTE_BUFFER_ID` of what lies at an address.
fn buffer_id(address: CUdeviceptr) -> u64 {
    let mut id = 0u64;
    let to = std::ptr::from_mut(&mut id).cast();
    ok!(cuPointerGetAttribute(
        to,
        CU_POINTER_ATTRIBUTE_BUFFER_ID,
        address
    ));
    id
}

#[test]
#[ignore = "a program for its stage"]
fn identifies() {
    context();
    let memory = create(CU_MEM_HANDLE_TYPE_NONE);
    let mut start = 0;
    ok!(cuMemAddressReserve(&mut start, 2 * SIZE, 0, 0, 0));
    ok!(cuMemMap(start, SIZE, 0, memory, 0));
    ok!(cuMemMap(start + SIZE as u64, SIZE, 0, memory, 0));
    let mapped = buffer_id(start);
    assert_eq!(buffer_id(start + SIZE as u64), mapped);
    // More than the number of the memory's handle, which allocations are not counted up to in step with.
    for _ in 0..memory + 16 {
        let mut address = 0;
        ok!(cuMemAlloc_v2(&mut address, 1));
        assert_ne!(buffer_id(address), mapped);
    }
}

/// Communication libraries keep registrations of memory by this number.
#[test]
fn no_allocation_has_the_buffer_id_of_mapped_memory() {
    assert!(Stage::start("identifies").finish());
}

unsafe extern "C" {
    fn cuMemUnmap(address: CUdeviceptr, size: usize) -> CUresult;
    fn cuMemRetainAllocationHandle(
        handle: *mut CUmemGenericAllocationHandle,
        address: *mut c_void,
    ) -> CUresult;
}

#[test]
#[ignore = "a program for its stage"]
fn retains() {
    context();
    let memory = create(CU_MEM_HANDLE_TYPE_NONE);
    let mut start = 0;
    ok!(cuMemAddressReserve(&mut start, 2 * SIZE, 0, 0, 0));
    ok!(cuMemMap(start, SIZE, 0, memory, 0));
    ok!(cuMemRelease(memory));
    // SAFETY: the handle is only looked up.
    let again = unsafe { cuMemMap(start + SIZE as u64, SIZE, 0, memory, 0) };
    assert_eq!(again, CUDA_ERROR_INVALID_VALUE);
    // SAFETY: as above.
    assert_eq!(unsafe { cuMemRelease(memory) }, CUDA_ERROR_INVALID_VALUE);
    let retain = |found: &mut CUmemGenericAllocationHandle| {
        // SAFETY: the handle has room; the address is only looked up.
        unsafe { cuMemRetainAllocationHandle(found, start as usize as *mut c_void) }
    };
    let mut found = 0;
    assert_eq!(retain(&mut found), CUDA_SUCCESS);
    assert_eq!(found, memory);
    ok!(cuMemMap(start + SIZE as u64, SIZE, 0, found, 0));
    ok!(cuMemRelease(found));
    ok!(cuMemUnmap(start, SIZE));
    assert_eq!(retain(&mut found), CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemUnmap(start + SIZE as u64, SIZE));
}

#[test]
fn mapped_memory_gives_its_handle_again_after_that_was_released() {
    let stage = Stage::start("retains");
    let device = stage.device.clone();
    assert!(stage.finish());
    assert_eq!(device.lock().unwrap().released, 1);
}
