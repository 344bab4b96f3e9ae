//! Exported functions that query attributes of pointers.

use std::ffi::{c_int, c_uint, c_void};

use fermata_abi::sys::driver as cu;

use super::args::{In, Out};
use super::init::driver;
use super::memory::owner;
use crate::context;
use crate::error::{INVALID_VALUE, Result};
use crate::memory::{Kind, Protection, Range};

/// Writes an attribute of known memory.
fn answer(
    out: Out<c_void>,
    attribute: cu::CUpointer_attribute,
    address: u64,
    range: &Range,
) -> Result {
    match attribute {
        cu::CU_POINTER_ATTRIBUTE_CONTEXT => out.cast().set(owner(range)),
        cu::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => out.cast().set(if range.is_device() {
            cu::CU_MEMORYTYPE_DEVICE
        } else {
            cu::CU_MEMORYTYPE_HOST
        }),
        cu::CU_POINTER_ATTRIBUTE_DEVICE_POINTER => out.cast().set(address),
        cu::CU_POINTER_ATTRIBUTE_HOST_POINTER => match range.visible_to_host() {
            true => out.cast().set(address),
            false => Err(INVALID_VALUE),
        },
        cu::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS => out.cast().set(c_uint::from(range.sync_memops)),
        cu::CU_POINTER_ATTRIBUTE_BUFFER_ID => out.cast().set(range.id),
        cu::CU_POINTER_ATTRIBUTE_IS_MANAGED => out
            .cast()
            .set(c_uint::from(matches!(range.kind, Kind::Managed { .. }))),
        cu::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => out.cast().set(range.device as c_int),
        cu::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => out.cast().set(0 as c_uint),
        cu::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => out.cast().set(range.base),
        cu::CU_POINTER_ATTRIBUTE_RANGE_SIZE => out.cast().set(range.size as usize),
        cu::CU_POINTER_ATTRIBUTE_MAPPED => out.cast().set(1 as c_uint),
        cu::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => {
            let types = match &range.kind {
                Kind::Mapped { physical, .. } => u64::from(physical.handle_types),
                _ => 0,
            };
            out.cast().set(types)
        }
        cu::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE => out.cast().set(0 as c_uint),
        cu::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => out.cast().set(access_flags(range.protection())),
        cu::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => {
            let pool = match range.kind {
                Kind::Pool { pool } => pool,
                _ => 0,
            };
            out.cast().set(super::to_pointer::<c_void>(pool))
        }
        cu::CU_POINTER_ATTRIBUTE_MAPPING_SIZE => out.cast().set(range.footprint as usize),
        cu::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => out.cast().set(range.base),
        cu::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => out.cast().set(range.id),
        cu::CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => out.cast().set(0 as c_uint),
        _ => Err(INVALID_VALUE),
    }
}

/// Protection in CUDA's flags.
pub fn access_flags(protection: Protection) -> u64 {
    u64::from(match protection {
        Protection::None => cu::CU_MEM_ACCESS_FLAGS_PROT_NONE,
        Protection::Read => cu::CU_MEM_ACCESS_FLAGS_PROT_READ,
        Protection::ReadWrite => cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    })
}

/// What `cuPointerGetAttributes` writes for memory that the driver does not know.
fn answer_unknown(out: Out<c_void>, attribute: cu::CUpointer_attribute) -> Result {
    match attribute {
        cu::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => out.cast().set(-2 as c_int),
        cu::CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        | cu::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
        | cu::CU_POINTER_ATTRIBUTE_IS_MANAGED
        | cu::CU_POINTER_ATTRIBUTE_MAPPED
        | cu::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
        | cu::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
        | cu::CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => out.cast().set(0 as c_uint),
        _ => out.cast().set(0u64),
    }
}

api! {
    fn cuPointerGetAttribute(
        out: Out<c_void>,
        attribute: cu::CUpointer_attribute,
        address: cu::CUdeviceptr,
    ) {
        context::current_any()?;
        let range = driver()?.memory.find(address).ok_or(INVALID_VALUE)?;
        answer(out, attribute, address, &range)
    }

    fn cuPointerGetAttributes(
        count: c_uint,
        attributes: In<cu::CUpointer_attribute>,
        out: In<*mut c_void>,
        address: cu::CUdeviceptr,
    ) {
        context::current_any()?;
        let range = driver()?.memory.find(address);
        for index in 0..count as usize {
            let (attribute, out) = (attributes.get_at(index)?, out.out_at(index)?);
            match &range {
                Some(range) if answer(out, attribute, address, range).is_ok() => {}
                // Memory that the driver does not know is the host's.
                None if attribute == cu::CU_POINTER_ATTRIBUTE_HOST_POINTER => out.cast().set(address)?,
                _ => answer_unknown(out, attribute)?,
            }
        }
        Ok(())
    }

    fn cuPointerSetAttribute(
        value: In<c_void>,
        attribute: cu::CUpointer_attribute,
        address: cu::CUdeviceptr,
    ) {
        context::current_any()?;
        if attribute != cu::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS {
            return Err(INVALID_VALUE);
        }
        let on: In<c_uint> = value.cast();
        driver()?.memory.set_sync_memops(address, on.get()? != 0)
    }
}
