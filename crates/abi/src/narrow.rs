//! Types of the 32-bit ABI of CUDA 3: addresses, sizes and structures of 32-bit numbers, and what they are in today's.
//!
//! The functions themselves (`cuMemAlloc` and its like, without `_v2`) are made by `cargo xtask exports`: each widens its
//! arguments, calls the function that replaced it and narrows the results. Driver 580 answers `CUDA_ERROR_INVALID_CONTEXT` to
//! `cuMemAlloc`, `cuMemGetInfo`, `cuMemsetD8` and `cuMemcpyAtoH` on an H200, also where there is a context; so no program can rely
//! on more than is done here.

use core::ffi::{c_uint, c_void};

use crate::sys::driver as sys;

/// A value of the 32-bit ABI.
pub trait Narrow: Sized {
    /// The same in today's API.
    type Wide: Default;

    /// The same value; `None` if it does not fit.
    fn narrow(wide: &Self::Wide) -> Option<Self>;
}

/// `CUdeviceptr_v1`.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevicePointer(pub c_uint);

/// A number of bytes, elements or rows. As a result it is the largest there is where the true one does not fit.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub c_uint);

impl DevicePointer {
    /// As today's functions take it.
    pub fn widen(self) -> sys::CUdeviceptr {
        self.0.into()
    }
}

impl Size {
    /// As today's functions take it.
    pub fn widen(self) -> usize {
        self.0 as usize
    }
}

impl Narrow for DevicePointer {
    type Wide = sys::CUdeviceptr;

    fn narrow(wide: &Self::Wide) -> Option<Self> {
        (*wide).try_into().ok().map(Self)
    }
}

impl Narrow for Size {
    type Wide = usize;

    fn narrow(wide: &Self::Wide) -> Option<Self> {
        Some(Self((*wide).try_into().unwrap_or(c_uint::MAX)))
    }
}

/// `CUDA_ARRAY_DESCRIPTOR_v1`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_snake_case, missing_docs)]
pub struct ArrayDescriptor {
    pub Width: c_uint,
    pub Height: c_uint,
    pub Format: sys::CUarray_format,
    pub NumChannels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR_v1`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_snake_case, missing_docs)]
pub struct Array3dDescriptor {
    pub Width: c_uint,
    pub Height: c_uint,
    pub Depth: c_uint,
    pub Format: sys::CUarray_format,
    pub NumChannels: c_uint,
    pub Flags: c_uint,
}

/// `CUDA_MEMCPY2D_v1`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_snake_case, missing_docs)]
pub struct Memcpy2d {
    pub srcXInBytes: c_uint,
    pub srcY: c_uint,
    pub srcMemoryType: sys::CUmemorytype,
    pub srcHost: *const c_void,
    pub srcDevice: DevicePointer,
    pub srcArray: sys::CUarray,
    pub srcPitch: c_uint,
    pub dstXInBytes: c_uint,
    pub dstY: c_uint,
    pub dstMemoryType: sys::CUmemorytype,
    pub dstHost: *mut c_void,
    pub dstDevice: DevicePointer,
    pub dstArray: sys::CUarray,
    pub dstPitch: c_uint,
    pub WidthInBytes: c_uint,
    pub Height: c_uint,
}

/// `CUDA_MEMCPY3D_v1`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_snake_case, missing_docs)]
pub struct Memcpy3d {
    pub srcXInBytes: c_uint,
    pub srcY: c_uint,
    pub srcZ: c_uint,
    pub srcLOD: c_uint,
    pub srcMemoryType: sys::CUmemorytype,
    pub srcHost: *const c_void,
    pub srcDevice: DevicePointer,
    pub srcArray: sys::CUarray,
    pub reserved0: *mut c_void,
    pub srcPitch: c_uint,
    pub srcHeight: c_uint,
    pub dstXInBytes: c_uint,
    pub dstY: c_uint,
    pub dstZ: c_uint,
    pub dstLOD: c_uint,
    pub dstMemoryType: sys::CUmemorytype,
    pub dstHost: *mut c_void,
    pub dstDevice: DevicePointer,
    pub dstArray: sys::CUarray,
    pub reserved1: *mut c_void,
    pub dstPitch: c_uint,
    pub dstHeight: c_uint,
    pub WidthInBytes: c_uint,
    pub Height: c_uint,
    pub Depth: c_uint,
}

impl ArrayDescriptor {
    /// As today's functions take it.
    pub fn widen(self) -> sys::CUDA_ARRAY_DESCRIPTOR {
        sys::CUDA_ARRAY_DESCRIPTOR {
            Width: self.Width as usize,
            Height: self.Height as usize,
            Format: self.Format,
            NumChannels: self.NumChannels,
        }
    }
}

impl Narrow for ArrayDescriptor {
    type Wide = sys::CUDA_ARRAY_DESCRIPTOR;

    fn narrow(wide: &Self::Wide) -> Option<Self> {
        Some(Self {
            Width: wide.Width.try_into().ok()?,
            Height: wide.Height.try_into().ok()?,
            Format: wide.Format,
            NumChannels: wide.NumChannels,
        })
    }
}

impl Array3dDescriptor {
    /// As today's functions take it.
    pub fn widen(self) -> sys::CUDA_ARRAY3D_DESCRIPTOR {
        sys::CUDA_ARRAY3D_DESCRIPTOR {
            Width: self.Width as usize,
            Height: self.Height as usize,
            Depth: self.Depth as usize,
            Format: self.Format,
            NumChannels: self.NumChannels,
            Flags: self.Flags,
        }
    }
}

impl Narrow for Array3dDescriptor {
    type Wide = sys::CUDA_ARRAY3D_DESCRIPTOR;

    fn narrow(wide: &Self::Wide) -> Option<Self> {
        Some(Self {
            Width: wide.Width.try_into().ok()?,
            Height: wide.Height.try_into().ok()?,
            Depth: wide.Depth.try_into().ok()?,
            Format: wide.Format,
            NumChannels: wide.NumChannels,
            Flags: wide.Flags,
        })
    }
}

impl Memcpy2d {
    /// As today's functions take it.
    pub fn widen(self) -> sys::CUDA_MEMCPY2D {
        sys::CUDA_MEMCPY2D {
            srcXInBytes: self.srcXInBytes as usize,
            srcY: self.srcY as usize,
            srcMemoryType: self.srcMemoryType,
            srcHost: self.srcHost,
            srcDevice: self.srcDevice.widen(),
            srcArray: self.srcArray,
            srcPitch: self.srcPitch as usize,
            dstXInBytes: self.dstXInBytes as usize,
            dstY: self.dstY as usize,
            dstMemoryType: self.dstMemoryType,
            dstHost: self.dstHost,
            dstDevice: self.dstDevice.widen(),
            dstArray: self.dstArray,
            dstPitch: self.dstPitch as usize,
            WidthInBytes: self.WidthInBytes as usize,
            Height: self.Height as usize,
        }
    }
}

impl Memcpy3d {
    /// As today's functions take it.
    pub fn widen(self) -> sys::CUDA_MEMCPY3D {
        sys::CUDA_MEMCPY3D {
            srcXInBytes: self.srcXInBytes as usize,
            srcY: self.srcY as usize,
            srcZ: self.srcZ as usize,
            srcLOD: self.srcLOD as usize,
            srcMemoryType: self.srcMemoryType,
            srcHost: self.srcHost,
            srcDevice: self.srcDevice.widen(),
            srcArray: self.srcArray,
            reserved0: self.reserved0,
            srcPitch: self.srcPitch as usize,
            srcHeight: self.srcHeight as usize,
            dstXInBytes: self.dstXInBytes as usize,
            dstY: self.dstY as usize,
            dstZ: self.dstZ as usize,
            dstLOD: self.dstLOD as usize,
            dstMemoryType: self.dstMemoryType,
            dstHost: self.dstHost,
            dstDevice: self.dstDevice.widen(),
            dstArray: self.dstArray,
            reserved1: self.reserved1,
            dstPitch: self.dstPitch as usize,
            dstHeight: self.dstHeight as usize,
            WidthInBytes: self.WidthInBytes as usize,
            Height: self.Height as usize,
            Depth: self.Depth as usize,
        }
    }
}

/// A result that today's function writes, and that the caller takes in 32 bits.
#[derive(Debug)]
pub struct NarrowOut<T: Narrow> {
    to: *mut T,
    wide: T::Wide,
}

impl<T: Narrow> NarrowOut<T> {
    /// For the caller's pointer, which may be null.
    pub fn new(to: *mut T) -> Self {
        Self {
            to,
            wide: T::Wide::default(),
        }
    }

    /// Where today's function is to write; null if the caller gave null.
    pub fn place(&mut self) -> *mut T::Wide {
        if self.to.is_null() {
            core::ptr::null_mut()
        } else {
            &mut self.wide
        }
    }

    /// What today's function wrote.
    pub fn wide(&self) -> &T::Wide {
        &self.wide
    }

    /// Whether the caller can be given it.
    pub fn fits(&self) -> bool {
        T::narrow(&self.wide).is_some()
    }

    /// Gives the caller what fits.
    ///
    /// # Safety
    /// The caller's pointer is null or points to room for a `T`.
    pub unsafe fn put(self) {
        if let Some(value) = T::narrow(&self.wide)
            && !self.to.is_null()
        {
            // SAFETY: not null, so room for a `T` by the caller's promise.
            unsafe { self.to.write_unaligned(value) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_above_four_gibibytes_does_not_fit_and_a_size_is_cut() {
        assert_eq!(DevicePointer::narrow(&0x3000_0000_0000), None);
        assert_eq!(
            DevicePointer::narrow(&0x7000_0000),
            Some(DevicePointer(0x7000_0000))
        );
        assert_eq!(Size::narrow(&(80 << 30)), Some(Size(u32::MAX)));
        assert_eq!(Size::narrow(&512), Some(Size(512)));
    }

    #[test]
    fn what_the_caller_does_not_want_is_not_written() {
        let mut none = NarrowOut::<Size>::new(core::ptr::null_mut());
        assert!(none.place().is_null());
        let mut room = Size(7);
        let mut out = NarrowOut::new(&mut room);
        // SAFETY: the place is the result's own room.
        unsafe { out.place().write(12) };
        assert!(out.fits());
        // SAFETY: it points to `room`.
        unsafe { out.put() };
        assert_eq!(room, Size(12));
    }

    #[test]
    fn the_structures_have_the_layout_of_the_c_headers() {
        assert_eq!(size_of::<Memcpy2d>(), 96);
        assert_eq!(size_of::<Memcpy3d>(), 144);
        assert_eq!(core::mem::offset_of!(Memcpy2d, srcHost), 16);
        assert_eq!(core::mem::offset_of!(Memcpy2d, dstHost), 56);
        assert_eq!(core::mem::offset_of!(Memcpy3d, dstHost), 88);
    }
}
