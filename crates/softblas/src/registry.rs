//! Objects that a program holds by a handle. A handle is a number, never an address: one that is wrong or destroyed is
//! an error of the call.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

use parking_lot::Mutex;

/// Objects of one kind.
pub struct Registry<T>(Mutex<Option<Objects<T>>>);

struct Objects<T> {
    next: usize,
    alive: HashMap<usize, Arc<T>>,
}

impl<T> Registry<T> {
    /// An empty one.
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Keeps an object, and gives its handle.
    pub fn insert(&self, object: T) -> *mut c_void {
        let mut objects = self.0.lock();
        let objects = objects.get_or_insert_with(|| Objects {
            next: 0,
            alive: HashMap::new(),
        });
        // As far apart as allocations, in case a program keeps marks in the lower bits.
        objects.next += 64;
        objects.alive.insert(objects.next, Arc::new(object));
        objects.next as *mut c_void
    }

    /// The object behind a handle.
    pub fn get(&self, handle: *const c_void) -> Option<Arc<T>> {
        let objects = self.0.lock();
        objects.as_ref()?.alive.get(&(handle as usize)).cloned()
    }

    /// Forgets an object.
    pub fn remove(&self, handle: *const c_void) -> Option<Arc<T>> {
        self.0.lock().as_mut()?.alive.remove(&(handle as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destroyed_handle_is_never_another_object() {
        let registry = Registry::new();
        let first = registry.insert(1);
        assert_eq!(registry.remove(first).as_deref(), Some(&1));
        let second = registry.insert(2);
        assert!(registry.get(first).is_none() && registry.remove(first).is_none());
        assert_eq!(registry.get(second).as_deref(), Some(&2));
        assert!(registry.get(std::ptr::null()).is_none());
    }
}
