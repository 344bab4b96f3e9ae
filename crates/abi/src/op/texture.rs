//! Texture and surface objects.

use serde::{Deserialize, Serialize};

use super::{Address, ArrayId, MipmapId};

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
