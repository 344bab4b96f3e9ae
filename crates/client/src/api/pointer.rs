//! Exported functions that query attributes of pointers.

use core::ffi::{c_uint, c_void};

use fermata_abi::op::{Address, HostKind, PoolId};
use fermata_abi::sys::driver as sys;

use crate::args::{In, Out};
use crate::frame::entry::driver_api;
use crate::handles::to_pointer;
use crate::object::mirror::{Block, Kind};
use crate::object::session::session;
use crate::result::Result;

driver_api! {
    fn cuPointerGetAttribute(data: Out<c_void>, attribute: sys::CUpointer_attribute, address: sys::CUdeviceptr) {
        let block = session()?.memory.find(Address::from_raw(address)).ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        put_attribute(data, attribute, address, &block)
    }

    fn cuPointerGetAttributes(
        count: c_uint,
        attributes: In<sys::CUpointer_attribute>,
        data: In<*mut c_void>,
        address: sys::CUdeviceptr,
    ) {
        let block = session()?.memory.find(Address::from_raw(address));
        for n in 0..count as usize {
            let (attribute, place) = (attributes.get_at(n)?, data.out_at(n)?);
            // An attribute that the address lacks is left at zero; only the function for a single attribute fails.
            let known = block.as_ref().map(|block| put_attribute(place, attribute, address, block));
            match known {
                Some(Ok(())) => {}
                // Memory that the driver does not know is the host's.
                None if attribute == sys::CU_POINTER_ATTRIBUTE_HOST_POINTER => place.cast().set(address)?,
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
        let known = session()?.memory.find(Address::from_raw(address)).is_some() && !value.is_null();
        // The attribute is accepted and has no effect on copies.
        if known && attribute == sys::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS {
            return Ok(());
        }
        Err(sys::CUDA_ERROR_INVALID_VALUE)
    }
}

fn put_attribute(data: Out<c_void>, attribute: c_uint, address: u64, block: &Block) -> Result {
    let managed = block.kind == Kind::Host(HostKind::Managed);
    let host_visible = block.is_host();
    match attribute {
        sys::CU_POINTER_ATTRIBUTE_CONTEXT => {
            data.cast::<sys::CUcontext>().set(to_pointer(block.context))
        }
        sys::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
            let device = !host_visible || managed;
            let kind = if device {
                sys::CU_MEMORYTYPE_DEVICE
            } else {
                sys::CU_MEMORYTYPE_HOST
            };
            data.cast().set(kind)
        }
        sys::CU_POINTER_ATTRIBUTE_DEVICE_POINTER => data.cast().set(address),
        sys::CU_POINTER_ATTRIBUTE_HOST_POINTER if host_visible => data.cast().set(address),
        sys::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS => data.cast().set(0u32),
        sys::CU_POINTER_ATTRIBUTE_BUFFER_ID => data.cast().set(block.id),
        sys::CU_POINTER_ATTRIBUTE_IS_MANAGED => data.cast().set(u32::from(managed)),
        sys::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => data.cast().set(block.device),
        sys::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => data.cast().set(0u32),
        sys::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => data.cast().set(block.start),
        sys::CU_POINTER_ATTRIBUTE_RANGE_SIZE => data.cast().set(block.size as usize),
        sys::CU_POINTER_ATTRIBUTE_MAPPED => data.cast().set(1u32),
        sys::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => data.cast().set(0u64),
        sys::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE => data.cast().set(0u32),
        sys::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => data
            .cast()
            .set(sys::CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE),
        sys::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => {
            let pool = match block.kind {
                Kind::Pool(pool) | Kind::Graph(pool) | Kind::Imported(pool) => pool,
                _ => PoolId::NULL,
            };
            data.cast().set(pool.raw())
        }
        sys::CU_POINTER_ATTRIBUTE_MAPPING_SIZE => data.cast().set(block.size as usize),
        sys::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => data.cast().set(block.start),
        sys::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => data.cast().set(block.id),
        _ => Err(sys::CUDA_ERROR_INVALID_VALUE),
    }
}

/// Writes what the list form returns for memory that is not CUDA's: zeros of the attribute's size.
fn put_unknown(data: Out<c_void>, attribute: c_uint) -> Result {
    match attribute {
        sys::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => data.cast().set(-2i32),
        sys::CU_POINTER_ATTRIBUTE_MEMORY_TYPE | sys::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => {
            data.cast().set(0u32)
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
        | sys::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => data.cast().set(0u64),
        _ => data.cast().set(0u32),
    }
}
