//! Exported functions for physical memory and address ranges.

use core::ffi::{c_ulonglong, c_void};
use fermata_abi::op::{Address, MemoryId};

use fermata_abi::sys::driver as sys;

use crate::args::{In, Out};
use crate::frame::entry::driver_api;
use crate::object::physical::GRANULARITY;
use crate::object::session::session;

driver_api! {
    fn cuMemGetAllocationGranularity(
        granularity: Out<usize>,
        prop: In<sys::CUmemAllocationProp>,
        option: sys::CUmemAllocationGranularity_flags,
    ) {
        session()?.devices.get(prop.get()?.location.id)?;
        if option > sys::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        granularity.set(GRANULARITY as usize)
    }

    fn cuMemAddressReserve(
        address: Out<sys::CUdeviceptr>,
        size: usize,
        alignment: usize,
        wanted: sys::CUdeviceptr,
        flags: c_ulonglong,
    ) {
        if flags != 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let start = session()?.physical.reserve(size as u64, alignment as u64, Address::from_raw(wanted))?;
        address.set(start.raw())
    }

    fn cuMemAddressFree(address: sys::CUdeviceptr, size: usize) {
        session()?.physical.free(Address::from_raw(address), size as u64)
    }

    fn cuMemCreate(
        handle: Out<sys::CUmemGenericAllocationHandle>,
        size: usize,
        prop: In<sys::CUmemAllocationProp>,
        flags: c_ulonglong,
    ) {
        if flags != 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let session = session()?;
        handle.set(session.physical.create(&session.devices, size as u64, &prop.get()?)?.raw())
    }

    fn cuMemRelease(handle: sys::CUmemGenericAllocationHandle) {
        session()?.physical.release(MemoryId::from_raw(handle))
    }

    fn cuMemRetainAllocationHandle(handle: Out<sys::CUmemGenericAllocationHandle>, address: *mut c_void) {
        let session = session()?;
        handle.set(session.physical.retain(&session.memory, Address::of(address))?.raw())
    }

    fn cuMemMap(
        address: sys::CUdeviceptr,
        size: usize,
        offset: usize,
        handle: sys::CUmemGenericAllocationHandle,
        flags: c_ulonglong,
    ) {
        if flags != 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let session = session()?;
        let memory = MemoryId::from_raw(handle);
        session.physical.map(&session.memory, Address::from_raw(address), size as u64, offset as u64, memory)
    }

    fn cuMemUnmap(address: sys::CUdeviceptr, size: usize) {
        let session = session()?;
        session.physical.unmap(&session.memory, Address::from_raw(address), size as u64)
    }

    fn cuMemSetAccess(
        address: sys::CUdeviceptr,
        size: usize,
        list: In<sys::CUmemAccessDesc>,
        count: usize,
    ) {
        let session = session()?;
        session.physical.set_access(&session.devices, Address::from_raw(address), size as u64, &list.list(count)?)
    }

    fn cuMemGetAccess(
        flags: Out<c_ulonglong>,
        location: In<sys::CUmemLocation>,
        address: sys::CUdeviceptr,
    ) {
        let location = &location.get()?;
        if location.type_ != sys::CU_MEM_LOCATION_TYPE_DEVICE {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        flags.set(session()?.physical.access(location.id, Address::from_raw(address)).into())
    }

    fn cuMemGetAllocationPropertiesFromHandle(
        prop: Out<sys::CUmemAllocationProp>,
        handle: sys::CUmemGenericAllocationHandle,
    ) {
        let physical = session()?.physical.get(MemoryId::from_raw(handle))?;
        prop.set(sys::CUmemAllocationProp {
            type_: sys::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: physical.handle_types,
            location: sys::CUmemLocation { type_: sys::CU_MEM_LOCATION_TYPE_DEVICE, id: physical.device },
            ..Default::default()
        })
    }
}
