//! Exported functions for mipmapped arrays.

use std::ffi::c_uint;
use std::sync::Arc;

use fermata_abi::sys::driver as cu;

use super::args::{In, Out};
use super::init::driver;
use super::{to_handle, to_pointer};
use crate::context;
use crate::error::{INVALID_HANDLE, INVALID_VALUE, Result};
use crate::mipmap::Mipmap;

pub(super) fn resolve(handle: cu::CUmipmappedArray) -> Result<Arc<Mipmap>> {
    let found = driver()?.mipmaps().get(to_handle(handle));
    found.ok_or(INVALID_HANDLE)
}

api! {
    fn cuMipmappedArrayCreate(
        out: Out<cu::CUmipmappedArray>,
        descriptor: In<cu::CUDA_ARRAY3D_DESCRIPTOR>,
        levels: c_uint,
    ) {
        let context = context::current()?;
        crate::capture::forbid_unsafe()?;
        let descriptor = descriptor.get()?;
        super::array::check_flags(&descriptor)?;
        if out.is_null() {
            return Err(INVALID_VALUE);
        }
        context.device.count_allocation()?;
        let made = Mipmap::create(driver()?, &context, descriptor, levels)?;
        out.set(to_pointer(made.handle))
    }

    fn cuMipmappedArrayGetLevel(out: Out<cu::CUarray>, handle: cu::CUmipmappedArray, level: c_uint) {
        let mipmap = resolve(handle)?;
        let found = mipmap.levels.get(level as usize).ok_or(INVALID_VALUE)?;
        out.set(to_pointer(found.handle))
    }

    fn cuMipmappedArrayDestroy(handle: cu::CUmipmappedArray) {
        crate::capture::forbid_unsafe()?;
        resolve(handle)?;
        context::current()?.synchronize()?;
        Mipmap::destroy(driver()?, to_handle(handle))
    }

    // Sparse arrays, and arrays whose memory is mapped later, are refused where they would be made: of all others these
    // are the wrong questions.

    fn cuArrayGetSparseProperties(properties: Out<cu::CUDA_ARRAY_SPARSE_PROPERTIES>, handle: cu::CUarray) {
        let _ = properties;
        super::array::resolve(handle)?;
        Err(INVALID_VALUE)
    }

    fn cuMipmappedArrayGetSparseProperties(
        properties: Out<cu::CUDA_ARRAY_SPARSE_PROPERTIES>,
        handle: cu::CUmipmappedArray,
    ) {
        let _ = properties;
        resolve(handle)?;
        Err(INVALID_VALUE)
    }

    fn cuArrayGetMemoryRequirements(
        requirements: Out<cu::CUDA_ARRAY_MEMORY_REQUIREMENTS>,
        handle: cu::CUarray,
        device: cu::CUdevice,
    ) {
        let _ = requirements;
        driver()?.device(device)?;
        super::array::resolve(handle)?;
        Err(INVALID_VALUE)
    }

    fn cuMipmappedArrayGetMemoryRequirements(
        requirements: Out<cu::CUDA_ARRAY_MEMORY_REQUIREMENTS>,
        handle: cu::CUmipmappedArray,
        device: cu::CUdevice,
    ) {
        let _ = requirements;
        driver()?.device(device)?;
        resolve(handle)?;
        Err(INVALID_VALUE)
    }
}
