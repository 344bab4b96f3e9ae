//! The program's CUDA arrays.

use std::sync::Arc;

use fermata_abi::op::{ArrayId, ContextId, MipmapId, Op};
use fermata_abi::sys::driver as sys;

use crate::handles::{self, Table};
use crate::link;
use crate::object::context::Context;
use crate::result::Result;

/// All arrays.
#[derive(Debug, Default)]
pub struct Arrays(Table<ArrayId, Array>);

/// An array.
#[derive(Debug)]
pub struct Array {
    /// Its handle.
    pub handle: ArrayId,
    /// The context it was made in.
    pub context: ContextId,
    /// Its extent, format and flags.
    pub shape: Shape,
    /// The mipmapped array that it is a level of.
    pub of: Option<MipmapId>,
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
        element(self.format, self.channels)
    }

    /// Converts the API's description of an array.
    pub fn of(desc: &sys::CUDA_ARRAY3D_DESCRIPTOR) -> Self {
        Self {
            width: desc.Width as u64,
            height: desc.Height as u64,
            depth: desc.Depth as u64,
            format: desc.Format,
            channels: desc.NumChannels,
            flags: desc.Flags,
        }
    }

    /// Checks that arrays of this shape can be made.
    pub fn check(&self) -> Result {
        self.element()?;
        let flat = self.depth > 0 && self.height == 0;
        if self.width == 0 || (flat && self.flags & sys::CUDA_ARRAY3D_LAYERED == 0) {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        // The program maps memory into such arrays. The devices report both features as missing.
        if self.flags & (sys::CUDA_ARRAY3D_SPARSE | sys::CUDA_ARRAY3D_DEFERRED_MAPPING) != 0 {
            return Err(sys::CUDA_ERROR_NOT_SUPPORTED);
        }
        Ok(())
    }
}

/// Bytes of an element, for the plain formats.
pub fn element(format: u32, channels: u32) -> Result<u64> {
    let channel = match format {
        sys::CU_AD_FORMAT_UNSIGNED_INT8 | sys::CU_AD_FORMAT_SIGNED_INT8 => 1,
        sys::CU_AD_FORMAT_UNSIGNED_INT16
        | sys::CU_AD_FORMAT_SIGNED_INT16
        | sys::CU_AD_FORMAT_HALF => 2,
        sys::CU_AD_FORMAT_UNSIGNED_INT32
        | sys::CU_AD_FORMAT_SIGNED_INT32
        | sys::CU_AD_FORMAT_FLOAT => 4,
        _ => return Err(sys::CUDA_ERROR_NOT_SUPPORTED),
    };
    if !matches!(channels, 1 | 2 | 4) {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    Ok(channel * u64::from(channels))
}

impl Arrays {
    /// A new array.
    pub fn create(&self, context: &Context, shape: Shape) -> Result<Arc<Array>> {
        shape.check()?;
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
        Ok(self.add(Array {
            handle: array,
            context,
            shape,
            of: None,
        }))
    }

    /// Adds an array that the worker has made.
    pub fn add(&self, array: Array) -> Arc<Array> {
        let made = Arc::new(array);
        self.0.insert(made.handle, made.clone());
        made
    }

    /// Forgets the levels of a mipmapped array that has been destroyed.
    pub fn forget_levels(&self, of: MipmapId) {
        self.0.remove_if(|array| array.of == Some(of));
    }

    /// The array behind a handle.
    pub fn get(&self, array: sys::CUarray) -> Result<Arc<Array>> {
        self.0
            .get(handles::of(array), sys::CUDA_ERROR_INVALID_HANDLE)
    }

    /// Ends an array.
    pub fn destroy(&self, array: sys::CUarray) -> Result {
        if self.get(array)?.of.is_some() {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
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

    /// Forgets the arrays of a context that has ended.
    pub fn forget(&self, context: ContextId) {
        self.0.remove_if(|array| array.context == context);
    }
}
