//! What lies behind a pointer.

use core::ffi::{c_uint, c_void};

use fermata_abi::op::HostKind;
use fermata_abi::sys::driver as sys;

use crate::entry::{Result, array, driver_api, put};
use crate::handles::to_pointer;
use crate::mirror::{Block, Kind};
use crate::session::session;

driver_api! {
    fn cuPointerGetAttribute(data: *mut c_void, attribute: sys::CUpointer_attribute, address: sys::CUdeviceptr) {
        let block = session()?.memory.find(address).ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        put_attribute(data, attribute, address, &block)
    }

    fn cuPointerGetAttributes(
        count: c_uint,
        attributes: *mut sys::CUpointer_attribute,
        data: *mut *mut c_void,
        address: sys::CUdeviceptr,
    ) {
        let block = session()?.memory.find(address);
        let places = array(data, count as usize)?;
        for (&attribute, &place) in array(attributes, count as usize)?.iter().zip(places) {
            // What an address does not have is left at nothing; only the single form refuses.
            let known = block.as_ref().map(|block| put_attribute(place, attribute, address, block));
            match known {
                Some(Ok(())) => {}
                // Memory that the driver does not know is the host's.
                None if attribute == sys::CU_POINTER_ATTRIBUTE_HOST_POINTER => put(place.cast(), address)?,
                _ => put_unknown(place, attribute)?,
            }
        }
        Ok(())
    }

    fn cuPointerSetAttribute(
        value: *const c_void,
        attribute: sys::CUpointer_attribute,
        address: sys::CUdeviceptr,
    ) {
        let known = session()?.memory.find(address).is_some() && !value.is_null();
        // Synchronous copies are what they are here with and without it.
        if known && attribute == sys::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS {
            return Ok(());
        }
        Err(sys::CUDA_ERROR_INVALID_VALUE)
    }
}

/// # Safety
/// `data` is null or has room for the attribute's type.
unsafe fn put_attribute(
    data: *mut c_void,
    attribute: c_uint,
    address: u64,
    block: &Block,
) -> Result {
    let managed = block.kind == Kind::Host(HostKind::Managed);
    let host_visible = block.is_host();
    // SAFETY: the caller's promise, with the type that each attribute has.
    unsafe {
        match attribute {
            sys::CU_POINTER_ATTRIBUTE_CONTEXT => {
                put(data.cast::<sys::CUcontext>(), to_pointer(block.context))
            }
            sys::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
                let device = !host_visible || managed;
                let kind = if device {
                    sys::CU_MEMORYTYPE_DEVICE
                } else {
                    sys::CU_MEMORYTYPE_HOST
                };
                put(data.cast(), kind)
            }
            sys::CU_POINTER_ATTRIBUTE_DEVICE_POINTER => put(data.cast(), address),
            sys::CU_POINTER_ATTRIBUTE_HOST_POINTER if host_visible => put(data.cast(), address),
            sys::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS => put(data.cast(), 0u32),
            sys::CU_POINTER_ATTRIBUTE_BUFFER_ID => put(data.cast(), block.id),
            sys::CU_POINTER_ATTRIBUTE_IS_MANAGED => put(data.cast(), u32::from(managed)),
            sys::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => put(data.cast(), block.device),
            sys::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => put(data.cast(), 0u32),
            sys::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => put(data.cast(), block.start),
            sys::CU_POINTER_ATTRIBUTE_RANGE_SIZE => put(data.cast(), block.size as usize),
            sys::CU_POINTER_ATTRIBUTE_MAPPED => put(data.cast(), 1u32),
            sys::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => put(data.cast(), 0u64),
            sys::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE => put(data.cast(), 0u32),
            sys::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => {
                put(data.cast(), sys::CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE)
            }
            sys::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => put(data.cast(), 0u64),
            sys::CU_POINTER_ATTRIBUTE_MAPPING_SIZE => put(data.cast(), block.size as usize),
            sys::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => put(data.cast(), block.start),
            sys::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => put(data.cast(), block.id),
            _ => Err(sys::CUDA_ERROR_INVALID_VALUE),
        }
    }
}

/// What the list form says of memory that is not ours: zeros of each attribute's size.
///
/// # Safety
/// `data` is null or has room for the attribute's type.
unsafe fn put_unknown(data: *mut c_void, attribute: c_uint) -> Result {
    // SAFETY: the caller's promise, with the size that each attribute has.
    unsafe {
        match attribute {
            sys::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => put(data.cast(), -2i32),
            sys::CU_POINTER_ATTRIBUTE_MEMORY_TYPE | sys::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => {
                put(data.cast(), 0u32)
            }
            sys::CU_POINTER_ATTRIBUTE_CONTEXT
            | sys::CU_POINTER_ATTRIBUTE_DEVICE_POINTER
            | sys::CU_POINTER_ATTRIBUTE_HOST_POINTER
            | sys::CU_POINTER_ATTRIBUTE_BUFFER_ID
            | sys::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
            | sys::CU_POINTER_ATTRIBUTE_RANGE_SIZE
            | sys::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES
            | sys::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
            | sys::CU_POINTER_ATTRIBUTE_MAPPING_SIZE
            | sys::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR
            | sys::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => put(data.cast(), 0u64),
            _ => put(data.cast(), 0u32),
        }
    }
}
