//! Exported functions for texture and surface objects.

use fermata_abi::op::{Address, Resource, ResourceView, Sampler, Texture, TextureId};
use fermata_abi::sys::driver as sys;

use crate::args::{In, Out};
use crate::frame::entry::driver_api;
use crate::handles::to_pointer;
use crate::object::session::session;
use crate::result::Result;

driver_api! {
    fn cuTexObjectCreate(
        object: Out<sys::CUtexObject>,
        resource: In<sys::CUDA_RESOURCE_DESC>,
        texture: In<sys::CUDA_TEXTURE_DESC>,
        view: In<sys::CUDA_RESOURCE_VIEW_DESC>,
    ) {
        let resource = resource_of(&resource.get()?)?;
        let sampler = Some(sampler_of(&texture.get()?));
        let view = view.get().ok().as_ref().map(view_of);
        object.set(session()?.textures.create(Texture { resource, sampler, view })?.raw())
    }

    fn cuTexObjectDestroy(object: sys::CUtexObject) {
        session()?.textures.destroy(false, TextureId::from_raw(object))
    }

    fn cuTexObjectGetResourceDesc(resource: Out<sys::CUDA_RESOURCE_DESC>, object: sys::CUtexObject) {
        resource.set(to_resource(&session()?.textures.get(false, TextureId::from_raw(object))?.resource))
    }

    fn cuTexObjectGetTextureDesc(texture: Out<sys::CUDA_TEXTURE_DESC>, object: sys::CUtexObject) {
        let sampler = session()?.textures.get(false, TextureId::from_raw(object))?.sampler;
        texture.set((&sampler.ok_or(sys::CUDA_ERROR_INVALID_VALUE)?).into())
    }

    fn cuTexObjectGetResourceViewDesc(
        view: Out<sys::CUDA_RESOURCE_VIEW_DESC>,
        object: sys::CUtexObject,
    ) {
        let known = session()?.textures.get(false, TextureId::from_raw(object))?.view;
        view.set((&known.ok_or(sys::CUDA_ERROR_INVALID_VALUE)?).into())
    }

    fn cuSurfObjectCreate(object: Out<sys::CUsurfObject>, resource: In<sys::CUDA_RESOURCE_DESC>) {
        let resource = resource_of(&resource.get()?)?;
        if !matches!(resource, Resource::Array(_)) {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let surface = Texture { resource, sampler: None, view: None };
        object.set(session()?.textures.create(surface)?.raw())
    }

    fn cuSurfObjectDestroy(object: sys::CUsurfObject) {
        session()?.textures.destroy(true, TextureId::from_raw(object))
    }

    fn cuSurfObjectGetResourceDesc(
        resource: Out<sys::CUDA_RESOURCE_DESC>,
        object: sys::CUsurfObject,
    ) {
        resource.set(to_resource(&session()?.textures.get(true, TextureId::from_raw(object))?.resource))
    }
}

fn resource_of(desc: &sys::CUDA_RESOURCE_DESC) -> Result<Resource> {
    if desc.flags != 0 {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: each member is read for the type that it belongs to; of numbers and handles every bit pattern is one.
    unsafe {
        Ok(match desc.resType {
            sys::CU_RESOURCE_TYPE_ARRAY => {
                Resource::Array(session()?.arrays.get(desc.res.array.hArray)?.handle)
            }
            sys::CU_RESOURCE_TYPE_LINEAR => {
                let linear = &desc.res.linear;
                Resource::Linear {
                    address: Address::from_raw(linear.devPtr),
                    format: linear.format,
                    channels: linear.numChannels,
                    bytes: linear.sizeInBytes as u64,
                }
            }
            sys::CU_RESOURCE_TYPE_PITCH2D => {
                let rows = &desc.res.pitch2D;
                Resource::Pitched {
                    address: Address::from_raw(rows.devPtr),
                    format: rows.format,
                    channels: rows.numChannels,
                    width: rows.width as u64,
                    height: rows.height as u64,
                    pitch: rows.pitchInBytes as u64,
                }
            }
            sys::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY => {
                let mipmap = desc.res.mipmap.hMipmappedArray;
                Resource::Mipmapped(session()?.mipmaps.get(mipmap)?.handle)
            }
            _ => return Err(sys::CUDA_ERROR_INVALID_VALUE),
        })
    }
}

fn to_resource(of: &Resource) -> sys::CUDA_RESOURCE_DESC {
    let mut desc = of.memory_description().unwrap_or_default();
    match of {
        Resource::Array(array) => {
            desc.resType = sys::CU_RESOURCE_TYPE_ARRAY;
            desc.res.array = sys::CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_1 {
                hArray: to_pointer(*array),
            };
        }
        Resource::Mipmapped(mipmap) => {
            desc.resType = sys::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
            desc.res.mipmap = sys::CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_2 {
                hMipmappedArray: to_pointer(*mipmap),
            };
        }
        Resource::Linear { .. } | Resource::Pitched { .. } => {}
    }
    desc
}

fn sampler_of(desc: &sys::CUDA_TEXTURE_DESC) -> Sampler {
    let levels = [
        desc.mipmapLevelBias,
        desc.minMipmapLevelClamp,
        desc.maxMipmapLevelClamp,
    ];
    Sampler {
        address_modes: desc.addressMode,
        filter: desc.filterMode,
        flags: desc.flags,
        anisotropy: desc.maxAnisotropy,
        level_filter: desc.mipmapFilterMode,
        levels: levels.map(f32::to_bits),
        border: desc.borderColor.map(f32::to_bits),
    }
}

fn view_of(desc: &sys::CUDA_RESOURCE_VIEW_DESC) -> ResourceView {
    let extent = [desc.width, desc.height, desc.depth];
    ResourceView {
        format: desc.format,
        extent: extent.map(|it| it as u64),
        levels: [desc.firstMipmapLevel, desc.lastMipmapLevel],
        layers: [desc.firstLayer, desc.lastLayer],
    }
}
