//! Handles: numbers chosen here, which the program sees as pointers and the worker as numbers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fermata_abi::op::{FIRST_HANDLE, Handle};
use parking_lot::RwLock;

use crate::result::Result;

static NEXT: AtomicU64 = AtomicU64::new(FIRST_HANDLE);

/// A handle never used before in this session.
pub fn fresh() -> Handle {
    NEXT.fetch_add(16, Ordering::Relaxed)
}

/// A handle as the pointer type the driver API gives it.
pub fn to_pointer<T>(handle: Handle) -> *mut T {
    std::ptr::without_provenance_mut(handle as usize)
}

/// The handle behind a pointer of the driver API.
pub fn of<T>(pointer: *mut T) -> Handle {
    pointer.addr() as Handle
}

/// The living objects of one kind, by handle.
#[derive(Debug)]
pub struct Table<T>(RwLock<HashMap<Handle, Arc<T>, BuildHasherDefault<HandleHasher>>>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<T> Table<T> {
    /// Adds an object.
    pub fn insert(&self, handle: Handle, object: Arc<T>) {
        self.0.write().insert(handle, object);
    }

    /// The object, or `missing`.
    pub fn get(&self, handle: Handle, missing: u32) -> Result<Arc<T>> {
        self.0.read().get(&handle).cloned().ok_or(missing)
    }

    /// An object that `is` it, if there is one.
    pub fn find(&self, is: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        self.0.read().values().find(|object| is(object)).cloned()
    }

    /// Takes the object out, or says `missing`.
    pub fn remove(&self, handle: Handle, missing: u32) -> Result<Arc<T>> {
        self.0.write().remove(&handle).ok_or(missing)
    }

    /// Takes out all objects that `gone` names.
    pub fn remove_if(&self, gone: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut out = Vec::new();
        self.0.write().retain(|_, object| {
            let goes = gone(object);
            if goes {
                out.push(object.clone());
            }
            !goes
        });
        out
    }

    /// All objects.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.0.read().values().cloned().collect()
    }
}

/// Handles are counted up: spreading their bits is all the hashing they need.
#[derive(Debug, Default)]
pub struct HandleHasher(u64);

impl Hasher for HandleHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(26);
    }
}
