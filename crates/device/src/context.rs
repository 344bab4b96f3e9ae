//! Contexts: making them, making them current, limits, peers.

use fermata_abi::sys::driver as cu;

use crate::driver::Result;
use crate::{ContextHandle, Driver};

impl Driver {
    /// Retains the primary context of device `index` with `flags`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn primary_context(&self, index: u32, flags: u32) -> Result<ContextHandle> {
        let device = self.device(index)?;
        match self.f.cuDevicePrimaryCtxSetFlags_v2(device, flags) {
            Err(error) if error.code != cu::CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE => return Err(error),
            _ => {}
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer refers to a live local.
        unsafe { self.f.cuDevicePrimaryCtxRetain(&mut context, device)? };
        Ok(ContextHandle::from_raw(context))
    }

    /// Releases the primary context of device `index`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn release_primary(&self, index: u32) -> Result<()> {
        self.f.cuDevicePrimaryCtxRelease_v2(self.device(index)?)
    }

    /// Creates a context, which becomes the thread's current one.
    ///
    /// # Errors
    /// What the driver says.
    pub fn create_context(&self, index: u32, flags: u32) -> Result<ContextHandle> {
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer refers to a live local.
        unsafe {
            self.f
                .cuCtxCreate_v2(&mut context, flags, self.device(index)?)?
        };
        Ok(ContextHandle::from_raw(context))
    }

    /// Destroys a created context.
    ///
    /// # Errors
    /// What the driver says.
    pub fn destroy_context(&self, context: ContextHandle) -> Result<()> {
        self.f.cuCtxDestroy_v2(context.raw())
    }

    /// Makes `context` the calling thread's current one.
    ///
    /// # Errors
    /// What the driver says.
    pub fn set_current(&self, context: ContextHandle) -> Result<()> {
        self.f.cuCtxSetCurrent(context.raw())
    }

    /// Waits for all work of the current context. Blocks.
    ///
    /// # Errors
    /// What the driver says, failures of earlier work included.
    pub fn synchronize_context(&self) -> Result<()> {
        self.f.cuCtxSynchronize()
    }

    /// Sets a limit of the current context.
    ///
    /// # Errors
    /// What the driver says.
    pub fn set_limit(&self, limit: u32, value: u64) -> Result<()> {
        self.f.cuCtxSetLimit(limit, value as usize)
    }

    /// Reads a limit of the current context.
    ///
    /// # Errors
    /// What the driver says.
    pub fn limit(&self, limit: u32) -> Result<u64> {
        let mut value = 0;
        // SAFETY: the pointer refers to a live local.
        unsafe { self.f.cuCtxGetLimit(&mut value, limit)? };
        Ok(value as u64)
    }

    /// Free and total bytes of the current context's device.
    ///
    /// # Errors
    /// What the driver says.
    pub fn memory_info(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers refer to live locals.
        unsafe { self.f.cuMemGetInfo_v2(&mut free, &mut total)? };
        Ok((free as u64, total as u64))
    }

    /// Lets the current context reach the memory of `peer`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn enable_peer(&self, peer: ContextHandle) -> Result<()> {
        self.f.cuCtxEnablePeerAccess(peer.raw(), 0)
    }

    /// Ends [`Driver::enable_peer`].
    ///
    /// # Errors
    /// What the driver says.
    pub fn disable_peer(&self, peer: ContextHandle) -> Result<()> {
        self.f.cuCtxDisablePeerAccess(peer.raw())
    }
}
