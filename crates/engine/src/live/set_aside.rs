//! Device memory that a capture has set aside, which the program is told is free.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Bytes set aside, by device, and the addresses of pools that have been released. Shared with the threads that make and
/// release pools.
#[derive(Debug, Clone, Default)]
pub struct SetAside {
    inner: Arc<Mutex<Ledger>>,
}

#[derive(Debug, Default)]
struct Ledger {
    by_device: BTreeMap<u32, u64>,
    loose: Vec<u64>,
}

impl SetAside {
    /// Bytes of a device that will be free again.
    pub fn bytes(&self, device: u32) -> u64 {
        let ledger = self.inner.lock();
        ledger.by_device.get(&device).copied().unwrap_or(0)
    }

    /// Whether nothing is set aside.
    pub fn is_empty(&self) -> bool {
        self.inner.lock().by_device.is_empty()
    }

    pub(crate) fn add(&self, device: u32, bytes: u64) {
        *self.inner.lock().by_device.entry(device).or_default() += bytes;
    }

    pub(crate) fn remove(&self, device: u32, bytes: u64) {
        let mut ledger = self.inner.lock();
        if let Some(left) = ledger.by_device.get_mut(&device) {
            *left = left.saturating_sub(bytes);
        }
        ledger.by_device.retain(|_, left| *left > 0);
    }

    /// Notes that the pool at this address has been released.
    pub(crate) fn add_loose(&self, base: u64) {
        self.inner.lock().loose.push(base);
    }

    /// Takes the addresses of released pools, to be unreserved.
    pub(crate) fn loose(&self) -> Vec<u64> {
        std::mem::take(&mut self.inner.lock().loose)
    }
}
