//! Handles: the program holds numbers that are looked up, never pointers that are followed.
//!
//! ```text
//!   bits 40..47  kind of object   so that a stream passed as an event is noticed
//!   bits  4..39  serial number    never used twice
//!   bits  0..3   0                so that the special values 1 and 2 stay free
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

/// Kinds of objects that have handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Tag {
    /// `CUcontext`
    Context = 0x41,
    /// `CUmodule`
    Module = 0x42,
    /// `CUfunction`
    Function = 0x43,
    /// `CUlibrary`
    Library = 0x44,
    /// `CUkernel`
    Kernel = 0x45,
    /// `CUstream`
    Stream = 0x46,
    /// `CUevent`
    Event = 0x47,
    /// `CUmemGenericAllocationHandle`
    Physical = 0x48,
    /// `CUmemoryPool`
    Pool = 0x49,
    /// `CUarray`
    Array = 0x4a,
    /// `CUgraph`
    Graph = 0x4b,
    /// `CUgraphNode`
    Node = 0x4c,
    /// `CUgraphExec`
    Exec = 0x4d,
    /// `CUuserObject`
    UserObject = 0x4e,
    /// `CUlinkState`
    Linker = 0x4f,
    /// `CUtexref` and `CUsurfref`
    Reference = 0x50,
    /// `CUmipmappedArray`
    Mipmap = 0x51,
    /// `CUasyncCallbackHandle`
    Notification = 0x52,
    /// `CUgraphConditionalHandle`
    Condition = 0x53,
    /// `CUgreenCtx`
    Green = 0x54,
    /// `CUdevResourceDesc`
    Descriptor = 0x55,
}

/// A fresh handle of a kind.
pub fn fresh(tag: Tag) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    (tag as u64) << 40 | NEXT.fetch_add(1, Ordering::Relaxed) << 4
}

/// Whether a handle is, or was, one of a kind.
pub fn is_of(tag: Tag, handle: u64) -> bool {
    handle >> 40 == tag as u64
}

/// The living objects of one kind, by handle.
#[derive(Debug)]
pub struct Table<T> {
    map: RwLock<HashMap<u64, Arc<T>>>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            map: RwLock::default(),
        }
    }
}

impl<T> Table<T> {
    /// Makes `object` known under `handle`.
    pub fn insert(&self, handle: u64, object: Arc<T>) {
        self.map.write().insert(handle, object);
    }

    /// The object behind `handle`, if it lives.
    pub fn get(&self, handle: u64) -> Option<Arc<T>> {
        self.map.read().get(&handle).cloned()
    }

    /// Forgets the object behind `handle` and returns it.
    pub fn remove(&self, handle: u64) -> Option<Arc<T>> {
        self.map.write().remove(&handle)
    }

    /// Removes and returns all objects for which `keep` is false.
    pub fn remove_unless(&self, keep: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut map = self.map.write();
        let gone: Vec<u64> = map
            .iter()
            .filter(|(_, v)| !keep(v))
            .map(|(k, _)| *k)
            .collect();
        gone.iter()
            .filter_map(|handle| map.remove(handle))
            .collect()
    }

    /// All living objects.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.map.read().values().cloned().collect()
    }
}
