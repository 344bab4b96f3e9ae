//! Virtual memory management and pools.

use std::ffi::c_void;
use std::os::fd::FromRawFd;
use std::ptr::null_mut;

use fermata_abi::sys::driver as cu;
use fermata_softgpu::api::args::{In, Out};
use fermata_softgpu::api::{memory, memset, pointer, stream, vmm};

use crate::common::{Context, check, cuda};

const UNIT: usize = 2 << 20;

fn properties() -> cu::CUmemAllocationProp {
    cu::CUmemAllocationProp {
        type_: cu::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: cu::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        location: cu::CUmemLocation {
            type_: cu::CU_MEM_LOCATION_TYPE_DEVICE,
            id: 0,
        },
        ..Default::default()
    }
}

fn create(bytes: usize) -> u64 {
    let mut handle = 0;
    check(cuda!(vmm::cuMemCreate(
        Out::from(&mut handle),
        bytes,
        In::from(&properties()),
        0
    )));
    handle
}

fn reserve(bytes: usize, wish: u64) -> u64 {
    let mut address = 0;
    check(cuda!(vmm::cuMemAddressReserve(
        Out::from(&mut address),
        bytes,
        0,
        wish,
        0
    )));
    address
}

fn set_access(address: u64, bytes: usize, flags: u32) -> cu::CUresult {
    let location = cu::CUmemLocation {
        type_: cu::CU_MEM_LOCATION_TYPE_DEVICE,
        id: 0,
    };
    let access = cu::CUmemAccessDesc { location, flags };
    cuda!(vmm::cuMemSetAccess(address, bytes, In::from(&access), 1))
}

#[test]
fn a_large_reservation_gets_the_address_it_wishes_for() {
    let context = Context::new();
    let wish = 0x3000_0000_0000;
    let all = 4usize << 40;
    assert_eq!(reserve(all, wish), wish);
    assert_ne!(
        reserve(UNIT, wish),
        wish,
        "taken addresses are not given twice"
    );
    let handle = create(UNIT);
    let at = wish + (1 << 30);
    check(cuda!(vmm::cuMemMap(at, UNIT, 0, handle, 0)));
    assert_eq!(
        cuda!(vmm::cuMemMap(at, UNIT, 0, handle, 0)),
        cu::CUDA_ERROR_INVALID_VALUE
    );
    check(set_access(at, UNIT, cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    check(cuda!(memset::cuMemsetD32_v2(at, 42, UNIT / 4)));
    assert_eq!(context.download::<u32>(at + UNIT as u64 - 4, 1), [42]);
    assert_eq!(
        cuda!(vmm::cuMemAddressFree(wish, all)),
        cu::CUDA_ERROR_INVALID_VALUE
    );
    check(cuda!(vmm::cuMemUnmap(at, UNIT)));
    check(cuda!(vmm::cuMemRelease(handle)));
    check(cuda!(vmm::cuMemAddressFree(wish, all)));
}

#[test]
fn memory_can_be_mapped_twice_exported_and_outlives_its_handle() {
    let context = Context::new();
    let address = reserve(2 * UNIT, 0);
    let (first, second) = (address, address + UNIT as u64);
    let handle = create(UNIT);
    let mut descriptor = -1i32;
    let out: Out<c_void> = crate::common::out((&raw mut descriptor).cast());
    let posix = cu::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    check(cuda!(vmm::cuMemExportToShareableHandle(
        out, handle, posix, 0
    )));
    let mut imported = 0;
    let number = crate::common::out(std::ptr::without_provenance_mut(descriptor as usize));
    check(cuda!(vmm::cuMemImportFromShareableHandle(
        Out::from(&mut imported),
        number,
        posix
    )));
    // SAFETY: the descriptor was made for this test and is closed once.
    drop(unsafe { std::os::fd::OwnedFd::from_raw_fd(descriptor) });
    check(cuda!(vmm::cuMemMap(first, UNIT, 0, handle, 0)));
    check(cuda!(vmm::cuMemMap(second, UNIT, 0, imported, 0)));
    check(cuda!(vmm::cuMemRelease(handle)));
    check(cuda!(vmm::cuMemRelease(imported)));
    check(set_access(
        address,
        2 * UNIT,
        cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    ));
    check(cuda!(memset::cuMemsetD8_v2(first, 7, 16)));
    assert_eq!(context.download::<u8>(second, 16), [7; 16]);
    let mut retained = 0;
    let inside = crate::common::out(std::ptr::without_provenance_mut(first as usize + 5));
    check(cuda!(vmm::cuMemRetainAllocationHandle(
        Out::from(&mut retained),
        inside
    )));
    assert_eq!(retained, handle, "the handle it was made under");
    let mut told = cu::CUmemAllocationProp::default();
    check(cuda!(vmm::cuMemGetAllocationPropertiesFromHandle(
        Out::from(&mut told),
        retained
    )));
    assert_eq!((told.location.id, told.requestedHandleTypes), (0, posix));
    check(cuda!(vmm::cuMemRelease(retained)));
    check(cuda!(vmm::cuMemUnmap(address, 2 * UNIT)));
    check(cuda!(vmm::cuMemAddressFree(address, 2 * UNIT)));
}

#[test]
fn protection_holds_for_copies_too() {
    let context = Context::new();
    let address = reserve(UNIT, 0);
    check(cuda!(vmm::cuMemMap(address, UNIT, 0, create(UNIT), 0)));
    let fill = || cuda!(memset::cuMemsetD8_v2(address, 1, 8));
    assert_eq!(fill(), cu::CUDA_ERROR_INVALID_VALUE);
    check(set_access(
        address,
        UNIT,
        cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    ));
    check(fill());
    check(cuda!(stream::cuStreamSynchronize(null_mut())));
    check(set_access(address, UNIT, cu::CU_MEM_ACCESS_FLAGS_PROT_READ));
    assert_eq!(fill(), cu::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(context.download::<u8>(address, 8), [1; 8]);
    let mut flags = 0;
    let location = cu::CUmemLocation {
        type_: cu::CU_MEM_LOCATION_TYPE_DEVICE,
        id: 0,
    };
    check(cuda!(vmm::cuMemGetAccess(
        Out::from(&mut flags),
        In::from(&location),
        address
    )));
    assert_eq!(flags, u64::from(cu::CU_MEM_ACCESS_FLAGS_PROT_READ));
}

#[test]
fn pointers_tell_what_they_point_to() {
    let context = Context::new();
    let address = context.allocate(1000);
    let kind = |address: u64| {
        let mut kind = 0u32;
        let out: Out<c_void> = crate::common::out((&raw mut kind).cast());
        let code = cuda!(pointer::cuPointerGetAttribute(
            out,
            cu::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            address
        ));
        (code, kind)
    };
    assert_eq!(
        kind(address + 999),
        (cu::CUDA_SUCCESS, cu::CU_MEMORYTYPE_DEVICE)
    );
    let local = 0u8;
    assert_eq!(
        kind((&raw const local).addr() as u64).0,
        cu::CUDA_ERROR_INVALID_VALUE
    );
    let mut host = vec![0u8; 8192];
    let pointer: Out<c_void> = crate::common::out(host.as_mut_ptr().cast());
    check(cuda!(memory::cuMemHostRegister_v2(pointer, 8192, 0)));
    assert_eq!(
        kind(host.as_ptr().addr() as u64 + 1),
        (cu::CUDA_SUCCESS, cu::CU_MEMORYTYPE_HOST)
    );
    let again = cuda!(memory::cuMemHostRegister_v2(pointer, 10, 0));
    assert_eq!(again, cu::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    check(cuda!(memory::cuMemHostUnregister(pointer)));
    let gone = cuda!(memory::cuMemHostUnregister(pointer));
    assert_eq!(gone, cu::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    let (mut base, mut size) = (0, 0);
    let range = cuda!(memory::cuMemGetAddressRange_v2(
        Out::from(&mut base),
        Out::from(&mut size),
        address + 5
    ));
    check(range);
    assert_eq!((base, size), (address, 1000));
}

#[test]
fn managed_memory_is_the_programs_and_the_devices() {
    let context = Context::new();
    let mut address = 0;
    check(cuda!(memory::cuMemAllocManaged(
        Out::from(&mut address),
        4096,
        cu::CU_MEM_ATTACH_GLOBAL
    )));
    let word = std::ptr::with_exposed_provenance_mut::<u32>(address as usize);
    // SAFETY: managed memory of 4096 bytes that nothing else uses now.
    unsafe { word.write(5) };
    let kernel = context.load(crate::common::COUNT).function(c"count");
    let params: [&[u8]; 4] = [
        &address.to_ne_bytes(),
        &1u32.to_ne_bytes(),
        &3u32.to_ne_bytes(),
        &2u32.to_ne_bytes(),
    ];
    kernel.launch([1, 1, 1], [32, 1, 1], 0, null_mut(), &params);
    check(cuda!(stream::cuStreamSynchronize(null_mut())));
    // SAFETY: the kernel has ended.
    assert_eq!(unsafe { word.read() }, 11);
    check(cuda!(memory::cuMemFree_v2(address)));
}
