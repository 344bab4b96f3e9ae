//! The program's mipmapped arrays.

use std::sync::Arc;

use fermata_abi::op::{ContextId, Mipmap, MipmapId, Op};
use fermata_abi::sys::driver as sys;

use crate::handles::{self, Table};
use crate::link;
use crate::object::array::{Array, Arrays, Shape};
use crate::object::context::Context;
use crate::result::Result;

/// All mipmapped arrays.
#[derive(Debug, Default)]
pub struct Mipmaps(Table<MipmapId, Mipmapped>);

/// A mipmapped array.
#[derive(Debug)]
pub struct Mipmapped {
    /// Its handle.
    pub handle: MipmapId,
    /// The context it was made in.
    pub context: ContextId,
    /// Its shape and its levels.
    pub shape: Mipmap,
}

impl Mipmaps {
    /// A new array with the given number of levels, or as many as its shape allows. The levels are added to `arrays`.
    pub fn create(
        &self,
        arrays: &Arrays,
        context: &Context,
        shape: Shape,
        levels: u32,
    ) -> Result<Arc<Mipmapped>> {
        shape.check()?;
        let mut mipmap = Mipmap {
            width: shape.width,
            height: shape.height,
            depth: shape.depth,
            format: shape.format,
            channels: shape.channels,
            flags: shape.flags,
            levels: Vec::new(),
        };
        let count = levels.clamp(1, mipmap.most_levels());
        mipmap.levels = (0..count).map(|_| handles::fresh()).collect();
        let (handle, context) = (handles::fresh(), context.handle);
        let op = Op::MipmapCreate {
            mipmap: handle,
            context,
            shape: mipmap.clone(),
        };
        link::ask(&op, link::nothing)?;
        for (level, array) in (0..).zip(&mipmap.levels) {
            let [width, height, depth] = mipmap.extent(level);
            arrays.add(Array {
                handle: *array,
                context,
                shape: Shape {
                    width,
                    height,
                    depth,
                    ..shape
                },
                of: Some(handle),
            });
        }
        let made = Arc::new(Mipmapped {
            handle,
            context,
            shape: mipmap,
        });
        self.0.insert(handle, made.clone());
        Ok(made)
    }

    /// The mipmapped array behind a handle.
    pub fn get(&self, mipmap: sys::CUmipmappedArray) -> Result<Arc<Mipmapped>> {
        self.0
            .get(handles::of(mipmap), sys::CUDA_ERROR_INVALID_HANDLE)
    }

    /// Ends an array with its levels.
    pub fn destroy(&self, arrays: &Arrays, mipmap: sys::CUmipmappedArray) -> Result {
        let gone = self
            .0
            .remove(handles::of(mipmap), sys::CUDA_ERROR_INVALID_HANDLE)?;
        arrays.forget_levels(gone.handle);
        let mipmap = gone.handle;
        link::ask(&Op::MipmapDestroy { mipmap }, link::nothing)
    }

    /// Forgets the arrays of a context that has ended.
    pub fn forget(&self, context: ContextId) {
        self.0.remove_if(|mipmap| mipmap.context == context);
    }
}
