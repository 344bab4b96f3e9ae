//! User objects: the program's counted objects that graphs keep alive.

use std::ffi::c_void;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;

use crate::driver::{self, Driver};
use crate::error::{INVALID_HANDLE, INVALID_VALUE, Result};
use crate::handle::{self, Table, Tag};

/// A counted object whose function is called when the last holder is gone.
#[derive(Debug)]
pub struct UserObject {
    handle: u64,
    destroy: unsafe extern "C" fn(*mut c_void),
    data: u64,
    count: Mutex<u32>,
}

impl Driver {
    /// User objects that graphs keep alive.
    pub fn user_objects(&self) -> &'static Table<UserObject> {
        static ALL: LazyLock<Table<UserObject>> = LazyLock::new(Table::default);
        &ALL
    }
}

impl UserObject {
    /// An object with `count` holders.
    ///
    /// # Errors
    /// `count` is 0.
    pub fn create(
        driver: &Driver,
        destroy: unsafe extern "C" fn(*mut c_void),
        data: u64,
        count: u32,
    ) -> Result<u64> {
        if count == 0 {
            return Err(INVALID_VALUE);
        }
        let handle = handle::fresh(Tag::UserObject);
        let object = Self {
            handle,
            destroy,
            data,
            count: Mutex::new(count),
        };
        driver.user_objects().insert(handle, Arc::new(object));
        Ok(handle)
    }

    /// Adds holders.
    ///
    /// # Errors
    /// No such object, or too many.
    pub fn retain(driver: &Driver, handle: u64, more: u32) -> Result {
        let object = driver.user_objects().get(handle).ok_or(INVALID_HANDLE)?;
        let mut count = object.count.lock();
        *count = count
            .checked_add(more)
            .filter(|_| more > 0)
            .ok_or(INVALID_VALUE)?;
        Ok(())
    }

    /// Removes holders; after the last, the object's function is called.
    ///
    /// # Errors
    /// No such object, or it has not that many.
    pub fn release(driver: &Driver, handle: u64, fewer: u32) -> Result {
        let object = driver.user_objects().get(handle).ok_or(INVALID_HANDLE)?;
        let mut count = object.count.lock();
        *count = count
            .checked_sub(fewer)
            .filter(|_| fewer > 0)
            .ok_or(INVALID_VALUE)?;
        if *count > 0 {
            return Ok(());
        }
        drop(count);
        driver.user_objects().remove(object.handle);
        let data = std::ptr::with_exposed_provenance_mut(object.data as usize);
        // SAFETY: the program gave this function for this object, to be called once, now.
        driver::in_callback(|| unsafe { (object.destroy)(data) });
        Ok(())
    }
}
