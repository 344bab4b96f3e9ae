//! Mipmapped arrays: one object of the driver, whose levels are used like any array.

use fermata_abi::op::{ArrayId, ContextId, Mipmap, MipmapId, Resource};
use fermata_device::{ArrayShape, DriverError, MipmapHandle, Texels};

use super::{Live, invalid};
use fermata_abi::sys::driver as cu;

fn shape_of(mipmap: &Mipmap) -> ArrayShape {
    ArrayShape {
        width: mipmap.width,
        height: mipmap.height,
        depth: mipmap.depth,
        format: mipmap.format,
        channels: mipmap.channels,
        flags: mipmap.flags,
    }
}

/// Bytes of each level, rows packed; `None` for a format of unknown size or an overflow.
pub fn level_bytes(mipmap: &Mipmap) -> Option<Vec<u64>> {
    let levels = 0..mipmap.levels.len() as u32;
    let bytes = levels.map(|level| {
        let [width, height, depth] = mipmap.extent(level);
        let shape = ArrayShape {
            width,
            height,
            depth,
            ..shape_of(mipmap)
        };
        let (row, rows, slices) = shape.extent()?;
        Some(row * rows * slices)
    });
    bytes.collect()
}

impl Live {
    /// Makes a mipmapped array in a context, and its levels as arrays of the session.
    ///
    /// # Errors
    /// A driver error; nothing has been made then.
    pub fn create_mipmap(
        &mut self,
        handle: MipmapId,
        context: ContextId,
        mipmap: &Mipmap,
    ) -> Result<(), DriverError> {
        let device = self.enter(context)?.device;
        let (shape, count) = (shape_of(mipmap), mipmap.levels.len() as u32);
        let made = match self.driver.create_mipmap(&shape, count) {
            Err(error) if error.code == cu::CUDA_ERROR_OUT_OF_MEMORY => {
                self.space.trim(&self.driver, device)?;
                self.driver.create_mipmap(&shape, count)?
            }
            other => other?,
        };
        let levels = (0..count).map(|level| self.driver.level(made, level));
        let levels = levels.collect::<Result<Vec<_>, _>>();
        let levels = levels.inspect_err(|_| drop(self.driver.destroy_mipmap(made)))?;
        for (array, level) in mipmap.levels.iter().zip(levels) {
            self.arrays.insert(*array, (level, context));
        }
        self.mipmaps.insert(handle, (made, context));
        Ok(())
    }

    /// Removes a mipmapped array with these levels; the caller has to destroy it.
    pub fn take_mipmap(
        &mut self,
        handle: MipmapId,
        levels: &[ArrayId],
    ) -> Option<(MipmapHandle, ContextId)> {
        for level in levels {
            self.arrays.remove(level);
        }
        self.mipmaps.remove(&handle)
    }

    /// The array that a texture reads, if it reads one.
    ///
    /// # Errors
    /// It is gone.
    pub fn texels(&self, resource: &Resource) -> Result<Texels, DriverError> {
        match resource {
            Resource::Array(array) => Ok(Texels::Array(self.array(*array)?)),
            Resource::Mipmapped(mipmap) => {
                let code = cu::CUDA_ERROR_INVALID_HANDLE;
                let known = self.mipmaps.get(mipmap);
                let (handle, _) = known.ok_or_else(|| {
                    invalid("cuTexObjectCreate", code, "mipmapped array", *mipmap)
                })?;
                Ok(Texels::Mipmap(*handle))
            }
            Resource::Linear { .. } | Resource::Pitched { .. } => Ok(Texels::None),
        }
    }
}
