//! Exported functions for texture and surface objects.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_abi::sys::driver as cu;

use super::args::{In, Out};
use super::init::driver;
use crate::context;
use crate::error::{INVALID_HANDLE, INVALID_VALUE, Result};
use crate::objects::Context;
use crate::view::{self, View};

/// How long destroying an object waits for kernels that may use it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Lets launched kernels get to their end: programs destroy a texture as soon as they have launched what reads it, and a
/// GPU's copy of it stays good until it is needed for another. Kernels that wait for the program do not end; so there is a
/// limit.
fn let_readers_finish(context: &Context) {
    let until = Instant::now() + PATIENCE;
    let points = context.streams.lock().ends();
    let _all = points.iter().all(|point| point.wait_until(Some(until)));
}

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
        let context = context::current()?;
        resolve(handle, false)?;
        let_readers_finish(&context);
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
        let context = context::current()?;
        resolve(handle, true)?;
        let_readers_finish(&context);
        driver()?.views().remove(handle, true)
    }

    fn cuSurfObjectGetResourceDesc(out: Out<cu::CUDA_RESOURCE_DESC>, handle: cu::CUsurfObject) {
        out.set(resolve(handle, true)?.resource)
    }
}
