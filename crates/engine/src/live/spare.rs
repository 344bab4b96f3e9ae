//! Staging buffers made while a worker waits for a program, so that no program has to wait for them.

use std::sync::{Arc, OnceLock};

use fermata_device::{ContextHandle, Driver, DriverError, PinnedPool};
use parking_lot::{Mutex, MutexGuard};

use crate::{CHUNK, STAGING_BUFFERS};

/// Their address: apart from the addresses that the kernel and the driver choose, which must not depend on whether these
/// buffers exist, and from the registered tier.
const PLACE: u64 = 0x2700_0000_0000;

/// Shared by the thread that makes them and the session that uses them.
#[derive(Clone, Default)]
pub struct SpareStaging(Arc<Shared>);

#[derive(Default)]
struct Shared {
    pool: OnceLock<PinnedPool>,
    /// Held while they are made, and while they must not be made.
    turn: Mutex<()>,
}

impl SpareStaging {
    /// Makes the buffers, once. Touching and pinning takes long; any thread may call this, and its current context
    /// becomes `context`.
    ///
    /// # Errors
    /// A driver error; the thread that needs buffers then makes its own.
    pub fn make(&self, driver: &Driver, context: ContextHandle) -> Result<(), DriverError> {
        let _turn = self.0.turn.lock();
        if self.0.pool.get().is_none() {
            driver.set_current(context)?;
            let pool = PinnedPool::at(driver, PLACE, STAGING_BUFFERS, CHUNK as usize)?;
            // No other thread can have made them: their addresses would have been taken.
            let _ = self.0.pool.set(pool);
        }
        Ok(())
    }

    /// The buffers, if they have been made.
    pub(crate) fn get(&self) -> Option<PinnedPool> {
        self.0.pool.get().cloned()
    }

    /// Until the guard is dropped no buffers are made, so that the driver places its own mappings where it always does.
    pub(super) fn hold(&self) -> MutexGuard<'_, ()> {
        self.0.turn.lock()
    }
}
