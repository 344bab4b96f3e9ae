//! What a pointer points at.
use core::ffi::{c_int, c_void};

use fermata_abi::sys::driver as drv;
use fermata_abi::sys::runtime::{
    cudaMemoryTypeDevice, cudaMemoryTypeHost, cudaMemoryTypeManaged, cudaMemoryTypeUnregistered,
    cudaPointerAttributes,
};

use crate::api::memory::{address, pointer};
use crate::context;
use crate::error::{Error, Result, export, put};

/// The device of memory that belongs to none.
const NO_DEVICE: c_int = -2;

/// Kind, device and both addresses of memory; of memory that CUDA does not know, only that.
fn attributes(at: *const c_void) -> Result<cudaPointerAttributes> {
    let calls = context::ready()?;
    let (mut memory_type, mut managed, mut ordinal) = (0_u32, 0_u32, NO_DEVICE);
    let (mut device, mut host) = (0_u64, core::ptr::null_mut::<c_void>());
    let mut wanted = [
        drv::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        drv::CU_POINTER_ATTRIBUTE_IS_MANAGED,
        drv::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        drv::CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
        drv::CU_POINTER_ATTRIBUTE_HOST_POINTER,
    ];
    let mut places: [*mut c_void; 5] = [
        core::ptr::from_mut(&mut memory_type).cast(),
        core::ptr::from_mut(&mut managed).cast(),
        core::ptr::from_mut(&mut ordinal).cast(),
        core::ptr::from_mut(&mut device).cast(),
        core::ptr::from_mut(&mut host).cast(),
    ];
    let count = wanted.len() as u32;
    // SAFETY: one place of the right size per attribute.
    let known = unsafe {
        calls.cuPointerGetAttributes(count, wanted.as_mut_ptr(), places.as_mut_ptr(), address(at))
    };
    match known {
        Err(Error::INVALID_VALUE) => memory_type = 0,
        other => other?,
    }
    Ok(match memory_type {
        0 => cudaPointerAttributes {
            type_: cudaMemoryTypeUnregistered,
            device: NO_DEVICE,
            devicePointer: core::ptr::null_mut(),
            hostPointer: at.cast_mut(),
            reserved: [0; 8],
        },
        kind => cudaPointerAttributes {
            type_: match kind {
                _ if managed & 1 != 0 => cudaMemoryTypeManaged,
                drv::CU_MEMORYTYPE_HOST => cudaMemoryTypeHost,
                _ => cudaMemoryTypeDevice,
            },
            device: ordinal,
            devicePointer: pointer(device),
            hostPointer: host,
            reserved: [0; 8],
        },
    })
}

export! {
    /// What a pointer points at; memory of the program's own is "unregistered", without an error.
    fn cudaPointerGetAttributes(to: *mut cudaPointerAttributes, at: *const c_void) {
        put(to, attributes(at)?)
    }
}
