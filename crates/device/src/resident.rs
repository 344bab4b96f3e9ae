//! The driver that the process we live in has loaded itself, and what that driver knows of an address.
//!
//! Nothing here loads or initialises a driver that the program has not initialised: a program without
//! CUDA stays one.

use std::ffi::c_void;
use std::path::Path;

use fermata_abi::sys::driver as cu;
use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

use crate::driver::Result;
use crate::{ContextHandle, Driver, LoadError};

/// The name under which every program loads its driver.
const NAME: &str = "libcuda.so.1";

/// What kind of memory an address belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// Host memory that the driver knows: pinned or registered.
    Host,
    /// Memory of a device.
    Device,
    /// Managed memory, which both sides may touch.
    Managed,
}

/// An address that the driver knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resident {
    /// What it is.
    pub kind: MemoryKind,
    /// The device it belongs to.
    pub device: u32,
    /// The context it was made in; `None` for memory mapped by hand or taken from a pool.
    pub context: Option<ContextHandle>,
    /// First byte of its allocation.
    pub start: u64,
    /// Bytes of its allocation.
    pub size: u64,
}

impl Driver {
    /// The driver of this process, if the program has loaded and initialised one.
    ///
    /// # Errors
    /// [`LoadError`] when there is one that lacks functions.
    pub fn of_process() -> std::result::Result<Option<Self>, LoadError> {
        let flags = RTLD_LAZY | RTLD_LOCAL | libc::RTLD_NOLOAD;
        // SAFETY: RTLD_NOLOAD only takes a reference to a library that is there already.
        let Ok(library) = (unsafe { Library::open(Some(NAME), flags) }) else {
            return Ok(None);
        };
        type GetCurrent = unsafe extern "C" fn(*mut cu::CUcontext) -> cu::CUresult;
        // SAFETY: the function of this name has this type in every driver.
        let Ok(current) = (unsafe { library.get::<GetCurrent>(b"cuCtxGetCurrent") }) else {
            return Ok(None);
        };
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer refers to a live local.
        if unsafe { current(&mut context) } == cu::CUDA_ERROR_NOT_INITIALIZED {
            return Ok(None);
        }
        Self::load(Path::new(NAME)).map(Some)
    }

    /// The calling thread's current context.
    ///
    /// # Errors
    /// What the driver says.
    pub fn current_context(&self) -> Result<Option<ContextHandle>> {
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer refers to a live local.
        unsafe { self.f.cuCtxGetCurrent(&mut context)? };
        Ok((!context.is_null()).then(|| ContextHandle::from_raw(context)))
    }

    /// Leaves the calling thread without a current context.
    ///
    /// # Errors
    /// What the driver says.
    pub fn clear_current(&self) -> Result<()> {
        self.f.cuCtxSetCurrent(std::ptr::null_mut())
    }

    /// Whether somebody has made the primary context of device `index`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn primary_is_active(&self, index: u32) -> Result<bool> {
        let device = self.device(index)?;
        let (mut flags, mut active) = (0, 0);
        // SAFETY: both pointers refer to live locals.
        unsafe {
            self.f
                .cuDevicePrimaryCtxGetState(device, &mut flags, &mut active)?
        };
        Ok(active != 0)
    }

    /// The primary context of device `index`, retained, its flags left as they are.
    ///
    /// # Errors
    /// What the driver says.
    pub fn retain_primary(&self, index: u32) -> Result<ContextHandle> {
        let device = self.device(index)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer refers to a live local.
        unsafe { self.f.cuDevicePrimaryCtxRetain(&mut context, device)? };
        Ok(ContextHandle::from_raw(context))
    }

    /// What `address` is; `None` if the driver does not know it. A context must be current.
    ///
    /// # Errors
    /// What the driver says, an absent context included.
    pub fn resident(&self, address: u64) -> Result<Option<Resident>> {
        let memory: u32 = match self.pointer(cu::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) {
            Ok(memory) => memory,
            Err(error) if error.code == cu::CUDA_ERROR_INVALID_VALUE => return Ok(None),
            Err(error) => return Err(error),
        };
        let managed: u32 = self.pointer(cu::CU_POINTER_ATTRIBUTE_IS_MANAGED, address)?;
        let ordinal: i32 = self.pointer(cu::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)?;
        let context: usize = self
            .pointer(cu::CU_POINTER_ATTRIBUTE_CONTEXT, address)
            .unwrap_or(0);
        let kind = match memory {
            _ if managed != 0 => MemoryKind::Managed,
            cu::CU_MEMORYTYPE_HOST => MemoryKind::Host,
            _ => MemoryKind::Device,
        };
        Ok(Some(Resident {
            kind,
            device: u32::try_from(ordinal).unwrap_or(0),
            context: (context != 0).then(|| ContextHandle::from_raw(context as cu::CUcontext)),
            start: self.pointer(cu::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address)?,
            size: self.pointer(cu::CU_POINTER_ATTRIBUTE_RANGE_SIZE, address)?,
        }))
    }

    /// The name of the allocation at `address`; no other one of this process ever has it
    /// (`CU_POINTER_ATTRIBUTE_BUFFER_ID`). A context must be current.
    ///
    /// # Errors
    /// What the driver says, of an address that it does not know too.
    pub fn buffer_id(&self, address: u64) -> Result<u64> {
        self.pointer(cu::CU_POINTER_ATTRIBUTE_BUFFER_ID, address)
    }

    /// An attribute of eight bytes at most.
    fn pointer<T: Copy + Default>(
        &self,
        attribute: cu::CUpointer_attribute,
        address: u64,
    ) -> Result<T> {
        // Wide enough for every attribute that is asked for here.
        let mut raw = [0u64; 2];
        // SAFETY: the driver writes at most eight bytes for these attributes.
        unsafe {
            self.f
                .cuPointerGetAttribute((&raw mut raw).cast::<c_void>(), attribute, address)?
        };
        const { assert!(size_of::<T>() <= 8) };
        // SAFETY: `T` is a plain number of at most eight bytes, the driver has written as many.
        Ok(unsafe { std::ptr::read((&raw const raw).cast::<T>()) })
    }
}
