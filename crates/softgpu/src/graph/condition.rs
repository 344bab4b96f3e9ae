//! Conditions of graphs: values that kernels set, and that decide which bodies of conditional nodes run.
//!
//! A condition lives as long as the graph that it was made for, or an executable graph made or updated from it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use parking_lot::Mutex;

use crate::handle::{self, Tag};

/// A condition.
#[derive(Debug)]
pub struct Condition {
    /// Its handle.
    pub handle: u64,
    /// The context whose kernels may set it.
    pub context: u64,
    /// Its value at the beginning of a launch, if it is given one then.
    pub default: Option<u32>,
    value: AtomicU32,
}

type All = Mutex<HashMap<u64, Weak<Condition>>>;

static ALL: LazyLock<All> = LazyLock::new(All::default);

impl Drop for Condition {
    fn drop(&mut self) {
        ALL.lock().remove(&self.handle);
    }
}

impl Condition {
    /// A condition whose value is undefined, as far as CUDA says.
    pub fn create(context: u64, default: Option<u32>) -> Arc<Self> {
        let condition = Arc::new(Self {
            handle: handle::fresh(Tag::Condition),
            context,
            default,
            value: AtomicU32::new(0),
        });
        let weak = Arc::downgrade(&condition);
        ALL.lock().insert(condition.handle, weak);
        condition
    }

    /// The condition behind a handle, if there is one.
    pub fn resolve(handle: u64) -> Option<Arc<Self>> {
        let found = ALL.lock().get(&handle).cloned();
        found.and_then(|it| it.upgrade())
    }

    /// A launch begins.
    pub fn begin(&self) {
        if let Some(default) = self.default {
            self.set(default);
        }
    }

    /// Sets the value.
    pub fn set(&self, value: u32) {
        self.value.store(value, Ordering::Release);
    }

    /// The value.
    pub fn value(&self) -> u32 {
        self.value.load(Ordering::Acquire)
    }
}
