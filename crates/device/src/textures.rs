//! Texture and surface objects.

use fermata_abi::op::{Resource, Texture, TextureId};
use fermata_abi::sys::driver as cu;

use crate::driver::Result;
use crate::{ArrayHandle, Driver, DriverError, MipmapHandle};

/// The array that a texture is about, in the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Texels {
    /// An array.
    Array(ArrayHandle),
    /// An array with levels.
    Mipmap(MipmapHandle),
    /// None: it is about memory.
    None,
}

fn resource(of: &Resource, texels: Texels) -> Result<cu::CUDA_RESOURCE_DESC> {
    if let Some(desc) = of.memory_description() {
        return Ok(desc);
    }
    let mut desc = cu::CUDA_RESOURCE_DESC::default();
    match texels {
        Texels::Array(array) => {
            desc.resType = cu::CU_RESOURCE_TYPE_ARRAY;
            desc.res.array = cu::CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_1 {
                hArray: array.raw(),
            };
        }
        Texels::Mipmap(mipmap) => {
            desc.resType = cu::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
            desc.res.mipmap = cu::CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_2 {
                hMipmappedArray: mipmap.raw(),
            };
        }
        Texels::None => {
            return Err(DriverError {
                call: "cuTexObjectCreate",
                code: cu::CUDA_ERROR_INVALID_HANDLE,
                name: "the array is gone".into(),
            });
        }
    }
    Ok(desc)
}

impl Driver {
    /// Makes a texture or surface object in the current context, of `texels` if it is about an array.
    ///
    /// # Errors
    /// What the driver says.
    pub fn create_texture(&self, texture: &Texture, texels: Texels) -> Result<TextureId> {
        let mut object = 0;
        let resource = resource(&texture.resource, texels)?;
        let view = texture.view.as_ref().map(cu::CUDA_RESOURCE_VIEW_DESC::from);
        let view = view.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: every pointer is null where the driver allows it, or refers to a live local.
        unsafe {
            match &texture.sampler {
                Some(it) => {
                    let sampler = it.into();
                    self.f
                        .cuTexObjectCreate(&mut object, &resource, &sampler, view)?;
                }
                None => self.f.cuSurfObjectCreate(&mut object, &resource)?,
            }
        }
        Ok(TextureId::from_raw(object))
    }

    /// Ends a texture or surface object of the current context.
    ///
    /// # Errors
    /// What the driver says.
    pub fn destroy_texture(&self, object: TextureId, surface: bool) -> Result<()> {
        // SAFETY: the argument is a plain number, which the driver checks.
        unsafe {
            match surface {
                true => self.f.cuSurfObjectDestroy(object.raw()),
                false => self.f.cuTexObjectDestroy(object.raw()),
            }
        }
    }
}
