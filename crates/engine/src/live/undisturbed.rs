//! Calls of the driver during which no other thread makes anything: where a driver puts a program's variables depends on what was
//! made before, and must be the same in a restore.

use std::sync::Arc;

use fermata_device::{Driver, ModuleHandle, ModuleRefused};
use fermata_state::ImageBytes;

use super::{Live, SpareStaging};
use crate::Tier;

/// What is made beside: the registered tier, and staging buffers.
#[derive(Clone)]
pub struct Undisturbed {
    /// The driver.
    pub driver: Arc<Driver>,
    tier: Option<Arc<Tier>>,
    staging: SpareStaging,
}

impl Undisturbed {
    /// Loads a module into the current context.
    ///
    /// # Errors
    /// As [`Driver::load_padded_module`].
    pub fn load_module(&self, image: &ImageBytes) -> Result<ModuleHandle, ModuleRefused> {
        self.during(|| self.driver.load_padded_module(image.padded()))
    }

    /// Does `work` while nothing is made beside; what is under way has ended.
    pub(super) fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        let _quiet = self.tier.as_ref().map(|tier| tier.quiet());
        let _held = self.staging.hold();
        work()
    }
}

impl Live {
    /// For work that is not to be disturbed, on any thread.
    pub fn undisturbed(&self) -> Undisturbed {
        Undisturbed {
            driver: Arc::clone(&self.driver),
            tier: self.tier.clone(),
            staging: self.spare_staging.clone(),
        }
    }
}
