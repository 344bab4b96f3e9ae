//! Types of elements and of computing, and which kernel multiplies them.

use std::ffi::{c_int, c_void};

use half::f16;

use crate::kernels::Kernel;
use crate::status::{INVALID_VALUE, NOT_SUPPORTED, Result};

/// A type of elements: a `cudaDataType` that there are kernels for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// Single precision.
    F32,
    /// Double precision.
    F64,
    /// Half precision.
    F16,
    /// bfloat16.
    Bf16,
}

impl Element {
    /// From a `cudaDataType`.
    ///
    /// # Errors
    /// Complex numbers, integers and narrower types have no kernels.
    pub fn from_c(kind: c_int) -> Result<Self> {
        match kind {
            0 => Ok(Self::F32),
            1 => Ok(Self::F64),
            2 => Ok(Self::F16),
            14 => Ok(Self::Bf16),
            _ => Err(NOT_SUPPORTED),
        }
    }

    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Reads a factor in host memory.
    ///
    /// # Errors
    /// There is no address.
    ///
    /// # Safety
    /// `at` is null or points to one of this type.
    pub unsafe fn read(self, at: *const c_void) -> Result<f64> {
        if at.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller says so.
        Ok(unsafe {
            match self {
                Self::F32 => f64::from(at.cast::<f32>().read_unaligned()),
                Self::F64 => at.cast::<f64>().read_unaligned(),
                Self::F16 => f64::from(f16::from_bits(at.cast::<u16>().read_unaligned())),
                Self::Bf16 => f64::from(half::bf16::from_bits(at.cast::<u16>().read_unaligned())),
            }
        })
    }
}

/// The type in which a `cublasComputeType_t` has alpha and beta. Sums are single precision for all types but double:
/// the faster types allow less, they do not demand it.
///
/// # Errors
/// Integers, and values of no type.
pub fn scale(compute: c_int) -> Result<Element> {
    match compute {
        64 | 65 => Ok(Element::F16),
        68 | 69 | 74 | 75 | 77 | 78 => Ok(Element::F32),
        70 | 71 | 79 => Ok(Element::F64),
        72 | 73 => Err(NOT_SUPPORTED),
        _ => Err(INVALID_VALUE),
    }
}

/// The kernel that multiplies `a` and `b` to `c`, with alpha and beta of type `scale`.
///
/// # Errors
/// There is none.
pub fn kernel(a: Element, b: Element, c: Element, scale: Element) -> Result<Kernel> {
    use Element::{Bf16, F16, F32, F64};
    match (a, b, c, scale) {
        (F32, F32, F32, F32) => Ok(Kernel::F32),
        (F64, F64, F64, F64) => Ok(Kernel::F64),
        (F16, F16, F16, F32 | F16) => Ok(Kernel::F16),
        (F16, F16, F32, F32) => Ok(Kernel::F16ToF32),
        (Bf16, Bf16, Bf16, F32) => Ok(Kernel::Bf16),
        (Bf16, Bf16, F32, F32) => Ok(Kernel::Bf16ToF32),
        _ => Err(NOT_SUPPORTED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_without_kernels_are_refused() {
        // 8-bit integers, complex numbers, 8-bit floats.
        for kind in [3, 4, 28] {
            assert_eq!(Element::from_c(kind), Err(NOT_SUPPORTED));
        }
        assert_eq!(scale(72), Err(NOT_SUPPORTED));
        assert_eq!(scale(0), Err(INVALID_VALUE));
        let mixed = kernel(Element::F32, Element::F16, Element::F32, Element::F32);
        assert_eq!(mixed, Err(NOT_SUPPORTED));
    }

    #[test]
    fn factors_are_read_in_their_type() {
        let (half, single) = (f16::from_f32(0.5).to_bits(), 0.1f32);
        // SAFETY: both are variables of the type that is read.
        let read = unsafe {
            [
                Element::F16.read((&raw const half).cast()),
                Element::F32.read((&raw const single).cast()),
                Element::F64.read(std::ptr::null()),
            ]
        };
        assert_eq!(read, [Ok(0.5), Ok(f64::from(0.1f32)), Err(INVALID_VALUE)]);
    }
}
