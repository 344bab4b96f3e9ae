//! Tensor maps.

use std::ffi::c_void;

use fermata_abi::op::{TENSOR_MAP, Tensor, TensorBox};
use fermata_abi::sys::driver as cu;

use crate::driver::Result;
use crate::{Driver, DriverError};

fn bytes_of(map: &cu::CUtensorMap) -> [u8; TENSOR_MAP] {
    let mut bytes = [0; TENSOR_MAP];
    let words = bytes.chunks_exact_mut(8).zip(map.opaque);
    words.for_each(|(to, word)| to.copy_from_slice(&word.to_ne_bytes()));
    bytes
}

fn contradiction() -> DriverError {
    DriverError {
        call: "cuTensorMapEncodeTiled",
        code: cu::CUDA_ERROR_INVALID_VALUE,
        name: "a tensor whose lists have other lengths than its dimensions".into(),
    }
}

impl Driver {
    /// The descriptor by which kernels copy boxes of a tensor.
    ///
    /// # Errors
    /// What the driver says, or lists whose lengths contradict each other.
    pub fn encode_tensor_map(&self, tensor: &Tensor, of: &TensorBox) -> Result<[u8; TENSOR_MAP]> {
        let rank = tensor.dims.len();
        let corners = rank.saturating_sub(2);
        let fits = match of {
            TensorBox::Tiled { dims } => dims.len() == rank,
            TensorBox::Im2col { lower, upper, .. } => {
                lower.len() == corners && upper.len() == corners
            }
            TensorBox::Im2colWide { .. } => true,
        };
        if rank == 0 || tensor.strides.len() != rank - 1 || tensor.steps.len() != rank || !fits {
            return Err(contradiction());
        }
        let (count, address) = (rank as u32, tensor.address.raw() as usize as *mut c_void);
        let (dims, strides) = (tensor.dims.as_ptr(), tensor.strides.as_ptr());
        let steps = tensor.steps.as_ptr();
        let mut map = cu::CUtensorMap::default();
        // SAFETY: the descriptor is a live local; every list has as many entries as the driver reads for this rank.
        unsafe {
            match of {
                TensorBox::Tiled { dims: box_dims } => self.f.cuTensorMapEncodeTiled(
                    &mut map,
                    tensor.data_type,
                    count,
                    address,
                    dims,
                    strides,
                    box_dims.as_ptr(),
                    steps,
                    tensor.interleave,
                    tensor.swizzle,
                    tensor.promotion,
                    tensor.fill,
                )?,
                TensorBox::Im2col {
                    lower,
                    upper,
                    channels,
                    pixels,
                } => self.f.cuTensorMapEncodeIm2col(
                    &mut map,
                    tensor.data_type,
                    count,
                    address,
                    dims,
                    strides,
                    lower.as_ptr(),
                    upper.as_ptr(),
                    *channels,
                    *pixels,
                    steps,
                    tensor.interleave,
                    tensor.swizzle,
                    tensor.promotion,
                    tensor.fill,
                )?,
                TensorBox::Im2colWide {
                    lower,
                    upper,
                    channels,
                    pixels,
                    mode,
                } => self.f.cuTensorMapEncodeIm2colWide(
                    &mut map,
                    tensor.data_type,
                    count,
                    address,
                    dims,
                    strides,
                    *lower,
                    *upper,
                    *channels,
                    *pixels,
                    steps,
                    tensor.interleave,
                    *mode,
                    tensor.swizzle,
                    tensor.promotion,
                    tensor.fill,
                )?,
            }
        }
        Ok(bytes_of(&map))
    }

    /// The descriptor of the same tensor elsewhere.
    ///
    /// # Errors
    /// What the driver says.
    pub fn move_tensor_map(
        &self,
        map: &[u8; TENSOR_MAP],
        address: u64,
    ) -> Result<[u8; TENSOR_MAP]> {
        let mut moved = cu::CUtensorMap::default();
        for (word, bytes) in moved.opaque.iter_mut().zip(map.chunks_exact(8)) {
            *word = bytes.try_into().map_or(0, u64::from_ne_bytes);
        }
        // SAFETY: the descriptor is a live local; the address is only written into it.
        unsafe {
            self.f
                .cuTensorMapReplaceAddress(&mut moved, address as usize as *mut c_void)?;
        }
        Ok(bytes_of(&moved))
    }
}
