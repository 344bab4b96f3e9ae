//! Texture and surface objects.

use serde::{Deserialize, Serialize};

use super::{Address, ArrayId, MipmapId};
use crate::sys::driver as sys;

/// What a texture or a surface object is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resource {
    /// An array.
    Array(ArrayId),
    /// Linear memory.
    Linear {
        /// Its first byte.
        address: Address,
        /// A `CUarray_format`.
        format: u32,
        /// Channels of an element.
        channels: u32,
        /// Bytes.
        bytes: u64,
    },
    /// Rows of linear memory.
    Pitched {
        /// Its first byte.
        address: Address,
        /// A `CUarray_format`.
        format: u32,
        /// Channels of an element.
        channels: u32,
        /// Elements of a row.
        width: u64,
        /// Rows.
        height: u64,
        /// Bytes from row to row.
        pitch: u64,
    },
    /// An array with levels.
    Mipmapped(MipmapId),
}

impl Resource {
    /// First byte and bytes of linear memory.
    pub fn memory(&self) -> Option<(Address, u64)> {
        match self {
            Self::Array(_) | Self::Mipmapped(_) => None,
            Self::Linear { address, bytes, .. } => Some((*address, *bytes)),
            Self::Pitched {
                address,
                height,
                pitch,
                ..
            } => Some((*address, height.saturating_mul(*pitch))),
        }
    }

    /// The description of linear memory for the driver; none for an array, whose handle the caller knows.
    pub fn memory_description(&self) -> Option<sys::CUDA_RESOURCE_DESC> {
        let mut desc = sys::CUDA_RESOURCE_DESC::default();
        match self {
            Self::Array(_) | Self::Mipmapped(_) => return None,
            Self::Linear {
                address,
                format,
                channels,
                bytes,
            } => {
                desc.resType = sys::CU_RESOURCE_TYPE_LINEAR;
                desc.res.linear = sys::CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_3 {
                    devPtr: address.raw(),
                    format: *format,
                    numChannels: *channels,
                    sizeInBytes: *bytes as usize,
                };
            }
            Self::Pitched {
                address,
                format,
                channels,
                width,
                height,
                pitch,
            } => {
                desc.resType = sys::CU_RESOURCE_TYPE_PITCH2D;
                desc.res.pitch2D = sys::CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_4 {
                    devPtr: address.raw(),
                    format: *format,
                    numChannels: *channels,
                    width: *width as usize,
                    height: *height as usize,
                    pitchInBytes: *pitch as usize,
                };
            }
        }
        Some(desc)
    }
}

/// How a texture is read: the fields of `CUDA_TEXTURE_DESC`, floating-point numbers as their bits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampler {
    /// `CUaddress_mode` of each dimension.
    pub address_modes: [u32; 3],
    /// A `CUfilter_mode`.
    pub filter: u32,
    /// `CU_TRSF_*`.
    pub flags: u32,
    /// Most anisotropy.
    pub anisotropy: u32,
    /// A `CUfilter_mode` between levels.
    pub level_filter: u32,
    /// Bias and clamps of the level.
    pub levels: [u32; 3],
    /// Colour beyond the border.
    pub border: [u32; 4],
}

impl From<&Sampler> for sys::CUDA_TEXTURE_DESC {
    fn from(of: &Sampler) -> Self {
        let [bias, least, most] = of.levels.map(f32::from_bits);
        Self {
            addressMode: of.address_modes,
            filterMode: of.filter,
            flags: of.flags,
            maxAnisotropy: of.anisotropy,
            mipmapFilterMode: of.level_filter,
            mipmapLevelBias: bias,
            minMipmapLevelClamp: least,
            maxMipmapLevelClamp: most,
            borderColor: of.border.map(f32::from_bits),
            reserved: [0; 12],
        }
    }
}

/// What of a resource a texture shows: the fields of `CUDA_RESOURCE_VIEW_DESC`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceView {
    /// A `CUresourceViewFormat`.
    pub format: u32,
    /// Width, height, depth.
    pub extent: [u64; 3],
    /// First and last level.
    pub levels: [u32; 2],
    /// First and last layer.
    pub layers: [u32; 2],
}

impl From<&ResourceView> for sys::CUDA_RESOURCE_VIEW_DESC {
    fn from(of: &ResourceView) -> Self {
        let [width, height, depth] = of.extent.map(|it| it as usize);
        Self {
            format: of.format,
            width,
            height,
            depth,
            firstMipmapLevel: of.levels[0],
            lastMipmapLevel: of.levels[1],
            firstLayer: of.layers[0],
            lastLayer: of.layers[1],
            reserved: [0; 16],
        }
    }
}

/// A texture object, or a surface object, which has no sampler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Texture {
    /// What it is about.
    pub resource: Resource,
    /// How it is read.
    pub sampler: Option<Sampler>,
    /// What of it is shown.
    pub view: Option<ResourceView>,
}
