//! One product, from the caller's words (operations, leading dimensions) to a kernel's (steps).

use std::ffi::{c_int, c_void};

use fermata_abi::sys::driver as cu;

use crate::handle::Handle;
use crate::kernels::{Product, Steps};
use crate::status::{INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::types::{self, Element};

/// A factor: alpha or beta.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Factor {
    /// Its value.
    Value(f64),
    /// Its address in device memory.
    At(u64),
}

impl Factor {
    /// Reads a factor that a program gives by its address.
    ///
    /// # Errors
    /// There is no address, or the mode is none.
    ///
    /// # Safety
    /// In mode 0, `at` is null or points to a `kind` of the host.
    pub unsafe fn given(at: *const c_void, pointer_mode: c_int, kind: Element) -> Result<Self> {
        match pointer_mode {
            // SAFETY: the caller says so.
            0 => Ok(Self::Value(unsafe { kind.read(at) }?)),
            1 if at.is_null() => Err(INVALID_VALUE),
            // Kernels would read a single there.
            1 if kind == Element::F16 => Err(NOT_SUPPORTED),
            1 => Ok(Self::At(at as u64)),
            _ => Err(NOT_SUPPORTED),
        }
    }

    /// Address and value, as kernels take them.
    pub fn parts(self) -> (u64, f64) {
        match self {
            Self::Value(value) => (0, value),
            Self::At(at) => (at, 0.0),
        }
    }
}

/// Types of a product, as `cudaDataType`s and the type of alpha and beta.
#[derive(Debug, Clone, Copy)]
pub struct Types {
    /// Of `a`.
    pub a: Element,
    /// Of `b`.
    pub b: Element,
    /// Of the result.
    pub c: Element,
    /// Of alpha and beta.
    pub scale: Element,
}

impl Types {
    /// All the same.
    pub fn all(kind: Element) -> Self {
        Self {
            a: kind,
            b: kind,
            c: kind,
            scale: kind,
        }
    }
}

/// Whether a `cublasOperation_t` transposes.
///
/// # Errors
/// It is none. Conjugation of real numbers changes nothing.
pub fn transposes(operation: c_int) -> Result<bool> {
    match operation {
        0 => Ok(false),
        1 | 2 => Ok(true),
        _ => Err(INVALID_VALUE),
    }
}

/// An extent as kernels take it.
///
/// # Errors
/// It is negative or beyond what an index holds.
pub fn extent(value: i64) -> Result<u32> {
    match i32::try_from(value) {
        Ok(fits) if fits >= 0 => Ok(fits as u32),
        _ => Err(INVALID_VALUE),
    }
}

/// Steps of a column-major matrix of `rows` by `cols` after its operation.
///
/// # Errors
/// The leading dimension is less than a column.
pub fn steps(transposed: bool, leading: i64, rows: u32, cols: u32, batch: i64) -> Result<Steps> {
    let column = if transposed { cols } else { rows };
    if leading < i64::from(column.max(1)) {
        return Err(INVALID_VALUE);
    }
    let (row, col) = if transposed {
        (leading, 1)
    } else {
        (1, leading)
    };
    Ok(Steps { row, col, batch })
}

/// Launches a product.
///
/// # Errors
/// No kernel for these types, or the driver refuses.
///
/// # Safety
/// The memory it points to is as the caller of cuBLAS promised.
pub unsafe fn launch(
    handle: &Handle,
    stream: cu::CUstream,
    types: Types,
    product: &Product,
) -> Result {
    let kernel = types::kernel(types.a, types.b, types.c, types.scale)?;
    if product.m == 0 || product.n == 0 || product.batch == 0 {
        return Ok(());
    }
    let wanted = [product.c, product.d];
    if wanted.contains(&0) || product.k > 0 && (product.a == 0 || product.b == 0) {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller says so, and all products have the same parameter.
    unsafe { handle.kernels.launch(kernel, stream, product) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leading_dimension_below_a_column_is_an_error() {
        assert_eq!(steps(false, 3, 4, 2, 0), Err(INVALID_VALUE));
        assert_eq!(steps(true, 1, 4, 2, 0), Err(INVALID_VALUE));
        assert_eq!(steps(false, 0, 0, 0, 0), Err(INVALID_VALUE));
        let right = Steps {
            row: 2,
            col: 1,
            batch: 7,
        };
        assert_eq!(steps(true, 2, 4, 2, 7), Ok(right));
    }

    #[test]
    fn extents_and_operations_are_checked() {
        assert_eq!(extent(-1), Err(INVALID_VALUE));
        assert_eq!(extent(1 << 31), Err(INVALID_VALUE));
        assert_eq!(transposes(3), Err(INVALID_VALUE));
        assert_eq!(transposes(2), Ok(true));
    }
}
