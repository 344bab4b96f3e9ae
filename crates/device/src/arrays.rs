//! CUDA arrays.

use fermata_abi::sys::driver as cu;

use crate::driver::Result;
use crate::{ArrayHandle, Driver, MipmapHandle};

/// Shape of an array, as in `CUDA_ARRAY3D_DESCRIPTOR`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArrayShape {
    /// Elements in a row.
    pub width: u64,
    /// Rows, 0 for one dimension.
    pub height: u64,
    /// Slices, 0 for fewer than three dimensions.
    pub depth: u64,
    /// A `CUarray_format`.
    pub format: u32,
    /// Channels per element.
    pub channels: u32,
    /// `CUDA_ARRAY3D_*` flags.
    pub flags: u32,
}

impl ArrayShape {
    /// Bytes in a row, rows, slices; `None` for a format of unknown size or an overflow.
    pub fn extent(&self) -> Option<(u64, u64, u64)> {
        let channel = match self.format {
            cu::CU_AD_FORMAT_UNSIGNED_INT8 | cu::CU_AD_FORMAT_SIGNED_INT8 => 1,
            cu::CU_AD_FORMAT_UNSIGNED_INT16
            | cu::CU_AD_FORMAT_SIGNED_INT16
            | cu::CU_AD_FORMAT_HALF => 2,
            cu::CU_AD_FORMAT_UNSIGNED_INT32
            | cu::CU_AD_FORMAT_SIGNED_INT32
            | cu::CU_AD_FORMAT_FLOAT => 4,
            _ => return None,
        };
        let row = self
            .width
            .checked_mul(channel)?
            .checked_mul(u64::from(self.channels))?;
        let (height, depth) = (self.height.max(1), self.depth.max(1));
        row.checked_mul(height)?.checked_mul(depth)?;
        Some((row, height, depth))
    }

    fn descriptor(&self) -> cu::CUDA_ARRAY3D_DESCRIPTOR {
        cu::CUDA_ARRAY3D_DESCRIPTOR {
            Width: self.width as usize,
            Height: self.height as usize,
            Depth: self.depth as usize,
            Format: self.format,
            NumChannels: self.channels,
            Flags: self.flags,
        }
    }
}

impl Driver {
    /// Creates an array with so many levels in the current context.
    ///
    /// # Errors
    /// What the driver says.
    pub fn create_mipmap(&self, shape: &ArrayShape, levels: u32) -> Result<MipmapHandle> {
        let mut mipmap = std::ptr::null_mut();
        // SAFETY: both pointers refer to live locals.
        unsafe {
            self.f
                .cuMipmappedArrayCreate(&mut mipmap, &shape.descriptor(), levels)?;
        }
        Ok(MipmapHandle::from_raw(mipmap))
    }

    /// A level of an array with levels. It goes with that.
    ///
    /// # Errors
    /// What the driver says.
    pub fn level(&self, mipmap: MipmapHandle, level: u32) -> Result<ArrayHandle> {
        let mut array = std::ptr::null_mut();
        // SAFETY: the pointer refers to a live local.
        unsafe {
            self.f
                .cuMipmappedArrayGetLevel(&mut array, mipmap.raw(), level)?;
        }
        Ok(ArrayHandle::from_raw(array))
    }

    /// Destroys an array with levels.
    ///
    /// # Errors
    /// What the driver says.
    pub fn destroy_mipmap(&self, mipmap: MipmapHandle) -> Result<()> {
        // SAFETY: the argument is a handle, which the driver checks.
        unsafe { self.f.cuMipmappedArrayDestroy(mipmap.raw()) }
    }

    /// Creates an array in the current context.
    ///
    /// # Errors
    /// What the driver says.
    pub fn create_array(&self, shape: &ArrayShape) -> Result<ArrayHandle> {
        let descriptor = shape.descriptor();
        let mut array = std::ptr::null_mut();
        // SAFETY: both pointers refer to live locals.
        unsafe { self.f.cuArray3DCreate_v2(&mut array, &descriptor)? };
        Ok(ArrayHandle::from_raw(array))
    }

    /// Destroys an array.
    ///
    /// # Errors
    /// What the driver says.
    pub fn destroy_array(&self, array: ArrayHandle) -> Result<()> {
        self.f.cuArrayDestroy(array.raw())
    }
}
