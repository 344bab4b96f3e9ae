//! Staging buffers made while a worker waits for a program, so that no program stands still for them.

use std::sync::{Arc, OnceLock};

use fermata_device::{ContextHandle, Driver, DriverError, PinnedPool};
use parking_lot::{Mutex, MutexGuard};

use crate::{CHUNK, STAGING_BUFFERS};

/// Where they lie: apart from what the kernel and the driver place, which must not depend on whether they
/// have been made, and from the registered tier.
const PLACE: u64 = 0x2700_0000_0000;

/// Shared by the thread that makes them and the session that uses them.
#[derive(Clone, Default)]
pub struct SpareStaging(Arc<Shared>);

#[derive(Default)]
struct Shared {
    pool: OnceLock<PinnedPool>,
    /// Held while they are made, and while they must not be.
    turn: Mutex<()>,
}

impl SpareStaging {
    /// Makes them, once. Touching and pinning takes its time; any thread may do it, and its current context
    /// becomes `context`.
    ///
    /// # Errors
    /// What the driver says; the thread that needs buffers makes some then.
    pub fn make(&self, driver: &Driver, context: ContextHandle) -> Result<(), DriverError> {
        let _turn = self.0.turn.lock();
        if self.0.pool.get().is_none() {
            driver.set_current(context)?;
            let pool = PinnedPool::at(driver, PLACE, STAGING_BUFFERS, CHUNK as usize)?;
            // Another thread cannot have made them: the place would have been taken.
            let _ = self.0.pool.set(pool);
        }
        Ok(())
    }

    /// The buffers, if they have been made.
    pub(crate) fn get(&self) -> Option<PinnedPool> {
        self.0.pool.get().cloned()
    }

    /// None are made until the answer is dropped: the driver is to put what it makes meanwhile where it always does.
    pub(super) fn hold(&self) -> MutexGuard<'_, ()> {
        self.0.turn.lock()
    }
}
