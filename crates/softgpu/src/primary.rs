//! Primary contexts: one for each device, shared by the whole process.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use fermata_abi::sys::driver as cu;
use parking_lot::Mutex;

use crate::device::Device;
use crate::driver::Driver;
use crate::error::{CuError, INVALID_CONTEXT, Result};
use crate::handle::{self, Tag};
use crate::objects::Context;

/// A device's primary context and who holds it.
#[derive(Debug, Default)]
pub struct Primary {
    context: Option<Arc<Context>>,
    handle: u64,
    holders: u32,
    flags: u32,
    /// A fault has ended an earlier one: like a GPU's driver, this one then makes no other in the process.
    spent: bool,
}

impl Driver {
    /// The primary context of a device.
    fn primary(&self, device: &Device) -> &'static Mutex<Primary> {
        static ALL: OnceLock<Vec<Mutex<Primary>>> = OnceLock::new();
        let all = ALL.get_or_init(|| self.devices.iter().map(|_| Mutex::default()).collect());
        &all[device.ordinal as usize]
    }
}

impl Primary {
    /// Retains the primary context, which is created if needed.
    ///
    /// # Errors
    /// The device is lost, or a fault has ended the last one, as on a GPU.
    pub fn retain(driver: &Driver, device: &Arc<Device>) -> Result<Arc<Context>> {
        device.check()?;
        let mut primary = driver.primary(device).lock();
        if primary.spent {
            return Err(CuError(cu::CUDA_ERROR_DEVICE_UNAVAILABLE));
        }
        primary.holders += 1;
        Ok(primary.context(driver, device))
    }

    /// The handle of the primary context, which need not exist.
    pub fn handle(driver: &Driver, device: &Arc<Device>) -> u64 {
        driver.primary(device).lock().own_handle()
    }

    /// It stays the same whenever the context is made again.
    fn own_handle(&mut self) -> u64 {
        if self.handle == 0 {
            self.handle = handle::fresh(Tag::Context);
        }
        self.handle
    }

    fn context(&mut self, driver: &Driver, device: &Arc<Device>) -> Arc<Context> {
        let (handle, flags) = (self.own_handle(), self.flags);
        let context = self.context.get_or_insert_with(|| {
            let context = Context::new(device, handle, true, flags);
            driver.contexts().insert(handle, Arc::clone(&context));
            context
        });
        Arc::clone(context)
    }

    fn take(&mut self) -> Option<Arc<Context>> {
        let taken = self.context.take();
        self.spent |= taken.as_ref().is_some_and(|old| old.check().is_err());
        taken
    }

    /// Releases the primary context; the last release destroys it.
    ///
    /// # Errors
    /// It is not retained.
    pub fn release(driver: &Driver, device: &Arc<Device>) -> Result {
        let mut primary = driver.primary(device).lock();
        primary.holders = primary.holders.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        let context = if primary.holders == 0 {
            primary.take()
        } else {
            None
        };
        drop(primary);
        if let Some(context) = context {
            driver.contexts().remove(context.handle);
            context.dispose(driver);
        }
        Ok(())
    }

    /// Throws the primary context away. It is retained no more; the next retain finds a new one under the same
    /// handle, unless a fault has ended the old one.
    pub fn reset(driver: &Driver, device: &Arc<Device>) {
        let mut primary = driver.primary(device).lock();
        primary.holders = 0;
        let old = primary.take();
        drop(primary);
        if let Some(old) = old {
            old.stop.store(true, Ordering::Relaxed);
            driver.contexts().remove(old.handle);
            old.dispose(driver);
        }
    }

    /// The device whose primary context has this handle, whether that lives or was reset.
    pub fn device_of(driver: &Driver, handle: u64) -> Option<cu::CUdevice> {
        let has =
            |device: &&Arc<Device>| handle != 0 && driver.primary(device).lock().handle == handle;
        driver.devices.iter().find(has).map(|device| device.ordinal)
    }

    /// Flags of the primary context with this handle, if it is one.
    pub fn flags_of(driver: &Driver, handle: u64) -> Option<u32> {
        let ordinal = Self::device_of(driver, handle)?;
        let device = driver.devices.get(ordinal as usize)?;
        Some(driver.primary(device).lock().flags)
    }

    /// Sets the flags of the primary context, now and when it is made again.
    pub fn set_flags(driver: &Driver, device: &Device, flags: u32) {
        let mut primary = driver.primary(device).lock();
        primary.flags = flags;
        if let Some(context) = &primary.context {
            context.flags.store(flags, Ordering::Relaxed);
        }
    }

    /// Its flags, and whether it exists.
    pub fn state(driver: &Driver, device: &Device) -> (u32, bool) {
        let primary = driver.primary(device).lock();
        (primary.flags, primary.context.is_some())
    }
}
