//! Texture and surface references of modules: variables of a kernel's text that are bound to texels by name.
//!
//! A driver keeps what is set on a reference, and launches from then on use it. So only what differs is set: a driver
//! refuses some values that it has by itself.

use std::ffi::{CString, c_int};

use fermata_abi::op::{ReferenceSettings, Resource, Sampler, Texture};
use fermata_abi::sys::driver as cu;

use crate::driver::Result;
use crate::{Driver, DriverError, ModuleHandle, Texels};

fn name_of(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| DriverError {
        call: "cuModuleGetTexRef",
        code: cu::CUDA_ERROR_NOT_FOUND,
        name: "a name with a NUL byte".into(),
    })
}

fn gone() -> DriverError {
    DriverError {
        call: "cuTexRefSetArray",
        code: cu::CUDA_ERROR_INVALID_HANDLE,
        name: "the array is gone".into(),
    }
}

impl Driver {
    fn texture_reference(&self, module: ModuleHandle, name: &str) -> Result<cu::CUtexref> {
        let name = name_of(name)?;
        let mut reference = std::ptr::null_mut();
        // SAFETY: the name ends with NUL, the pointer refers to a live local.
        unsafe {
            self.f
                .cuModuleGetTexRef(&mut reference, module.raw(), name.as_ptr())?;
        }
        Ok(reference)
    }

    /// How a texture reference of a module is read. Of a surface reference the answer says only that there is one.
    ///
    /// # Errors
    /// There is none of this name, or what the driver says.
    pub fn reference(
        &self,
        module: ModuleHandle,
        name: &str,
        surface: bool,
    ) -> Result<ReferenceSettings> {
        let mut settings = ReferenceSettings {
            sampler: Sampler {
                address_modes: [0; 3],
                filter: 0,
                flags: 0,
                anisotropy: 0,
                level_filter: 0,
                levels: [0; 3],
                border: [0; 4],
            },
            format: cu::CU_AD_FORMAT_FLOAT,
            channels: 1,
        };
        if surface {
            let name = name_of(name)?;
            let mut reference = std::ptr::null_mut();
            // SAFETY: the name ends with NUL, the pointer refers to a live local.
            unsafe {
                self.f
                    .cuModuleGetSurfRef(&mut reference, module.raw(), name.as_ptr())?;
            }
            return Ok(settings);
        }
        let reference = self.texture_reference(module, name)?;
        settings.sampler = self.reference_sampler(reference);
        let (mut format, mut channels) = (settings.format, 1);
        // SAFETY: both pointers refer to live locals. A reference that nothing was set on may have no format.
        let known = unsafe {
            self.f
                .cuTexRefGetFormat(&mut format, &mut channels, reference)
        };
        if let (Ok(()), Ok(channels)) = (known, u32::try_from(channels)) {
            (settings.format, settings.channels) = (format, channels);
        }
        Ok(settings)
    }

    /// What the driver tells; what it does not tell is 0.
    fn reference_sampler(&self, reference: cu::CUtexref) -> Sampler {
        let f = &self.f;
        let mut address_modes = [0; 3];
        let (mut filter, mut level_filter, mut flags) = (0, 0, 0);
        let mut anisotropy: c_int = 0;
        let (mut bias, mut least, mut most) = (0f32, 0f32, 0f32);
        let mut border = [0f32; 4];
        // SAFETY: every pointer refers to a live local, the last to four numbers.
        unsafe {
            for (dimension, mode) in (0..).zip(&mut address_modes) {
                let _ = f.cuTexRefGetAddressMode(mode, reference, dimension);
            }
            let _ = f.cuTexRefGetFilterMode(&mut filter, reference);
            let _ = f.cuTexRefGetFlags(&mut flags, reference);
            let _ = f.cuTexRefGetMaxAnisotropy(&mut anisotropy, reference);
            let _ = f.cuTexRefGetMipmapFilterMode(&mut level_filter, reference);
            let _ = f.cuTexRefGetMipmapLevelBias(&mut bias, reference);
            let _ = f.cuTexRefGetMipmapLevelClamp(&mut least, &mut most, reference);
            let _ = f.cuTexRefGetBorderColor(border.as_mut_ptr(), reference);
        }
        Sampler {
            address_modes,
            filter,
            flags,
            anisotropy: anisotropy.max(0) as u32,
            level_filter,
            levels: [bias, least, most].map(f32::to_bits),
            border: border.map(f32::to_bits),
        }
    }

    /// Binds a reference of a module in the current context: a surface reference if there is no sampler. The answer is
    /// how many bytes before a linear address the texture begins.
    ///
    /// # Errors
    /// What the driver says.
    pub fn bind_reference(
        &self,
        module: ModuleHandle,
        name: &str,
        texture: &Texture,
        texels: Texels,
    ) -> Result<u64> {
        let Some(sampler) = &texture.sampler else {
            return self.bind_surface(module, name, texels);
        };
        let reference = self.texture_reference(module, name)?;
        self.set_sampler(reference, sampler)?;
        self.bind_texels(reference, &texture.resource, texels)
    }

    fn bind_surface(&self, module: ModuleHandle, name: &str, texels: Texels) -> Result<u64> {
        let Texels::Array(array) = texels else {
            return Err(gone());
        };
        let name = name_of(name)?;
        let mut reference = std::ptr::null_mut();
        // SAFETY: the name ends with NUL, the pointer refers to a live local; the handles are the driver's.
        unsafe {
            self.f
                .cuModuleGetSurfRef(&mut reference, module.raw(), name.as_ptr())?;
            self.f.cuSurfRefSetArray(reference, array.raw(), 0)?;
        }
        Ok(0)
    }

    fn bind_texels(
        &self,
        reference: cu::CUtexref,
        resource: &Resource,
        texels: Texels,
    ) -> Result<u64> {
        let f = &self.f;
        let mut offset = 0;
        // SAFETY: pointers refer to live locals; handles are the driver's, which checks them.
        unsafe {
            match (resource, texels) {
                (Resource::Array(_), Texels::Array(array)) => {
                    f.cuTexRefSetArray(reference, array.raw(), cu::CU_TRSA_OVERRIDE_FORMAT)?;
                }
                (Resource::Mipmapped(_), Texels::Mipmap(mipmap)) => {
                    let format = cu::CU_TRSA_OVERRIDE_FORMAT;
                    f.cuTexRefSetMipmappedArray(reference, mipmap.raw(), format)?;
                }
                (Resource::Array(_) | Resource::Mipmapped(_), _) => return Err(gone()),
                (
                    Resource::Linear {
                        address,
                        format,
                        channels,
                        bytes,
                    },
                    _,
                ) => {
                    f.cuTexRefSetFormat(reference, *format, *channels as c_int)?;
                    let bytes = *bytes as usize;
                    f.cuTexRefSetAddress_v2(&mut offset, reference, address.raw(), bytes)?;
                }
                (
                    Resource::Pitched {
                        address,
                        format,
                        channels,
                        width,
                        height,
                        pitch,
                    },
                    _,
                ) => {
                    let descriptor = cu::CUDA_ARRAY_DESCRIPTOR {
                        Width: *width as usize,
                        Height: *height as usize,
                        Format: *format,
                        NumChannels: *channels,
                    };
                    let pitch = *pitch as usize;
                    f.cuTexRefSetAddress2D_v3(reference, &descriptor, address.raw(), pitch)?;
                }
            }
        }
        Ok(offset as u64)
    }

    fn set_sampler(&self, reference: cu::CUtexref, wanted: &Sampler) -> Result<()> {
        let f = &self.f;
        let has = self.reference_sampler(reference);
        let [bias, least, most] = wanted.levels.map(f32::from_bits);
        let mut border = wanted.border.map(f32::from_bits);
        // SAFETY: the pointer refers to four numbers; all else is plain values and a handle of the driver's.
        unsafe {
            if has.flags != wanted.flags {
                f.cuTexRefSetFlags(reference, wanted.flags)?;
            }
            for (dimension, (has, wanted)) in
                (0..).zip(has.address_modes.iter().zip(wanted.address_modes))
            {
                if *has != wanted {
                    f.cuTexRefSetAddressMode(reference, dimension, wanted)?;
                }
            }
            if has.filter != wanted.filter {
                f.cuTexRefSetFilterMode(reference, wanted.filter)?;
            }
            if has.anisotropy != wanted.anisotropy {
                f.cuTexRefSetMaxAnisotropy(reference, wanted.anisotropy)?;
            }
            if has.level_filter != wanted.level_filter {
                f.cuTexRefSetMipmapFilterMode(reference, wanted.level_filter)?;
            }
            if has.levels[0] != wanted.levels[0] {
                f.cuTexRefSetMipmapLevelBias(reference, bias)?;
            }
            if has.levels[1..] != wanted.levels[1..] {
                f.cuTexRefSetMipmapLevelClamp(reference, least, most)?;
            }
            if has.border != wanted.border {
                f.cuTexRefSetBorderColor(reference, border.as_mut_ptr())?;
            }
        }
        Ok(())
    }
}
