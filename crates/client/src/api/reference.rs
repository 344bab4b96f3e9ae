//! Exported functions for texture and surface references.

use core::ffi::{c_int, c_uint};
use std::sync::Arc;

use fermata_abi::op::{Address, Resource};
use fermata_abi::references;
use fermata_abi::sys::driver as sys;

use super::function::find;
use crate::args::{In, Name, Out};
use crate::frame::entry::driver_api;
use crate::handles::{of, to_pointer};
use crate::object::copy::End;
use crate::object::module::Module;
use crate::object::reference::Reference;
use crate::object::session::session;
use crate::result::Result;

driver_api! {
    fn cuModuleGetTexRef(reference: Out<sys::CUtexref>, module: sys::CUmodule, name: Name) {
        let found = session()?.references.of_module(&module_of(module)?, name.text()?, false)?;
        reference.set(to_pointer(found.handle))
    }

    fn cuModuleGetSurfRef(reference: Out<sys::CUsurfref>, module: sys::CUmodule, name: Name) {
        let found = session()?.references.of_module(&module_of(module)?, name.text()?, true)?;
        reference.set(to_pointer(found.handle))
    }

    fn cuTexRefCreate(reference: Out<sys::CUtexref>) {
        reference.set(to_pointer(session()?.references.create().handle))
    }

    fn cuTexRefDestroy(reference: sys::CUtexref) {
        session()?.references.destroy(of(reference))
    }

    fn cuParamSetTexRef(function: sys::CUfunction, unit: c_int, reference: sys::CUtexref) {
        find(function)?;
        known(reference)?;
        // A kernel finds its references by name; this call is left over from when it did not.
        if unit == sys::CU_PARAM_TR_DEFAULT { Ok(()) } else { Err(sys::CUDA_ERROR_INVALID_VALUE) }
    }

    fn cuTexRefSetArray(reference: sys::CUtexref, array: sys::CUarray, flags: c_uint) {
        if flags != sys::CU_TRSA_OVERRIDE_FORMAT {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let array = session()?.arrays.get(array)?;
        known(reference)?.change(|it| {
            (it.settings.format, it.settings.channels) = (array.shape.format, array.shape.channels);
            it.resource = Some(Resource::Array(array.handle));
            Ok(())
        })
    }

    fn cuTexRefSetMipmappedArray(
        reference: sys::CUtexref,
        mipmap: sys::CUmipmappedArray,
        flags: c_uint,
    ) {
        if flags != sys::CU_TRSA_OVERRIDE_FORMAT {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let mipmap = session()?.mipmaps.get(mipmap)?;
        known(reference)?.change(|it| {
            (it.settings.format, it.settings.channels) = (mipmap.shape.format, mipmap.shape.channels);
            it.resource = Some(Resource::Mipmapped(mipmap.handle));
            Ok(())
        })
    }

    fn cuTexRefSetAddress_v2(
        offset: Out<usize>,
        reference: sys::CUtexref,
        address: sys::CUdeviceptr,
        bytes: usize,
    ) {
        let (reference, address) = (known(reference)?, Address::from_raw(address));
        End::device(&session()?.memory, address, bytes as u64)?;
        reference.change(|it| {
            it.resource = Some(Resource::Linear {
                address,
                format: it.settings.format,
                channels: it.settings.channels,
                bytes: bytes as u64,
            });
            Ok(())
        })?;
        let before = reference.bound().offset;
        if offset.is_null() && before != 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        offset.set_if_wanted(before as usize);
        Ok(())
    }

    fn cuTexRefSetAddress2D_v2(
        reference: sys::CUtexref,
        desc: In<sys::CUDA_ARRAY_DESCRIPTOR>,
        address: sys::CUdeviceptr,
        pitch: usize,
    ) {
        pitched(reference, &desc.get()?, address, pitch)
    }

    fn cuTexRefSetAddress2D_v3(
        reference: sys::CUtexref,
        desc: In<sys::CUDA_ARRAY_DESCRIPTOR>,
        address: sys::CUdeviceptr,
        pitch: usize,
    ) {
        pitched(reference, &desc.get()?, address, pitch)
    }

    fn cuTexRefSetFormat(reference: sys::CUtexref, format: sys::CUarray_format, channels: c_int) {
        let channels = u32::try_from(channels).map_err(|_| sys::CUDA_ERROR_INVALID_VALUE)?;
        crate::object::array::element(format, channels)?;
        known(reference)?.change(|it| {
            (it.settings.format, it.settings.channels) = (format, channels);
            if let Some(Resource::Linear { format: of, channels: count, .. }) = &mut it.resource {
                (*of, *count) = (format, channels);
            }
            Ok(())
        })
    }

    fn cuTexRefSetAddressMode(reference: sys::CUtexref, dimension: c_int, mode: sys::CUaddress_mode) {
        if mode > sys::CU_TR_ADDRESS_MODE_BORDER {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let at = references::dimension(dimension).ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        known(reference)?.change(|it| {
            it.settings.sampler.address_modes[at] = mode;
            Ok(())
        })
    }

    fn cuTexRefSetFilterMode(reference: sys::CUtexref, mode: sys::CUfilter_mode) {
        let mode = references::filter(mode).ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        known(reference)?.change(|it| {
            it.settings.sampler.filter = mode;
            Ok(())
        })
    }

    fn cuTexRefSetMipmapFilterMode(reference: sys::CUtexref, mode: sys::CUfilter_mode) {
        let mode = references::filter(mode).ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        known(reference)?.change(|it| {
            it.settings.sampler.level_filter = mode;
            Ok(())
        })
    }

    fn cuTexRefSetMipmapLevelBias(reference: sys::CUtexref, bias: f32) {
        known(reference)?.change(|it| {
            it.settings.sampler.levels[0] = bias.to_bits();
            Ok(())
        })
    }

    fn cuTexRefSetMipmapLevelClamp(reference: sys::CUtexref, least: f32, most: f32) {
        known(reference)?.change(|it| {
            it.settings.sampler.levels[1..].copy_from_slice(&[least.to_bits(), most.to_bits()]);
            Ok(())
        })
    }

    fn cuTexRefSetMaxAnisotropy(reference: sys::CUtexref, most: c_uint) {
        known(reference)?.change(|it| {
            it.settings.sampler.anisotropy = most;
            Ok(())
        })
    }

    fn cuTexRefSetBorderColor(reference: sys::CUtexref, color: Out<f32>) {
        let color = color.cast::<[f32; 4]>().get()?;
        known(reference)?.change(|it| {
            it.settings.sampler.border = color.map(f32::to_bits);
            Ok(())
        })
    }

    fn cuTexRefSetFlags(reference: sys::CUtexref, flags: c_uint) {
        let flags = references::flags(flags).ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        known(reference)?.change(|it| {
            it.settings.sampler.flags = flags;
            Ok(())
        })
    }

    fn cuTexRefGetAddress_v2(address: Out<sys::CUdeviceptr>, reference: sys::CUtexref) {
        let bound = known(reference)?.bound();
        let found = bound.resource.as_ref().and_then(Resource::memory);
        let (start, _) = found.ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        address.set((start - bound.offset).raw())
    }

    fn cuTexRefGetArray(array: Out<sys::CUarray>, reference: sys::CUtexref) {
        match known(reference)?.bound().resource {
            Some(Resource::Array(handle)) => array.set(to_pointer(handle)),
            _ => Err(sys::CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn cuTexRefGetMipmappedArray(mipmap: Out<sys::CUmipmappedArray>, reference: sys::CUtexref) {
        match known(reference)?.bound().resource {
            Some(Resource::Mipmapped(handle)) => mipmap.set(to_pointer(handle)),
            _ => Err(sys::CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn cuTexRefGetFormat(
        format: Out<sys::CUarray_format>,
        channels: Out<c_int>,
        reference: sys::CUtexref,
    ) {
        let settings = known(reference)?.bound().settings;
        format.set_if_wanted(settings.format);
        channels.set_if_wanted(settings.channels as c_int);
        Ok(())
    }

    fn cuTexRefGetAddressMode(
        mode: Out<sys::CUaddress_mode>,
        reference: sys::CUtexref,
        dimension: c_int,
    ) {
        let at = references::dimension(dimension).ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        mode.set(known(reference)?.bound().settings.sampler.address_modes[at])
    }

    fn cuTexRefGetFilterMode(mode: Out<sys::CUfilter_mode>, reference: sys::CUtexref) {
        mode.set(known(reference)?.bound().settings.sampler.filter)
    }

    fn cuTexRefGetMipmapFilterMode(mode: Out<sys::CUfilter_mode>, reference: sys::CUtexref) {
        mode.set(known(reference)?.bound().settings.sampler.level_filter)
    }

    fn cuTexRefGetMipmapLevelBias(bias: Out<f32>, reference: sys::CUtexref) {
        bias.set(f32::from_bits(known(reference)?.bound().settings.sampler.levels[0]))
    }

    fn cuTexRefGetMipmapLevelClamp(least: Out<f32>, most: Out<f32>, reference: sys::CUtexref) {
        let levels = known(reference)?.bound().settings.sampler.levels.map(f32::from_bits);
        least.set_if_wanted(levels[1]);
        most.set_if_wanted(levels[2]);
        Ok(())
    }

    fn cuTexRefGetMaxAnisotropy(most: Out<c_int>, reference: sys::CUtexref) {
        most.set(known(reference)?.bound().settings.sampler.anisotropy as c_int)
    }

    fn cuTexRefGetBorderColor(color: Out<f32>, reference: sys::CUtexref) {
        let border = known(reference)?.bound().settings.sampler.border;
        (color.cast::<[f32; 4]>()).set(border.map(f32::from_bits))
    }

    fn cuTexRefGetFlags(flags: Out<c_uint>, reference: sys::CUtexref) {
        flags.set(known(reference)?.bound().settings.sampler.flags)
    }

    fn cuSurfRefSetArray(reference: sys::CUsurfref, array: sys::CUarray, flags: c_uint) {
        if flags != 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let session = session()?;
        let array = session.arrays.get(array)?.handle;
        session.references.get(of(reference), true)?.change(|it| {
            it.resource = Some(Resource::Array(array));
            Ok(())
        })
    }

    fn cuSurfRefGetArray(array: Out<sys::CUarray>, reference: sys::CUsurfref) {
        match session()?.references.get(of(reference), true)?.bound().resource {
            Some(Resource::Array(handle)) => array.set(to_pointer(handle)),
            _ => Err(sys::CUDA_ERROR_INVALID_VALUE),
        }
    }
}

fn module_of(module: sys::CUmodule) -> Result<Arc<Module>> {
    let modules = &session()?.modules.modules;
    modules.get(of(module), sys::CUDA_ERROR_INVALID_HANDLE)
}

fn known(reference: sys::CUtexref) -> Result<Arc<Reference>> {
    session()?.references.get(of(reference), false)
}

/// Binds rows of device memory.
fn pitched(
    reference: sys::CUtexref,
    desc: &sys::CUDA_ARRAY_DESCRIPTOR,
    address: sys::CUdeviceptr,
    pitch: usize,
) -> Result {
    let (format, channels) = (desc.Format, desc.NumChannels);
    let row = crate::object::array::element(format, channels)?.checked_mul(desc.Width as u64);
    let (height, pitch) = (desc.Height as u64, pitch as u64);
    let fits = row.is_some_and(|row| row > 0 && row <= pitch) && height > 0;
    // Of the last row, only the bytes that are used have to be allocated.
    let whole = pitch
        .checked_mul(height.saturating_sub(1))
        .and_then(|bytes| bytes.checked_add(row?));
    let whole = whole
        .filter(|_| fits)
        .ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
    let address = Address::from_raw(address);
    End::device(&session()?.memory, address, whole)?;
    known(reference)?.change(|it| {
        (it.settings.format, it.settings.channels) = (format, channels);
        it.resource = Some(Resource::Pitched {
            address,
            format,
            channels,
            width: desc.Width as u64,
            height,
            pitch,
        });
        Ok(())
    })
}
