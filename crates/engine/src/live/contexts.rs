//! Makes a program's contexts, in the same way for the program and in a restore.

use std::io;

use fermata_abi::op::ContextId;
use fermata_abi::sys::driver as cu;
use fermata_device::{DriverError, slot};
use fermata_state::{Context, ContextPlace};

use super::{Live, LiveContext};

impl Live {
    /// Makes a context and makes it current: in its slot of addresses, and with Fermata's kernels loaded before the
    /// program's modules, as `place` says. Without a place it is the context that the worker had from the beginning.
    ///
    /// # Errors
    /// A driver error.
    pub fn make_context(
        &mut self,
        id: ContextId,
        context: &Context,
        place: Option<&ContextPlace>,
    ) -> Result<(), DriverError> {
        self.forget_current();
        let (device, flags) = (context.device, context.flags);
        let driver = &self.driver;
        let make = || match context.primary {
            true => driver.primary_context(device, flags),
            false => driver.create_context(device, flags),
        };
        let handle = self.undisturbed().during(|| match place {
            Some(place) => slot::in_slot(place.slot, make).map_err(no_thread)?,
            None => make(),
        })?;
        let made = LiveContext {
            handle,
            device,
            primary: context.primary,
        };
        self.contexts.insert(id, made);
        if place.is_some_and(|it| it.kernels) {
            self.load_hash_kernels(device, handle)?;
        }
        self.enter(id).map(drop)
    }

    /// Whether Fermata's kernels have to be loaded into a new context of this device: its first capture and every
    /// restore must find them, because the driver places variables depending on what was loaded before.
    pub fn wants_kernels_first(&self, device: u32) -> bool {
        let first = self.contexts.values().all(|it| it.device != device);
        let at_home = self.hashers.contains_key(&self.home_device);
        first && at_home && !self.hashers.contains_key(&device)
    }
}

fn no_thread(error: io::Error) -> DriverError {
    DriverError {
        call: "cuCtxCreate",
        code: cu::CUDA_ERROR_OPERATING_SYSTEM,
        name: format!("there is no thread for it: {error}").into(),
    }
}
