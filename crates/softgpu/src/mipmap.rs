//! Mipmapped arrays: each level is an array.

use std::sync::{Arc, LazyLock};

use fermata_abi::op;
use fermata_abi::sys::driver as cu;

use crate::array::Array;
use crate::context::Context;
use crate::driver::Driver;
use crate::error::{INVALID_HANDLE, Result};
use crate::handle::{self, Table, Tag};

/// An array with levels.
#[derive(Debug)]
pub struct Mipmap {
    /// Its handle.
    pub handle: u64,
    /// Handle of its context.
    pub context: u64,
    /// The levels, the largest first.
    pub levels: Vec<Arc<Array>>,
}

impl Driver {
    /// Arrays with levels; the levels are arrays too.
    pub fn mipmaps(&self) -> &'static Table<Mipmap> {
        static ALL: LazyLock<Table<Mipmap>> = LazyLock::new(Table::default);
        &ALL
    }
}

impl Mipmap {
    /// Allocates an array with so many levels, or as many as its shape has.
    ///
    /// # Errors
    /// The shape or format is wrong, or there is no memory.
    pub fn create(
        driver: &Driver,
        context: &Context,
        descriptor: cu::CUDA_ARRAY3D_DESCRIPTOR,
        levels: u32,
    ) -> Result<Arc<Self>> {
        let shape = op::Mipmap {
            width: descriptor.Width as u64,
            height: descriptor.Height as u64,
            depth: descriptor.Depth as u64,
            format: descriptor.Format,
            channels: descriptor.NumChannels,
            flags: descriptor.Flags,
            levels: Vec::new(),
        };
        let handle = handle::fresh(Tag::Mipmap);
        let mut made = Vec::new();
        for level in 0..levels.clamp(1, shape.most_levels()) {
            let [width, height, depth] = shape.extent(level).map(|size| size as usize);
            let descriptor = cu::CUDA_ARRAY3D_DESCRIPTOR {
                Width: width,
                Height: height,
                Depth: depth,
                ..descriptor
            };
            let array = Array::create_level(driver, context, descriptor, handle);
            made.push(array.inspect_err(|_| release(driver, &made))?);
        }
        let mipmap = Arc::new(Self {
            handle,
            context: context.handle,
            levels: made,
        });
        driver.mipmaps().insert(handle, Arc::clone(&mipmap));
        Ok(mipmap)
    }

    /// Frees an array with its levels.
    ///
    /// # Errors
    /// There is none with this handle.
    pub fn destroy(driver: &Driver, handle: u64) -> Result {
        let mipmap = driver.mipmaps().remove(handle).ok_or(INVALID_HANDLE)?;
        release(driver, &mipmap.levels);
        Ok(())
    }
}

fn release(driver: &Driver, levels: &[Arc<Array>]) {
    for level in levels {
        // Memory of a context that is being destroyed may be gone already.
        let _ = Array::destroy(driver, level.handle);
    }
}
