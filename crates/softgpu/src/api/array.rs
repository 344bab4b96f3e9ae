//! Exported functions for arrays.

use fermata_abi::sys::driver as cu;

use super::args::{In, Out};
use super::init::driver;
use super::{to_handle, to_pointer};
use crate::array::Array;
use crate::context;
use crate::error::{INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, Result};

fn create(out: Out<cu::CUarray>, descriptor: cu::CUDA_ARRAY3D_DESCRIPTOR) -> Result {
    let context = context::current()?;
    crate::capture::forbid_unsafe()?;
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    check_flags(&descriptor)?;
    context.device.count_allocation()?;
    out.set(to_pointer(
        Array::create(driver()?, &context, descriptor)?.handle,
    ))
}

/// There are no arrays whose memory the program maps.
pub(super) fn check_flags(descriptor: &cu::CUDA_ARRAY3D_DESCRIPTOR) -> Result {
    if descriptor.Flags & (cu::CUDA_ARRAY3D_SPARSE | cu::CUDA_ARRAY3D_DEFERRED_MAPPING) != 0 {
        return Err(NOT_SUPPORTED);
    }
    Ok(())
}

pub(super) fn resolve(handle: cu::CUarray) -> Result<std::sync::Arc<Array>> {
    driver()?
        .arrays()
        .get(to_handle(handle))
        .ok_or(INVALID_HANDLE)
}

api! {
    fn cuArrayCreate_v2(out: Out<cu::CUarray>, descriptor: In<cu::CUDA_ARRAY_DESCRIPTOR>) {
        let flat = descriptor.get()?;
        create(out, cu::CUDA_ARRAY3D_DESCRIPTOR {
            Width: flat.Width,
            Height: flat.Height,
            Depth: 0,
            Format: flat.Format,
            NumChannels: flat.NumChannels,
            Flags: 0,
        })
    }

    fn cuArray3DCreate_v2(out: Out<cu::CUarray>, descriptor: In<cu::CUDA_ARRAY3D_DESCRIPTOR>) {
        create(out, descriptor.get()?)
    }

    fn cuArrayGetDescriptor_v2(out: Out<cu::CUDA_ARRAY_DESCRIPTOR>, handle: cu::CUarray) {
        let descriptor = resolve(handle)?.descriptor;
        out.set(cu::CUDA_ARRAY_DESCRIPTOR {
            Width: descriptor.Width,
            Height: descriptor.Height,
            Format: descriptor.Format,
            NumChannels: descriptor.NumChannels,
        })
    }

    fn cuArray3DGetDescriptor_v2(out: Out<cu::CUDA_ARRAY3D_DESCRIPTOR>, handle: cu::CUarray) {
        out.set(resolve(handle)?.descriptor)
    }

    fn cuArrayDestroy(handle: cu::CUarray) {
        crate::capture::forbid_unsafe()?;
        let array = resolve(handle)?;
        if array.level_of.is_some() {
            return Err(INVALID_VALUE);
        }
        context::current()?;
        // Work that may still use it is of its own context.
        if let Some(owner) = driver()?.contexts().get(array.context) {
            owner.synchronize()?;
        }
        Array::destroy(driver()?, to_handle(handle))
    }
}
