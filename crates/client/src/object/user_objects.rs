//! User objects: counted objects of the program, which graphs keep alive.
//!
//! ```text
//!   program ──────────┐
//!   graph ────────────┼─ references ─► object ─ none left ─► the program's function is called, once
//!   executable graph ─┘
//! ```
//! A clone, a child graph and an executable graph hold references of their own, and those of an executable graph are kept
//! until its launches have ended (CUDA C++ Programming Guide, CUDA User Objects). The lock is never held while the worker
//! is asked, because the thread for host callbacks takes it.

use core::ffi::c_void;
use std::collections::HashMap;
use std::sync::Arc;

use fermata_abi::op::{StreamRef, UserObjectId};
use fermata_abi::sys::driver as sys;
use fermata_graph::Held;
use parking_lot::Mutex;

use crate::handles;
use crate::link::callback::{self, Callback};
use crate::result::Result;

/// All user objects.
#[derive(Debug, Clone, Default)]
pub struct UserObjects(Arc<Mutex<HashMap<UserObjectId, UserObject>>>);

/// An object of the program with a count of its references.
#[derive(Debug, Clone, Copy)]
pub struct UserObject {
    /// References left.
    pub references: u32,
    /// Called when no reference is left.
    pub destroy: unsafe extern "C" fn(*mut c_void),
    /// Its argument, an address.
    pub data: usize,
}

impl UserObjects {
    /// Adds an object.
    pub fn create(&self, object: UserObject) -> UserObjectId {
        let handle = handles::fresh();
        self.0.lock().insert(handle, object);
        handle
    }

    /// Adds references to an object.
    pub fn retain(&self, object: UserObjectId, count: u32) -> Result {
        let mut objects = self.0.lock();
        let object = objects
            .get_mut(&object)
            .ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        object.references = object
            .references
            .checked_add(count)
            .ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        Ok(())
    }

    /// Removes references to an object, and calls its function after the last.
    pub fn release(&self, object: UserObjectId, count: u32) -> Result {
        let gone = {
            let mut objects = self.0.lock();
            let found = objects
                .get_mut(&object)
                .ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
            found.references = found
                .references
                .checked_sub(count)
                .ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
            let found = *found;
            (found.references == 0)
                .then(|| objects.remove(&object))
                .map(|_| found)
        };
        if let Some(UserObject { destroy, data, .. }) = gone {
            // SAFETY: the program gave the function for this call with this argument.
            unsafe { destroy(std::ptr::with_exposed_provenance_mut(data)) };
        }
        Ok(())
    }

    /// Adds as many references as are held.
    pub fn retain_all(&self, held: &HeldObjects) {
        for (object, count) in held.objects() {
            // An object the program has released too often is gone already.
            let _ = self.retain(object, count);
        }
    }

    /// Removes the references that were held.
    pub fn release_all(&self, held: HeldObjects) {
        for (object, count) in held.objects() {
            // As in `retain_all`.
            let _ = self.release(object, count);
        }
    }

    /// Removes the references that an executable graph held, after what is in the stream of its last launch, if that exists.
    pub fn release_after(&self, held: HeldObjects, last: Option<StreamRef>) -> Result {
        let Some(stream) = last.filter(|_| !held.is_empty()) else {
            self.release_all(held);
            return Ok(());
        };
        // If the worker is lost, the box is never released: the program must not hear of an end that has not come.
        let data = Box::into_raw(Box::new((self.clone(), held))).cast();
        let call = release_boxed;
        callback::enqueue(Callback::Function { call, data }, stream)
    }
}

/// Releases what [`UserObjects::release_after`] has put into a box.
///
/// # Safety
/// `data` is such a box, and is not used afterwards.
unsafe extern "C" fn release_boxed(data: *mut c_void) {
    // SAFETY: by the caller's promise.
    let boxed = unsafe { Box::from_raw(data.cast::<(UserObjects, HeldObjects)>()) };
    let (objects, held) = *boxed;
    objects.release_all(held);
}

/// The references that a graph or an executable graph holds.
pub type HeldObjects = Held<UserObjectId>;
