//! Exported functions for virtual memory management.

use std::ffi::{c_int, c_ulonglong, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::Arc;

use fermata_abi::sys::driver as cu;
use parking_lot::Mutex;

use super::args::{In, Out};
use super::init::driver;
use super::pointer::access_flags;
use crate::capture;
use crate::error::{INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::memory::{GRANULARITY, Kind, Physical, Protection};

/// Device number of host memory.
const HOST: i32 = -1;
/// Held while a handle of physical memory is given out or released: one that is given out again must not be removed.
static HANDLES: Mutex<()> = Mutex::new(());

/// The device a location names, or -1 for host memory.
pub fn device_of(location: &cu::CUmemLocation) -> Result<i32> {
    match location.type_ {
        cu::CU_MEM_LOCATION_TYPE_DEVICE => Ok(driver()?.device(location.id)?.ordinal),
        cu::CU_MEM_LOCATION_TYPE_HOST
        | cu::CU_MEM_LOCATION_TYPE_HOST_NUMA
        | cu::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Ok(HOST),
        _ => Err(INVALID_VALUE),
    }
}

fn check_properties(properties: &cu::CUmemAllocationProp) -> Result<i32> {
    if properties.type_ != cu::CU_MEM_ALLOCATION_TYPE_PINNED {
        return Err(INVALID_VALUE);
    }
    if properties.requestedHandleTypes & !cu::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR != 0 {
        return Err(NOT_SUPPORTED);
    }
    device_of(&properties.location)
}

fn physical(handle: cu::CUmemGenericAllocationHandle) -> Result<Arc<Physical>> {
    driver()?.physical.get(handle).ok_or(INVALID_VALUE)
}

/// Gives out the handle of physical memory, once more if it was given out before.
fn publish(physical: Arc<Physical>) -> Result<u64> {
    let _alone = HANDLES.lock();
    let handle = physical.handle;
    physical.retain();
    driver()?.physical.insert(handle, physical);
    Ok(handle)
}

/// CUDA's access flags as a protection.
pub fn protection(flags: cu::CUmemAccess_flags) -> Result<Protection> {
    match flags {
        cu::CU_MEM_ACCESS_FLAGS_PROT_NONE => Ok(Protection::None),
        cu::CU_MEM_ACCESS_FLAGS_PROT_READ => Ok(Protection::Read),
        cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE => Ok(Protection::ReadWrite),
        _ => Err(INVALID_VALUE),
    }
}

api! {
    fn cuMemGetAllocationGranularity(
        granularity: Out<usize>,
        properties: In<cu::CUmemAllocationProp>,
        option: cu::CUmemAllocationGranularity_flags,
    ) {
        check_properties(&properties.get()?)?;
        if option > cu::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED {
            return Err(INVALID_VALUE);
        }
        granularity.set(GRANULARITY as usize)
    }

    /// The requested address is granted if it is free.
    fn cuMemAddressReserve(
        out: Out<cu::CUdeviceptr>,
        size: usize,
        alignment: usize,
        wish: cu::CUdeviceptr,
        flags: c_ulonglong,
    ) {
        if out.is_null() || flags != 0 {
            return Err(INVALID_VALUE);
        }
        out.set(driver()?.memory.reserve(size as u64, alignment as u64, wish)?)
    }

    fn cuMemAddressFree(address: cu::CUdeviceptr, size: usize) {
        driver()?.memory.unreserve(address, size as u64)
    }

    fn cuMemCreate(
        out: Out<cu::CUmemGenericAllocationHandle>,
        size: usize,
        properties: In<cu::CUmemAllocationProp>,
        flags: c_ulonglong,
    ) {
        let properties = properties.get()?;
        let device = check_properties(&properties)?;
        let size = size as u64;
        if out.is_null() || flags != 0 || size == 0 || !size.is_multiple_of(GRANULARITY) {
            return Err(INVALID_VALUE);
        }
        let charge = match device {
            HOST => None,
            ordinal => {
                let device = driver()?.device(ordinal)?;
                device.count_allocation()?;
                Some(device.charge(size)?)
            }
        };
        let (location, types) = (properties.location.type_, properties.requestedHandleTypes);
        out.set(publish(Physical::create(size, device, location, types, charge)?)?)
    }

    /// Mappings keep the memory alive.
    fn cuMemRelease(handle: cu::CUmemGenericAllocationHandle) {
        let _alone = HANDLES.lock();
        let physical = physical(handle)?;
        if physical.release() == 0 {
            driver()?.physical.remove(handle);
        }
        Ok(())
    }

    fn cuMemMap(
        address: cu::CUdeviceptr,
        size: usize,
        offset: usize,
        handle: cu::CUmemGenericAllocationHandle,
        flags: c_ulonglong,
    ) {
        let physical = physical(handle)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        // Other drivers map whole allocations only.
        if offset != 0 || size as u64 != physical.size {
            return Err(NOT_SUPPORTED);
        }
        driver()?.memory.map(address, size as u64, 0, physical)
    }

    fn cuMemUnmap(address: cu::CUdeviceptr, size: usize) {
        capture::forbid_unsafe()?;
        driver()?.memory.unmap(address, size as u64)
    }

    fn cuMemSetAccess(
        address: cu::CUdeviceptr,
        size: usize,
        access: In<cu::CUmemAccessDesc>,
        count: usize,
    ) {
        if count == 0 {
            return Err(INVALID_VALUE);
        }
        let access = access.list(count)?;
        let checked = access.iter().map(|one| Ok((device_of(&one.location)?, protection(one.flags)?)));
        for (device, protection) in checked.collect::<Result<Vec<_>>>()? {
            driver()?.memory.set_access(address, size as u64, device, protection)?;
        }
        Ok(())
    }

    fn cuMemGetAccess(
        flags: Out<c_ulonglong>,
        location: In<cu::CUmemLocation>,
        address: cu::CUdeviceptr,
    ) {
        let device = device_of(&location.get()?)?;
        flags.set(access_flags(driver()?.memory.access(address, device)?))
    }

    fn cuMemExportToShareableHandle(
        out: Out<c_void>,
        handle: cu::CUmemGenericAllocationHandle,
        kind: cu::CUmemAllocationHandleType,
        flags: c_ulonglong,
    ) {
        let physical = physical(handle)?;
        let posix = kind == cu::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        if out.is_null() || flags != 0 || !posix || physical.handle_types & kind == 0 {
            return Err(INVALID_VALUE);
        }
        out.cast::<c_int>().set(physical.export()?.into_raw_fd())
    }

    /// The descriptor stays the caller's. Imported memory cannot be exported again.
    fn cuMemImportFromShareableHandle(
        out: Out<cu::CUmemGenericAllocationHandle>,
        descriptor: Out<c_void>,
        kind: cu::CUmemAllocationHandleType,
    ) {
        let number = c_int::try_from(descriptor.as_ptr().addr()).map_err(|_| INVALID_VALUE)?;
        if out.is_null() || kind != cu::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || number < 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the descriptor is the caller's and open during the call, as documented.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        let physical = Physical::import(file, 0)?;
        if physical.device >= driver()?.devices.len() as i32 {
            return Err(INVALID_DEVICE);
        }
        out.set(publish(physical)?)
    }

    fn cuMemGetAllocationPropertiesFromHandle(
        out: Out<cu::CUmemAllocationProp>,
        handle: cu::CUmemGenericAllocationHandle,
    ) {
        let physical = physical(handle)?;
        let location = cu::CUmemLocation { type_: physical.location, id: physical.device.max(0) };
        out.set(cu::CUmemAllocationProp {
            type_: cu::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: physical.handle_types,
            location,
            ..Default::default()
        })
    }

    fn cuMemRetainAllocationHandle(out: Out<cu::CUmemGenericAllocationHandle>, address: Out<c_void>) {
        let range = driver()?.memory.find(address.as_ptr().addr() as u64).ok_or(INVALID_VALUE)?;
        let Kind::Mapped { physical, .. } = range.kind else { return Err(INVALID_VALUE) };
        out.set(publish(physical)?)
    }
}
