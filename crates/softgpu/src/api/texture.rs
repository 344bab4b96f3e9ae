//! Texture and surface objects.

use std::sync::Arc;

use fermata_abi::sys::driver as cu;

use super::args::{In, Out};
use super::init::driver;
use crate::context;
use crate::error::{INVALID_HANDLE, INVALID_VALUE, Result};
use crate::view::{self, View};

fn resolve(handle: u64, surface: bool) -> Result<Arc<View>> {
    let found = driver()?.views().get(handle);
    found
        .filter(|view| view.surface == surface)
        .ok_or(INVALID_HANDLE)
}

api! {
    fn cuTexObjectCreate(
        out: Out<cu::CUtexObject>,
        resource: In<cu::CUDA_RESOURCE_DESC>,
        sampling: In<cu::CUDA_TEXTURE_DESC>,
        format: In<cu::CUDA_RESOURCE_VIEW_DESC>,
    ) {
        let context = context::current()?;
        if out.is_null() {
            return Err(INVALID_VALUE);
        }
        let (resource, sampling) = (resource.get()?, sampling.get()?);
        let format = if format.is_null() { Default::default() } else { format.get()? };
        view::check_format(&format)?;
        let mut levels = view::sampled(view::texels(driver()?, &resource)?, &sampling)?;
        view::keep_levels(&mut levels, &format);
        out.set(driver()?.views().insert(View {
            context: context.handle,
            levels,
            surface: false,
            resource,
            sampling,
            format,
        }))
    }

    fn cuTexObjectDestroy(handle: cu::CUtexObject) {
        context::current()?;
        driver()?.views().remove(handle, false)
    }

    fn cuTexObjectGetResourceDesc(out: Out<cu::CUDA_RESOURCE_DESC>, handle: cu::CUtexObject) {
        out.set(resolve(handle, false)?.resource)
    }

    fn cuTexObjectGetTextureDesc(out: Out<cu::CUDA_TEXTURE_DESC>, handle: cu::CUtexObject) {
        out.set(resolve(handle, false)?.sampling)
    }

    fn cuTexObjectGetResourceViewDesc(out: Out<cu::CUDA_RESOURCE_VIEW_DESC>, handle: cu::CUtexObject) {
        out.set(resolve(handle, false)?.format)
    }

    fn cuSurfObjectCreate(out: Out<cu::CUsurfObject>, resource: In<cu::CUDA_RESOURCE_DESC>) {
        let context = context::current()?;
        let resource = resource.get()?;
        if out.is_null() || resource.resType != cu::CU_RESOURCE_TYPE_ARRAY {
            return Err(INVALID_VALUE);
        }
        out.set(driver()?.views().insert(View {
            context: context.handle,
            levels: view::texels(driver()?, &resource)?,
            surface: true,
            resource,
            sampling: Default::default(),
            format: Default::default(),
        }))
    }

    fn cuSurfObjectDestroy(handle: cu::CUsurfObject) {
        context::current()?;
        driver()?.views().remove(handle, true)
    }

    fn cuSurfObjectGetResourceDesc(out: Out<cu::CUDA_RESOURCE_DESC>, handle: cu::CUsurfObject) {
        out.set(resolve(handle, true)?.resource)
    }
}
