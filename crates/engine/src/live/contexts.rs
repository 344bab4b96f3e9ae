//! Making the contexts of a program, the same way for the program and at a restore.

use std::io;

use fermata_abi::op::ContextId;
use fermata_abi::sys::driver as cu;
use fermata_device::{DriverError, slot};
use fermata_state::{Context, ContextPlace};

use super::{Live, LiveContext};

impl Live {
    /// Makes a context, which becomes current: in its slot of addresses, and with our kernels before the program's modules, as
    /// its place says. Without a place it is one that the worker has had from the beginning.
    ///
    /// # Errors
    /// What the driver says.
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

    /// Whether our kernels belong into a context of this device that is made now: its first capture, and every restore, is to
    /// find them there, since where a driver puts variables depends on what was loaded before.
    pub fn wants_kernels_first(&self, device: u32) -> bool {
        let first = self.contexts.values().all(|it| it.device != device);
        first && self.hashers.contains_key(&0) && !self.hashers.contains_key(&device)
    }
}

fn no_thread(error: io::Error) -> DriverError {
    DriverError {
        call: "cuCtxCreate",
        code: cu::CUDA_ERROR_OPERATING_SYSTEM,
        name: format!("there is no thread for it: {error}").into(),
    }
}
