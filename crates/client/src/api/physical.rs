//! Physical memory and address ranges.

use core::ffi::{c_ulonglong, c_void};

use fermata_abi::sys::driver as sys;

use crate::entry::{array, driver_api, get, put};
use crate::physical::GRANULARITY;
use crate::session::session;

driver_api! {
    fn cuMemGetAllocationGranularity(
        granularity: *mut usize,
        prop: *const sys::CUmemAllocationProp,
        option: sys::CUmemAllocationGranularity_flags,
    ) {
        session()?.devices.get(get(prop)?.location.id)?;
        if option > sys::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        put(granularity, GRANULARITY as usize)
    }

    fn cuMemAddressReserve(
        address: *mut sys::CUdeviceptr,
        size: usize,
        alignment: usize,
        wanted: sys::CUdeviceptr,
        flags: c_ulonglong,
    ) {
        if flags != 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        put(address, session()?.physical.reserve(size as u64, alignment as u64, wanted)?)
    }

    fn cuMemAddressFree(address: sys::CUdeviceptr, size: usize) {
        session()?.physical.free(address, size as u64)
    }

    fn cuMemCreate(
        handle: *mut sys::CUmemGenericAllocationHandle,
        size: usize,
        prop: *const sys::CUmemAllocationProp,
        flags: c_ulonglong,
    ) {
        if flags != 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let session = session()?;
        put(handle, session.physical.create(session, size as u64, get(prop)?)?)
    }

    fn cuMemRelease(handle: sys::CUmemGenericAllocationHandle) {
        session()?.physical.release(handle)
    }

    fn cuMemRetainAllocationHandle(handle: *mut sys::CUmemGenericAllocationHandle, address: *mut c_void) {
        let session = session()?;
        put(handle, session.physical.retain(session, address.addr() as u64)?)
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
        session.physical.map(session, address, size as u64, offset as u64, handle)
    }

    fn cuMemUnmap(address: sys::CUdeviceptr, size: usize) {
        let session = session()?;
        session.physical.unmap(session, address, size as u64)
    }

    fn cuMemSetAccess(
        address: sys::CUdeviceptr,
        size: usize,
        list: *const sys::CUmemAccessDesc,
        count: usize,
    ) {
        let session = session()?;
        session.physical.set_access(session, address, size as u64, array(list, count)?)
    }

    fn cuMemGetAccess(
        flags: *mut c_ulonglong,
        location: *const sys::CUmemLocation,
        address: sys::CUdeviceptr,
    ) {
        let location = get(location)?;
        if location.type_ != sys::CU_MEM_LOCATION_TYPE_DEVICE {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        put(flags, session()?.physical.access(location.id, address).into())
    }

    fn cuMemGetAllocationPropertiesFromHandle(
        prop: *mut sys::CUmemAllocationProp,
        handle: sys::CUmemGenericAllocationHandle,
    ) {
        let physical = session()?.physical.get(handle)?;
        put(prop, sys::CUmemAllocationProp {
            type_: sys::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: physical.handle_types,
            location: sys::CUmemLocation { type_: sys::CU_MEM_LOCATION_TYPE_DEVICE, id: physical.device },
            ..Default::default()
        })
    }
}
