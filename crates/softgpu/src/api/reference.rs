//! Exported functions for texture and surface references.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use fermata_abi::references;
use fermata_abi::sys::driver as cu;

use super::args::{In, Name, Out};
use super::function::function;
use super::init::driver;
use super::module::resolve as module;
use super::{to_handle, to_pointer};
use crate::context;
use crate::error::{INVALID_VALUE, Result};
use crate::reference::{Bound, Reference};

fn known(reference: cu::CUtexref) -> Result<Arc<Reference>> {
    driver()?.references().get(to_handle(reference), false)
}

fn change(reference: cu::CUtexref, how: impl FnOnce(&mut Bound) -> Result) -> Result {
    context::current()?;
    known(reference)?.change(driver()?, how)
}

fn of_array(array: cu::CUarray) -> cu::CUDA_RESOURCE_DESC {
    let mut resource = cu::CUDA_RESOURCE_DESC {
        resType: cu::CU_RESOURCE_TYPE_ARRAY,
        ..Default::default()
    };
    resource.res.array.hArray = array;
    resource
}

fn of_memory(address: u64, bytes: usize, set: &Bound) -> cu::CUDA_RESOURCE_DESC {
    let mut resource = cu::CUDA_RESOURCE_DESC {
        resType: cu::CU_RESOURCE_TYPE_LINEAR,
        ..Default::default()
    };
    resource.res.linear = cu::CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_3 {
        devPtr: address,
        format: set.format,
        numChannels: set.channels,
        sizeInBytes: bytes,
    };
    resource
}

/// The array that a reference is bound to, if it is one.
fn array_of(bound: &Bound) -> Result<cu::CUarray> {
    let resource = bound.resource.as_ref().ok_or(INVALID_VALUE)?;
    if resource.resType != cu::CU_RESOURCE_TYPE_ARRAY {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the type says that this member of the union was filled in.
    Ok(unsafe { resource.res.array.hArray })
}

/// The address that a reference is bound to, if it is bound to memory.
fn address_of(bound: &Bound) -> Result<u64> {
    let resource = bound.resource.as_ref().ok_or(INVALID_VALUE)?;
    // SAFETY: the type says which member of the union was filled in.
    unsafe {
        match resource.resType {
            cu::CU_RESOURCE_TYPE_LINEAR => Ok(resource.res.linear.devPtr),
            cu::CU_RESOURCE_TYPE_PITCH2D => Ok(resource.res.pitch2D.devPtr),
            _ => Err(INVALID_VALUE),
        }
    }
}

api! {
    fn cuModuleGetTexRef(out: Out<cu::CUtexref>, handle: cu::CUmodule, name: Name) {
        let found = driver()?.references().of_module(&module(handle)?, name.text()?, false)?;
        out.set(to_pointer(found.handle))
    }

    fn cuModuleGetSurfRef(out: Out<cu::CUsurfref>, handle: cu::CUmodule, name: Name) {
        let found = driver()?.references().of_module(&module(handle)?, name.text()?, true)?;
        out.set(to_pointer(found.handle))
    }

    fn cuTexRefCreate(out: Out<cu::CUtexref>) {
        context::current()?;
        if out.is_null() {
            return Err(INVALID_VALUE);
        }
        out.set(to_pointer(driver()?.references().add(None, false).handle))
    }

    fn cuTexRefDestroy(reference: cu::CUtexref) {
        driver()?.references().destroy(to_handle(reference))
    }

    /// Kernels find their references by name; this call is left over from when they did not.
    fn cuParamSetTexRef(handle: cu::CUfunction, unit: c_int, reference: cu::CUtexref) {
        function(handle)?;
        known(reference)?;
        if unit == cu::CU_PARAM_TR_DEFAULT { Ok(()) } else { Err(INVALID_VALUE) }
    }

    fn cuTexRefSetArray(reference: cu::CUtexref, array: cu::CUarray, flags: c_uint) {
        if flags != cu::CU_TRSA_OVERRIDE_FORMAT {
            return Err(INVALID_VALUE);
        }
        let shape = super::array::resolve(array)?.descriptor;
        change(reference, |it| {
            (it.format, it.channels) = (shape.Format, shape.NumChannels);
            it.resource = Some(of_array(array));
            Ok(())
        })
    }

    fn cuTexRefSetMipmappedArray(
        reference: cu::CUtexref,
        mipmap: cu::CUmipmappedArray,
        flags: c_uint,
    ) {
        let found = super::mipmap::resolve(mipmap)?;
        let shape = found.levels.first().ok_or(INVALID_VALUE)?.descriptor;
        if flags != cu::CU_TRSA_OVERRIDE_FORMAT {
            return Err(INVALID_VALUE);
        }
        change(reference, |it| {
            (it.format, it.channels) = (shape.Format, shape.NumChannels);
            let mut resource = cu::CUDA_RESOURCE_DESC {
                resType: cu::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY,
                ..Default::default()
            };
            resource.res.mipmap.hMipmappedArray = mipmap;
            it.resource = Some(resource);
            Ok(())
        })
    }

    fn cuTexRefGetMipmappedArray(out: Out<cu::CUmipmappedArray>, reference: cu::CUtexref) {
        let bound = known(reference)?.bound();
        let resource = bound.resource.as_ref().ok_or(INVALID_VALUE)?;
        if resource.resType != cu::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the type says that this member of the union was filled in.
        out.set(unsafe { resource.res.mipmap.hMipmappedArray })
    }

    fn cuTexRefSetAddress_v2(
        offset: Out<usize>,
        reference: cu::CUtexref,
        address: cu::CUdeviceptr,
        bytes: usize,
    ) {
        driver()?.memory.find(address).ok_or(INVALID_VALUE)?;
        change(reference, |it| {
            it.resource = Some(of_memory(address, bytes, it));
            Ok(())
        })?;
        // Texels may begin anywhere.
        offset.set_if_wanted(0);
        Ok(())
    }

    fn cuTexRefSetAddress2D_v3 | fn cuTexRefSetAddress2D_v2(
        reference: cu::CUtexref,
        shape: In<cu::CUDA_ARRAY_DESCRIPTOR>,
        address: cu::CUdeviceptr,
        pitch: usize,
    ) {
        let shape = shape.get()?;
        driver()?.memory.find(address).ok_or(INVALID_VALUE)?;
        change(reference, |it| {
            (it.format, it.channels) = (shape.Format, shape.NumChannels);
            let mut resource = cu::CUDA_RESOURCE_DESC {
                resType: cu::CU_RESOURCE_TYPE_PITCH2D,
                ..Default::default()
            };
            resource.res.pitch2D = cu::CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_4 {
                devPtr: address,
                format: shape.Format,
                numChannels: shape.NumChannels,
                width: shape.Width,
                height: shape.Height,
                pitchInBytes: pitch,
            };
            it.resource = Some(resource);
            Ok(())
        })
    }

    fn cuTexRefSetFormat(reference: cu::CUtexref, format: cu::CUarray_format, channels: c_int) {
        let channels = u32::try_from(channels).map_err(|_| INVALID_VALUE)?;
        if !matches!(channels, 1 | 2 | 4) {
            return Err(INVALID_VALUE);
        }
        change(reference, |it| {
            (it.format, it.channels) = (format, channels);
            if let Some(resource) = &it.resource
                && resource.resType == cu::CU_RESOURCE_TYPE_LINEAR
            {
                // SAFETY: the type says that this member of the union was filled in.
                let linear = unsafe { resource.res.linear };
                it.resource = Some(of_memory(linear.devPtr, linear.sizeInBytes, it));
            }
            Ok(())
        })
    }

    fn cuTexRefSetAddressMode(reference: cu::CUtexref, at: c_int, mode: cu::CUaddress_mode) {
        let at = references::dimension(at).ok_or(INVALID_VALUE)?;
        if mode > cu::CU_TR_ADDRESS_MODE_BORDER {
            return Err(INVALID_VALUE);
        }
        change(reference, |it| {
            it.sampling.addressMode[at] = mode;
            Ok(())
        })
    }

    fn cuTexRefSetFilterMode(reference: cu::CUtexref, mode: cu::CUfilter_mode) {
        let mode = references::filter(mode).ok_or(INVALID_VALUE)?;
        change(reference, |it| {
            it.sampling.filterMode = mode;
            Ok(())
        })
    }

    fn cuTexRefSetMipmapFilterMode(reference: cu::CUtexref, mode: cu::CUfilter_mode) {
        let mode = references::filter(mode).ok_or(INVALID_VALUE)?;
        change(reference, |it| {
            it.sampling.mipmapFilterMode = mode;
            Ok(())
        })
    }

    fn cuTexRefSetMipmapLevelBias(reference: cu::CUtexref, bias: f32) {
        change(reference, |it| {
            it.sampling.mipmapLevelBias = bias;
            Ok(())
        })
    }

    fn cuTexRefSetMipmapLevelClamp(reference: cu::CUtexref, least: f32, most: f32) {
        change(reference, |it| {
            (it.sampling.minMipmapLevelClamp, it.sampling.maxMipmapLevelClamp) = (least, most);
            Ok(())
        })
    }

    fn cuTexRefSetMaxAnisotropy(reference: cu::CUtexref, most: c_uint) {
        change(reference, |it| {
            it.sampling.maxAnisotropy = most;
            Ok(())
        })
    }

    fn cuTexRefSetBorderColor(reference: cu::CUtexref, color: Out<f32>) {
        let color = color.to_in().cast::<[f32; 4]>().get()?;
        change(reference, |it| {
            it.sampling.borderColor = color;
            Ok(())
        })
    }

    fn cuTexRefSetFlags(reference: cu::CUtexref, flags: c_uint) {
        let flags = references::flags(flags).ok_or(INVALID_VALUE)?;
        change(reference, |it| {
            it.sampling.flags = flags;
            Ok(())
        })
    }

    fn cuTexRefGetAddress_v2(address: Out<cu::CUdeviceptr>, reference: cu::CUtexref) {
        address.set(address_of(&known(reference)?.bound())?)
    }

    fn cuTexRefGetArray(array: Out<cu::CUarray>, reference: cu::CUtexref) {
        array.set(array_of(&known(reference)?.bound())?)
    }

    fn cuTexRefGetFormat(
        format: Out<cu::CUarray_format>,
        channels: Out<c_int>,
        reference: cu::CUtexref,
    ) {
        let bound = known(reference)?.bound();
        format.set_if_wanted(bound.format);
        channels.set_if_wanted(bound.channels as c_int);
        Ok(())
    }

    fn cuTexRefGetAddressMode(mode: Out<cu::CUaddress_mode>, reference: cu::CUtexref, at: c_int) {
        let modes = known(reference)?.bound().sampling.addressMode;
        mode.set(modes[references::dimension(at).ok_or(INVALID_VALUE)?])
    }

    fn cuTexRefGetFilterMode(mode: Out<cu::CUfilter_mode>, reference: cu::CUtexref) {
        mode.set(known(reference)?.bound().sampling.filterMode)
    }

    fn cuTexRefGetMipmapFilterMode(mode: Out<cu::CUfilter_mode>, reference: cu::CUtexref) {
        mode.set(known(reference)?.bound().sampling.mipmapFilterMode)
    }

    fn cuTexRefGetMipmapLevelBias(bias: Out<f32>, reference: cu::CUtexref) {
        bias.set(known(reference)?.bound().sampling.mipmapLevelBias)
    }

    fn cuTexRefGetMipmapLevelClamp(least: Out<f32>, most: Out<f32>, reference: cu::CUtexref) {
        let sampling = known(reference)?.bound().sampling;
        least.set_if_wanted(sampling.minMipmapLevelClamp);
        most.set_if_wanted(sampling.maxMipmapLevelClamp);
        Ok(())
    }

    fn cuTexRefGetMaxAnisotropy(most: Out<c_int>, reference: cu::CUtexref) {
        most.set(known(reference)?.bound().sampling.maxAnisotropy as c_int)
    }

    fn cuTexRefGetBorderColor(color: Out<f32>, reference: cu::CUtexref) {
        let border = known(reference)?.bound().sampling.borderColor;
        (0..).zip(border).try_for_each(|(at, value)| color.set_at(at, value))
    }

    fn cuTexRefGetFlags(flags: Out<c_uint>, reference: cu::CUtexref) {
        flags.set(known(reference)?.bound().sampling.flags)
    }

    fn cuSurfRefSetArray(reference: cu::CUsurfref, array: cu::CUarray, flags: c_uint) {
        context::current()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        super::array::resolve(array)?;
        let reference = driver()?.references().get(to_handle(reference), true)?;
        reference.change(driver()?, |it| {
            it.resource = Some(of_array(array));
            Ok(())
        })
    }

    fn cuSurfRefGetArray(array: Out<cu::CUarray>, reference: cu::CUsurfref) {
        array.set(array_of(&driver()?.references().get(to_handle(reference), true)?.bound())?)
    }
}
