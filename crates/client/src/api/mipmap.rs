//! Exported functions for mipmapped arrays, and queries about sparse arrays and arrays mapped later, which are refused.

use core::ffi::c_uint;

use fermata_abi::sys::driver as sys;

use crate::args::{In, Out};
use crate::frame::entry::driver_api;
use crate::handles::to_pointer;
use crate::object::array::Shape;
use crate::object::context::current;
use crate::object::session::session;

driver_api! {
    fn cuMipmappedArrayCreate(
        mipmap: Out<sys::CUmipmappedArray>,
        desc: In<sys::CUDA_ARRAY3D_DESCRIPTOR>,
        levels: c_uint,
    ) {
        let shape = Shape::of(&desc.get()?);
        let session = session()?;
        let made = session.mipmaps.create(&session.arrays, &*current()?, shape, levels)?;
        mipmap.set(to_pointer(made.handle))
    }

    fn cuMipmappedArrayGetLevel(array: Out<sys::CUarray>, mipmap: sys::CUmipmappedArray, level: c_uint) {
        let mipmap = session()?.mipmaps.get(mipmap)?;
        let found = mipmap.shape.levels.get(level as usize);
        array.set(to_pointer(*found.ok_or(sys::CUDA_ERROR_INVALID_VALUE)?))
    }

    fn cuMipmappedArrayDestroy(mipmap: sys::CUmipmappedArray) {
        let session = session()?;
        session.mipmaps.destroy(&session.arrays, mipmap)
    }

    // Sparse arrays, and arrays whose memory is mapped later, cannot be created. For all others the driver answers that
    // the query does not apply.

    fn cuArrayGetSparseProperties(_properties: Out<sys::CUDA_ARRAY_SPARSE_PROPERTIES>, array: sys::CUarray) {
        session()?.arrays.get(array)?;
        Err(sys::CUDA_ERROR_INVALID_VALUE)
    }

    fn cuMipmappedArrayGetSparseProperties(
        _properties: Out<sys::CUDA_ARRAY_SPARSE_PROPERTIES>,
        mipmap: sys::CUmipmappedArray,
    ) {
        session()?.mipmaps.get(mipmap)?;
        Err(sys::CUDA_ERROR_INVALID_VALUE)
    }

    fn cuArrayGetMemoryRequirements(
        _requirements: Out<sys::CUDA_ARRAY_MEMORY_REQUIREMENTS>,
        array: sys::CUarray,
        device: sys::CUdevice,
    ) {
        let session = session()?;
        session.devices.get(device)?;
        session.arrays.get(array)?;
        Err(sys::CUDA_ERROR_INVALID_VALUE)
    }

    fn cuMipmappedArrayGetMemoryRequirements(
        _requirements: Out<sys::CUDA_ARRAY_MEMORY_REQUIREMENTS>,
        mipmap: sys::CUmipmappedArray,
        device: sys::CUdevice,
    ) {
        let session = session()?;
        session.devices.get(device)?;
        session.mipmaps.get(mipmap)?;
        Err(sys::CUDA_ERROR_INVALID_VALUE)
    }
}
