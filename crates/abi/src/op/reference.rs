//! Texture references and surface references of modules, and arrays with levels.

use serde::{Deserialize, Serialize};

use super::{ArrayId, Sampler};

/// How a texture reference is read, as the driver has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReferenceSettings {
    /// Address modes, filters, flags and border.
    pub sampler: Sampler,
    /// A `CUarray_format`, for linear memory.
    pub format: u32,
    /// Channels of an element, for linear memory.
    pub channels: u32,
}

/// An array with levels, each of half the size of the one before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mipmap {
    /// Elements in a row of the first level.
    pub width: u64,
    /// Rows of the first level; 0 in one dimension.
    pub height: u64,
    /// Slices of the first level, or layers; 0 in fewer than three dimensions.
    pub depth: u64,
    /// A `CUarray_format`.
    pub format: u32,
    /// Channels of an element.
    pub channels: u32,
    /// `CUDA_ARRAY3D_*`.
    pub flags: u32,
    /// The levels, which are arrays.
    pub levels: Vec<ArrayId>,
}

/// `CUDA_ARRAY3D_LAYERED` and `CUDA_ARRAY3D_CUBEMAP`: the depth counts layers.
const LAYERS: u32 = 0x01 | 0x04;

impl Mipmap {
    /// Width, height and depth of a level.
    pub fn extent(&self, level: u32) -> [u64; 3] {
        let part = |size: u64| match size {
            0 => 0,
            size => size.checked_shr(level).unwrap_or(0).max(1),
        };
        let layered = self.flags & LAYERS != 0;
        let depth = if layered {
            self.depth
        } else {
            part(self.depth)
        };
        [part(self.width), part(self.height), depth]
    }

    /// How many levels there can be.
    pub fn most_levels(&self) -> u32 {
        let layered = self.flags & LAYERS != 0;
        let depth = if layered { 0 } else { self.depth };
        let longest = self.width.max(self.height).max(depth).max(1);
        longest.ilog2() + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_halve_down_to_one_and_layers_stay() {
        let mut mipmap = Mipmap {
            width: 20,
            height: 6,
            depth: 3,
            format: 32,
            channels: 1,
            flags: 0,
            levels: Vec::new(),
        };
        assert_eq!(mipmap.extent(0), [20, 6, 3]);
        assert_eq!(mipmap.extent(2), [5, 1, 1]);
        assert_eq!(mipmap.extent(70), [1, 1, 1]);
        assert_eq!(mipmap.most_levels(), 5);
        mipmap.flags = 1;
        assert_eq!(mipmap.extent(2), [5, 1, 3]);
        (mipmap.height, mipmap.depth) = (0, 0);
        assert_eq!(mipmap.extent(1), [10, 0, 0]);
    }
}
