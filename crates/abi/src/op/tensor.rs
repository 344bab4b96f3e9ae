//! Tensor maps.

use serde::{Deserialize, Serialize};

use super::Address;
use crate::sys::driver as cu;

/// Bytes of a tensor map's descriptor.
pub const TENSOR_MAP: usize = 128;

/// A tensor in memory, as `cuTensorMapEncode*` names what it is given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// A `CUtensorMapDataType`.
    pub data_type: u32,
    /// Where it begins.
    pub address: Address,
    /// Elements in each dimension.
    pub dims: Vec<u64>,
    /// Bytes from one element to the next in each dimension but the first.
    pub strides: Vec<u64>,
    /// Traversal stride in each dimension, elements.
    pub steps: Vec<u32>,
    /// A `CUtensorMapInterleave`.
    pub interleave: u32,
    /// A `CUtensorMapSwizzle`.
    pub swizzle: u32,
    /// A `CUtensorMapL2promotion`.
    pub promotion: u32,
    /// A `CUtensorMapFloatOOBfill`.
    pub fill: u32,
}

impl Tensor {
    /// Bytes from its first to its last; no driver takes one whose bytes do not fit their number.
    pub fn extent(&self) -> u64 {
        let element = match self.data_type {
            cu::CU_TENSOR_MAP_DATA_TYPE_UINT8
            | cu::CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B
            | cu::CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B
            | cu::CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B => 1,
            cu::CU_TENSOR_MAP_DATA_TYPE_UINT16
            | cu::CU_TENSOR_MAP_DATA_TYPE_FLOAT16
            | cu::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 => 2,
            cu::CU_TENSOR_MAP_DATA_TYPE_UINT64
            | cu::CU_TENSOR_MAP_DATA_TYPE_INT64
            | cu::CU_TENSOR_MAP_DATA_TYPE_FLOAT64 => 8,
            _ => 4u64,
        };
        let row = self
            .dims
            .first()
            .map_or(0, |dim| dim.saturating_mul(element));
        let others = self.dims.iter().skip(1).zip(&self.strides);
        let steps = others.map(|(dim, stride)| dim.saturating_sub(1).saturating_mul(*stride));
        steps.fold(row, u64::saturating_add)
    }
}

/// What one copy of a tensor map takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TensorBox {
    /// `cuTensorMapEncodeTiled`.
    Tiled {
        /// Elements in each dimension.
        dims: Vec<u32>,
    },
    /// `cuTensorMapEncodeIm2col`.
    Im2col {
        /// Lower corner of the pixels' box.
        lower: Vec<i32>,
        /// Upper corner.
        upper: Vec<i32>,
        /// Channels of a pixel.
        channels: u32,
        /// Pixels of a column.
        pixels: u32,
    },
    /// `cuTensorMapEncodeIm2colWide`.
    Im2colWide {
        /// Lower corner in the dimension of the width.
        lower: i32,
        /// Upper corner.
        upper: i32,
        /// Channels of a pixel.
        channels: u32,
        /// Pixels of a column.
        pixels: u32,
        /// A `CUtensorMapIm2ColWideMode`.
        mode: u32,
    },
}
