//! Makes driver calls while no other thread makes mappings: the driver places a program's variables depending on what was
//! made before, and a restore must get the same addresses.

use std::sync::Arc;

use fermata_device::{Driver, ModuleHandle, ModuleRefused};
use fermata_state::ImageBytes;

use super::{Live, SpareStaging};
use crate::Tier;

/// Holds off the threads that make mappings: the registered tier, and staging buffers.
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

    /// Waits until those threads have finished what they are making, then does `work` while they wait.
    pub(super) fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        let _quiet = self.tier.as_ref().map(|tier| tier.quiet());
        let _held = self.staging.hold();
        work()
    }
}

impl Live {
    /// For work that must not be disturbed, on any thread.
    pub fn undisturbed(&self) -> Undisturbed {
        Undisturbed {
            driver: Arc::clone(&self.driver),
            tier: self.tier.clone(),
            staging: self.spare_staging.clone(),
        }
    }
}
