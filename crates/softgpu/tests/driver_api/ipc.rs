//! Events and memory pools for other processes, as far as one process shows it.

use std::ffi::c_void;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::null_mut;

use fermata_abi::sys::driver as cu;
use fermata_softgpu::api::args::{In, Out};
use fermata_softgpu::api::{copy, event, ipc, memset, pool, stream};

use crate::common::{Context, check, cuda};

const BETWEEN: u32 = cu::CU_EVENT_INTERPROCESS | cu::CU_EVENT_DISABLE_TIMING;

fn new_event(flags: u32) -> (cu::CUresult, cu::CUevent) {
    let mut handle = null_mut();
    let code = cuda!(event::cuEventCreate(Out::from(&mut handle), flags));
    (code, handle)
}

#[test]
fn only_events_made_for_it_are_shared_and_only_other_processes_open_them() {
    let _context = Context::new();
    let timed = new_event(cu::CU_EVENT_INTERPROCESS).0;
    assert_eq!(timed, cu::CUDA_ERROR_INVALID_VALUE);
    let mut handle = cu::CUipcEventHandle::default();
    let (_, plain) = new_event(cu::CU_EVENT_DISABLE_TIMING);
    let refused = cuda!(ipc::cuIpcGetEventHandle(Out::from(&mut handle), plain));
    assert_eq!(refused, cu::CUDA_ERROR_INVALID_VALUE);
    let (made, event) = new_event(BETWEEN);
    check(made);
    check(cuda!(event::cuEventQuery(event)));
    check(cuda!(event::cuEventRecord(event, null_mut())));
    check(cuda!(stream::cuStreamWaitEvent(null_mut(), event, 0)));
    check(cuda!(event::cuEventSynchronize(event)));
    check(cuda!(event::cuEventQuery(event)));
    check(cuda!(ipc::cuIpcGetEventHandle(
        Out::from(&mut handle),
        event
    )));
    let mut opened = null_mut();
    let own = cuda!(ipc::cuIpcOpenEventHandle(Out::from(&mut opened), handle));
    assert_eq!(own, cu::CUDA_ERROR_INVALID_CONTEXT);
    let none = cu::CUipcEventHandle::default();
    let none = cuda!(ipc::cuIpcOpenEventHandle(Out::from(&mut opened), none));
    assert_eq!(none, cu::CUDA_ERROR_INVALID_VALUE);
    let mut time = 0.0;
    let elapsed = cuda!(event::cuEventElapsedTime(
        Out::from(&mut time),
        event,
        event
    ));
    assert_eq!(elapsed, cu::CUDA_ERROR_INVALID_HANDLE);
    check(cuda!(event::cuEventDestroy_v2(event)));
}

fn new_pool(handle_types: u32) -> cu::CUmemoryPool {
    let properties = cu::CUmemPoolProps {
        allocType: cu::CU_MEM_ALLOCATION_TYPE_PINNED,
        handleTypes: handle_types,
        location: cu::CUmemLocation {
            type_: cu::CU_MEM_LOCATION_TYPE_DEVICE,
            id: 0,
        },
        ..Default::default()
    };
    let mut handle = null_mut();
    check(cuda!(pool::cuMemPoolCreate(
        Out::from(&mut handle),
        In::from(&properties)
    )));
    handle
}

fn allocate(pool: cu::CUmemoryPool, bytes: usize) -> (cu::CUresult, u64) {
    let mut address = 0;
    let code = cuda!(pool::cuMemAllocFromPoolAsync(
        Out::from(&mut address),
        bytes,
        pool,
        null_mut()
    ));
    (code, address)
}

#[test]
fn an_imported_pool_gives_no_memory_and_only_pools_made_for_it_are_exported() {
    const KIND: u32 = cu::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let _context = Context::new();
    let (own, plain) = (new_pool(KIND), new_pool(0));
    let export = |pool, number: &mut i32| {
        let out: Out<c_void> = crate::common::out((&raw mut *number).cast());
        cuda!(pool::cuMemPoolExportToShareableHandle(out, pool, KIND, 0))
    };
    let mut number = -1;
    assert_eq!(export(plain, &mut number), cu::CUDA_ERROR_INVALID_VALUE);
    check(export(own, &mut number));
    let mut imported = null_mut();
    let given: Out<c_void> = crate::common::out(std::ptr::without_provenance_mut(number as usize));
    check(cuda!(pool::cuMemPoolImportFromShareableHandle(
        Out::from(&mut imported),
        given,
        KIND,
        0
    )));
    // SAFETY: the descriptor was made for this process, which uses it nowhere else.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
    assert_eq!(allocate(imported, 100).0, cu::CUDA_ERROR_INVALID_VALUE);
    let set = cuda!(pool::cuDeviceSetMemPool(0, imported));
    assert_eq!(set, cu::CUDA_ERROR_INVALID_VALUE);
    let pointer = |address, data: &mut cu::CUmemPoolPtrExportData| {
        cuda!(pool::cuMemPoolExportPointer(Out::from(data), address))
    };
    let mut data = cu::CUmemPoolPtrExportData::default();
    let (_, of_plain) = allocate(plain, 100);
    assert_eq!(pointer(of_plain, &mut data), cu::CUDA_ERROR_INVALID_VALUE);
    // Small memory shares its pages with no other.
    let addresses = [100, 100, 5 << 20].map(|bytes| {
        let (code, address) = allocate(own, bytes);
        check(code);
        check(cuda!(memset::cuMemsetD8Async(
            address,
            bytes as u8,
            bytes,
            null_mut()
        )));
        check(pointer(address, &mut data));
        let inside = pointer(address + 16, &mut data);
        assert_eq!(inside, cu::CUDA_ERROR_INVALID_VALUE);
        let mut byte = 1u8;
        let to: Out<c_void> = crate::common::out((&raw mut byte).cast());
        check(cuda!(copy::cuMemcpyDtoH_v2(
            to,
            address + bytes as u64 - 1,
            1
        )));
        assert_eq!(byte, bytes as u8);
        address
    });
    let mut address = 0;
    let import = |pool, data: &cu::CUmemPoolPtrExportData, address: &mut u64| {
        cuda!(pool::cuMemPoolImportPointer(
            Out::from(address),
            pool,
            In::from(data)
        ))
    };
    let same = import(imported, &data, &mut address);
    assert_eq!(same, cu::CUDA_ERROR_INVALID_CONTEXT);
    let not_imported = import(own, &data, &mut address);
    assert_eq!(not_imported, cu::CUDA_ERROR_INVALID_VALUE);
    for address in addresses {
        check(cuda!(pool::cuMemFreeAsync(address, null_mut())));
    }
    check(cuda!(stream::cuStreamSynchronize(null_mut())));
    for pool in [own, plain, imported] {
        check(cuda!(pool::cuMemPoolDestroy(pool)));
    }
}
