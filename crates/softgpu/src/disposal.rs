//! Ends contexts with all their work and objects.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fermata_abi::sys::driver as cu;

use crate::capture;
use crate::context;
use crate::driver::Driver;
use crate::error::{CuError, INVALID_CONTEXT, Result};
use crate::green::Green;
use crate::handle::{self, Tag};
use crate::objects::{Context, Streams};
use crate::pool::Pool;

impl Context {
    /// Ends its work and frees what belongs to it.
    pub fn dispose(self: &Arc<Self>, driver: &Driver) {
        if self.gone.swap(true, Ordering::AcqRel) {
            return;
        }
        // While its handle is still good.
        fermata_tables::context_gone(std::ptr::without_provenance_mut(self.handle as usize));
        let _ = self.synchronize();
        Green::end_all(driver, self.id);
        self.stop.store(true, Ordering::Relaxed);
        let handle = self.handle;
        for stream in self.all_streams() {
            capture::abandon(driver, &stream);
        }
        driver
            .streams()
            .remove_unless(|stream| stream.context.id != self.id);
        for event in driver
            .events()
            .remove_unless(|event| event.context.id != self.id)
        {
            capture::forget_event(event.handle);
        }
        driver
            .functions()
            .remove_unless(|function| function.module.context.id != self.id);
        for module in driver
            .modules()
            .remove_unless(|module| module.context.id != self.id)
        {
            module.forget_functions();
            driver.references().forget(module.handle);
        }
        driver.views().forget_context(handle);
        driver
            .mipmaps()
            .remove_unless(|mipmap| mipmap.context != handle);
        driver
            .arrays()
            .remove_unless(|array| array.context != handle);
        for library in driver.libraries().all() {
            library.forget_context(self.id);
        }
        *self.streams.lock() = Streams::default();
        driver.memory.free_context(handle);
        if self.primary {
            Pool::free_all(driver, self.device.ordinal);
        }
    }

    /// Destroys a context that is not primary.
    ///
    /// # Errors
    /// There is no such context, or it is primary.
    pub fn destroy(driver: &Driver, handle: u64) -> Result {
        let destroyed = CuError(cu::CUDA_ERROR_CONTEXT_IS_DESTROYED);
        let unknown = || {
            if handle::is_of(Tag::Context, handle) {
                destroyed
            } else {
                INVALID_CONTEXT
            }
        };
        let context = driver.contexts().get(handle).ok_or_else(unknown)?;
        // A green context is one that the primary context has been made for.
        if context.primary {
            return Err(INVALID_CONTEXT);
        }
        driver.contexts().remove(handle);
        context.dispose(driver);
        context::forget(handle);
        Ok(())
    }
}
