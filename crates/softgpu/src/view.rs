//! Texture and surface objects: how kernels see arrays and device memory.
//!
//! A handle is the lowest number from 1 that is free, so that the same calls give the same handles in another
//! process: kernels keep handles in memory.

use std::sync::{Arc, LazyLock};

use fermata_abi::sys::driver as cu;
use parking_lot::RwLock;

use crate::array::Array;
use crate::driver::Driver;
use crate::error::{CuError, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::exec::texture::{Format, Levels, Outside, Texture};
use crate::log;

/// A texture or surface object.
pub struct View {
    /// Handle of its context.
    pub context: u64,
    /// How kernels see it: the levels, of which all but mipmapped arrays have one.
    pub levels: Vec<Texture>,
    /// It is a surface.
    pub surface: bool,
    /// What the program gave.
    pub resource: cu::CUDA_RESOURCE_DESC,
    /// What the program gave, for a texture.
    pub sampling: cu::CUDA_TEXTURE_DESC,
    /// What the program gave, for a texture.
    pub format: cu::CUDA_RESOURCE_VIEW_DESC,
}

// SAFETY: the pointers in the descriptions are handles and device addresses, which are never followed.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("View")
            .field("levels", &self.levels)
            .finish()
    }
}

/// All texture and surface objects; the one with handle `n` is number `n - 1`.
#[derive(Debug, Default)]
pub struct Views(RwLock<Vec<Option<Arc<View>>>>);

impl Driver {
    /// Texture and surface objects.
    pub fn views(&self) -> &'static Views {
        static ALL: LazyLock<Views> = LazyLock::new(Views::default);
        &ALL
    }
}

impl Views {
    /// Keeps an object; its handle.
    pub fn insert(&self, view: View) -> u64 {
        let mut list = self.0.write();
        let free = list.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            list.push(None);
            list.len() - 1
        });
        list[at] = Some(Arc::new(view));
        at as u64 + 1
    }

    /// The object with a handle.
    pub fn get(&self, handle: u64) -> Option<Arc<View>> {
        let at = usize::try_from(handle.checked_sub(1)?).ok()?;
        self.0.read().get(at)?.clone()
    }

    /// Forgets the texture, or the surface, with a handle.
    ///
    /// # Errors
    /// There is none.
    pub fn remove(&self, handle: u64, surface: bool) -> Result {
        self.get(handle)
            .filter(|view| view.surface == surface)
            .ok_or(INVALID_HANDLE)?;
        if let Some(slot) = self.0.write().get_mut(handle as usize - 1) {
            *slot = None;
        }
        Ok(())
    }

    /// Forgets those of a context.
    pub fn forget_context(&self, context: u64) {
        for slot in self.0.write().iter_mut() {
            if slot.as_ref().is_some_and(|view| view.context == context) {
                *slot = None;
            }
        }
    }
}

fn refuse(what: &str) -> CuError {
    log::tell(format!(
        "cannot make a texture or surface of {what}: it is not supported"
    ));
    NOT_SUPPORTED
}

fn format_of(format: cu::CUarray_format) -> Result<Format> {
    Ok(match format {
        cu::CU_AD_FORMAT_UNSIGNED_INT8 => Format::Unsigned(1),
        cu::CU_AD_FORMAT_UNSIGNED_INT16 => Format::Unsigned(2),
        cu::CU_AD_FORMAT_UNSIGNED_INT32 => Format::Unsigned(4),
        cu::CU_AD_FORMAT_SIGNED_INT8 => Format::Signed(1),
        cu::CU_AD_FORMAT_SIGNED_INT16 => Format::Signed(2),
        cu::CU_AD_FORMAT_SIGNED_INT32 => Format::Signed(4),
        cu::CU_AD_FORMAT_HALF => Format::Half,
        cu::CU_AD_FORMAT_FLOAT => Format::Float,
        _ => return Err(refuse("a format with compressed or packed texels")),
    })
}

/// Unfiltered, by index.
fn plain(base: u64, format: Format, channels: u32, size: [u32; 3], pitch: u64) -> Texture {
    Texture {
        base,
        format,
        channels,
        size,
        told: size,
        pitch,
        layered: false,
        outside: [Outside::Clamp; 3],
        linear: false,
        normalized: false,
        raw: true,
        border: [0.0; 4],
        levels: Levels::default(),
    }
}

fn dimension(count: usize) -> Result<u32> {
    u32::try_from(count).map_err(|_| INVALID_VALUE)
}

/// The memory that a resource names, level for level.
///
/// # Errors
/// There is none, or it is of a kind that is not supported.
pub fn texels(driver: &Driver, resource: &cu::CUDA_RESOURCE_DESC) -> Result<Vec<Texture>> {
    let channels = |count: u32| {
        matches!(count, 1 | 2 | 4)
            .then_some(count)
            .ok_or(INVALID_VALUE)
    };
    match resource.resType {
        cu::CU_RESOURCE_TYPE_ARRAY => {
            // SAFETY: the type says which part of the union the program has filled in; any bytes are a handle.
            let handle = unsafe { resource.res.array.hArray };
            let array = driver
                .arrays()
                .get(handle.addr() as u64)
                .ok_or(INVALID_HANDLE)?;
            Ok(vec![of_array(&array)?])
        }
        cu::CU_RESOURCE_TYPE_LINEAR => {
            // SAFETY: as above; plain numbers.
            let linear = unsafe { resource.res.linear };
            let format = format_of(linear.format)?;
            let channels = channels(linear.numChannels)?;
            let width = dimension(linear.sizeInBytes / (format.bytes() * channels) as usize)?;
            if width == 0 {
                return Err(INVALID_VALUE);
            }
            let mut texture = plain(linear.devPtr, format, channels, [width, 1, 1], 0);
            texture.told = [width, 0, 0];
            Ok(vec![texture])
        }
        cu::CU_RESOURCE_TYPE_PITCH2D => {
            // SAFETY: as above; plain numbers.
            let rows = unsafe { resource.res.pitch2D };
            let size = [dimension(rows.width)?, dimension(rows.height)?, 1];
            let channels = channels(rows.numChannels)?;
            let pitch = rows.pitchInBytes as u64;
            let format = format_of(rows.format)?;
            let mut texture = plain(rows.devPtr, format, channels, size, pitch);
            texture.told = [size[0], size[1], 0];
            if size.contains(&0) || texture.row_bytes() > pitch {
                return Err(INVALID_VALUE);
            }
            Ok(vec![texture])
        }
        cu::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY => {
            // SAFETY: as above; any bytes are a handle.
            let handle = unsafe { resource.res.mipmap.hMipmappedArray };
            let mipmap = driver.mipmaps().get(handle.addr() as u64);
            let mipmap = mipmap.ok_or(INVALID_HANDLE)?;
            mipmap.levels.iter().map(|level| of_array(level)).collect()
        }
        _ => Err(INVALID_VALUE),
    }
}

fn of_array(array: &Array) -> Result<Texture> {
    let shape = &array.descriptor;
    if shape.Flags & cu::CUDA_ARRAY3D_CUBEMAP != 0 {
        return Err(refuse("a cube map"));
    }
    let size = [
        dimension(shape.Width)?,
        dimension(array.height as usize)?,
        dimension(array.depth as usize)?,
    ];
    let format = format_of(shape.Format)?;
    let mut texture = plain(array.base, format, shape.NumChannels, size, array.pitch);
    texture.told = [size[0], dimension(shape.Height)?, dimension(shape.Depth)?];
    texture.layered = shape.Flags & cu::CUDA_ARRAY3D_LAYERED != 0;
    Ok(texture)
}

/// Leaves out the smaller levels that a view does not show.
pub fn keep_levels(levels: &mut Vec<Texture>, format: &cu::CUDA_RESOURCE_VIEW_DESC) {
    // A view that says nothing of the texels is none.
    if format.width == 0 {
        return;
    }
    levels.truncate(format.lastMipmapLevel as usize + 1);
    let last = levels.len() as u32 - 1;
    for level in levels {
        level.levels.last = last;
    }
}

/// Adds how a texture is read.
///
/// # Errors
/// Values that do not exist, or are not supported.
pub fn sampled(mut levels: Vec<Texture>, sampling: &cu::CUDA_TEXTURE_DESC) -> Result<Vec<Texture>> {
    let last = levels.len() as u32 - 1;
    let between = match sampling.mipmapFilterMode {
        cu::CU_TR_FILTER_MODE_POINT => false,
        cu::CU_TR_FILTER_MODE_LINEAR => true,
        _ => return Err(INVALID_VALUE),
    };
    for texture in &mut levels {
        sample_like(texture, sampling)?;
        texture.levels = Levels {
            last,
            linear: between,
            bias: sampling.mipmapLevelBias,
            least: sampling.minMipmapLevelClamp,
            most: sampling.maxMipmapLevelClamp,
        };
    }
    Ok(levels)
}

fn sample_like(texture: &mut Texture, sampling: &cu::CUDA_TEXTURE_DESC) -> Result {
    if sampling.flags & cu::CU_TRSF_SRGB != 0 {
        return Err(refuse("colours in sRGB"));
    }
    for (outside, mode) in texture.outside.iter_mut().zip(sampling.addressMode) {
        *outside = match mode {
            cu::CU_TR_ADDRESS_MODE_WRAP => Outside::Wrap,
            cu::CU_TR_ADDRESS_MODE_CLAMP => Outside::Clamp,
            cu::CU_TR_ADDRESS_MODE_MIRROR => Outside::Mirror,
            cu::CU_TR_ADDRESS_MODE_BORDER => Outside::Border,
            _ => return Err(INVALID_VALUE),
        };
    }
    texture.linear = match sampling.filterMode {
        cu::CU_TR_FILTER_MODE_POINT => false,
        cu::CU_TR_FILTER_MODE_LINEAR => true,
        _ => return Err(INVALID_VALUE),
    };
    texture.normalized = sampling.flags & cu::CU_TRSF_NORMALIZED_COORDINATES != 0;
    texture.raw = sampling.flags & cu::CU_TRSF_READ_AS_INTEGER != 0;
    texture.border = sampling.borderColor;
    Ok(())
}

/// Refuses a view that reads texels in another form than the resource's.
///
/// # Errors
/// It does.
pub fn check_format(format: &cu::CUDA_RESOURCE_VIEW_DESC) -> Result {
    let from = [format.firstMipmapLevel, format.firstLayer];
    if format.format != cu::CU_RES_VIEW_FORMAT_NONE || from != [0; 2] {
        return Err(refuse("a view in another format, or of a part"));
    }
    Ok(())
}
