//! CUDA arrays.

use std::sync::Arc;

use fermata_abi::op::{Handle, Op};
use fermata_abi::sys::driver as sys;

use crate::context::Context;
use crate::entry::Result;
use crate::handles::{self, Table};
use crate::link;

/// All arrays.
#[derive(Debug, Default)]
pub struct Arrays(Table<Array>);

/// An array.
#[derive(Debug)]
pub struct Array {
    /// Its handle.
    pub handle: Handle,
    /// The context it was made in.
    pub context: Handle,
    /// What was asked for.
    pub shape: Shape,
}

/// Extent, format and flags of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Elements in a row.
    pub width: u64,
    /// Rows; 0 in one dimension.
    pub height: u64,
    /// Slices or layers; 0 in fewer than three dimensions.
    pub depth: u64,
    /// `CUarray_format`.
    pub format: u32,
    /// Channels of an element.
    pub channels: u32,
    /// `CUDA_ARRAY3D_*`.
    pub flags: u32,
}

impl Shape {
    /// Bytes of an element, for the plain formats.
    pub fn element(&self) -> Result<u64> {
        let channel = match self.format {
            sys::CU_AD_FORMAT_UNSIGNED_INT8 | sys::CU_AD_FORMAT_SIGNED_INT8 => 1,
            sys::CU_AD_FORMAT_UNSIGNED_INT16
            | sys::CU_AD_FORMAT_SIGNED_INT16
            | sys::CU_AD_FORMAT_HALF => 2,
            sys::CU_AD_FORMAT_UNSIGNED_INT32
            | sys::CU_AD_FORMAT_SIGNED_INT32
            | sys::CU_AD_FORMAT_FLOAT => 4,
            _ => return Err(sys::CUDA_ERROR_NOT_SUPPORTED),
        };
        if !matches!(self.channels, 1 | 2 | 4) {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        Ok(channel * u64::from(self.channels))
    }
}

impl Arrays {
    /// A new array.
    pub fn create(&self, context: &Context, shape: Shape) -> Result<Arc<Array>> {
        shape.element()?;
        if shape.width == 0
            || (shape.depth > 0
                && shape.height == 0
                && shape.flags & sys::CUDA_ARRAY3D_LAYERED == 0)
        {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let (array, context) = (handles::fresh(), context.handle);
        let Shape {
            width,
            height,
            depth,
            format,
            channels,
            flags,
        } = shape;
        let op = Op::ArrayCreate {
            array,
            context,
            width,
            height,
            depth,
            format,
            channels,
            flags,
        };
        link::ask(&op, link::nothing)?;
        let made = Arc::new(Array {
            handle: array,
            context,
            shape,
        });
        self.0.insert(array, made.clone());
        Ok(made)
    }

    /// The array behind a handle.
    pub fn get(&self, array: sys::CUarray) -> Result<Arc<Array>> {
        self.0
            .get(handles::of(array), sys::CUDA_ERROR_INVALID_HANDLE)
    }

    /// Ends an array.
    pub fn destroy(&self, array: sys::CUarray) -> Result {
        let array = self
            .0
            .remove(handles::of(array), sys::CUDA_ERROR_INVALID_HANDLE)?;
        link::ask(
            &Op::ArrayDestroy {
                array: array.handle,
            },
            link::nothing,
        )
    }

    /// Forgets the arrays of a context that is gone.
    pub fn forget(&self, context: Handle) {
        self.0.remove_if(|array| array.context == context);
    }
}
