//! Device memory that a capture has taken, which counts as free from the program's point of view.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Bytes set aside by device, and addresses of pools that are gone; shared with the threads that make and
/// remove pools, which takes longer than the program should wait.
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

    /// The pool at this address is gone.
    pub(crate) fn add_loose(&self, base: u64) {
        self.inner.lock().loose.push(base);
    }

    /// Addresses of pools that are gone, to be given back.
    pub(crate) fn loose(&self) -> Vec<u64> {
        std::mem::take(&mut self.inner.lock().loose)
    }
}
