//! CUDA arrays: plain linear storage with a shape.

use std::sync::{Arc, LazyLock};

use fermata_abi::sys::driver as cu;

use crate::attributes::PITCH;
use crate::context::Context;
use crate::driver::Driver;
use crate::error::{INVALID_HANDLE, INVALID_VALUE, Result};
use crate::handle::{self, Table, Tag};
use crate::memory::Kind;

/// What the bytes of a new array are with `DIRTY_ARRAYS`.
const DIRT: u32 = 0xa5;

/// An array.
pub struct Array {
    /// Its handle.
    pub handle: u64,
    /// Handle of its context.
    pub context: u64,
    /// Handle of the mipmapped array that it is a level of.
    pub level_of: Option<u64>,
    /// What the program asked for.
    pub descriptor: cu::CUDA_ARRAY3D_DESCRIPTOR,
    /// Where its bytes are.
    pub base: u64,
    /// Bytes from row to row.
    pub pitch: u64,
    /// Bytes of a row that are used.
    pub width_bytes: u64,
    /// Rows of a slice, at least 1.
    pub height: u64,
    /// Slices, at least 1.
    pub depth: u64,
}

impl std::fmt::Debug for Array {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Array")
            .field("handle", &self.handle)
            .field("base", &self.base)
            .finish()
    }
}

/// Bytes of one channel of a format.
fn channel_bytes(format: cu::CUarray_format) -> Option<u64> {
    match format {
        cu::CU_AD_FORMAT_UNSIGNED_INT8 | cu::CU_AD_FORMAT_SIGNED_INT8 => Some(1),
        cu::CU_AD_FORMAT_UNSIGNED_INT16 | cu::CU_AD_FORMAT_SIGNED_INT16 | cu::CU_AD_FORMAT_HALF => {
            Some(2)
        }
        cu::CU_AD_FORMAT_UNSIGNED_INT32
        | cu::CU_AD_FORMAT_SIGNED_INT32
        | cu::CU_AD_FORMAT_FLOAT => Some(4),
        _ => None,
    }
}

impl Driver {
    /// Arrays.
    pub fn arrays(&self) -> &'static Table<Array> {
        static ALL: LazyLock<Table<Array>> = LazyLock::new(Table::default);
        &ALL
    }
}

impl Array {
    /// Allocates an array.
    ///
    /// # Errors
    /// The shape or format is wrong, or there is no memory.
    pub fn create(
        driver: &Driver,
        context: &Context,
        descriptor: cu::CUDA_ARRAY3D_DESCRIPTOR,
    ) -> Result<Arc<Self>> {
        Self::make(driver, context, descriptor, None)
    }

    /// Allocates a level of an array with levels.
    ///
    /// # Errors
    /// As [`Array::create`].
    pub fn create_level(
        driver: &Driver,
        context: &Context,
        descriptor: cu::CUDA_ARRAY3D_DESCRIPTOR,
        of: u64,
    ) -> Result<Arc<Self>> {
        Self::make(driver, context, descriptor, Some(of))
    }

    fn make(
        driver: &Driver,
        context: &Context,
        descriptor: cu::CUDA_ARRAY3D_DESCRIPTOR,
        level_of: Option<u64>,
    ) -> Result<Arc<Self>> {
        let channel = channel_bytes(descriptor.Format).ok_or(INVALID_VALUE)?;
        if descriptor.Width == 0 || !matches!(descriptor.NumChannels, 1 | 2 | 4) {
            return Err(INVALID_VALUE);
        }
        let width = descriptor.Width as u64;
        let width_bytes = width
            .checked_mul(channel * u64::from(descriptor.NumChannels))
            .ok_or(INVALID_VALUE)?;
        let (height, depth) = (
            descriptor.Height.max(1) as u64,
            descriptor.Depth.max(1) as u64,
        );
        let pitch = width_bytes
            .checked_next_multiple_of(PITCH)
            .ok_or(INVALID_VALUE)?;
        let bytes = pitch
            .checked_mul(height)
            .and_then(|slice| slice.checked_mul(depth))
            .ok_or(INVALID_VALUE)?;
        let base = driver
            .memory
            .allocate(&context.device, context.handle, bytes, Kind::Device)?;
        if context.device.settings.dirty_arrays > 0 {
            driver.memory.fill(base, DIRT, 1, bytes)?;
        }
        let array = Arc::new(Self {
            handle: handle::fresh(Tag::Array),
            context: context.handle,
            level_of,
            descriptor,
            base,
            pitch,
            width_bytes,
            height,
            depth,
        });
        driver.arrays().insert(array.handle, Arc::clone(&array));
        Ok(array)
    }

    /// Frees an array.
    ///
    /// # Errors
    /// There is none with this handle.
    pub fn destroy(driver: &Driver, handle: u64) -> Result {
        let array = driver.arrays().remove(handle).ok_or(INVALID_HANDLE)?;
        driver.memory.free(array.base, |_| true).map(drop)
    }
}
