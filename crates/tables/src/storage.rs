//! Context-local storage: values that a library keeps with a context, under a key of its own.
//!
//! | slot | arguments | what it does |
//! | --- | --- | --- |
//! | 0 | context, key, value, destructor | stores |
//! | 1 | context, key | forgets, without the destructor |
//! | 2 | value*, context, key | reads; `CUDA_ERROR_INVALID_HANDLE` if there is none |
//!
//! This table has no size in its first slot. A null context means the current one. Destructors run when
//! the context ends; the driver library says so with [`context_gone`].

use core::ffi::c_void;
use std::collections::HashMap;

use fermata_abi::sys::driver as sys;
use parking_lot::RwLock;

use crate::driver::{Driver, Result, call, put};
use crate::slots::{Named, Table};

pub const ID: [u8; 16] = [
    0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93,
];

struct Storage;

impl Named for Storage {
    const ID: [u8; 16] = ID;
}

pub static TABLE: Table = Table::without_size::<Storage>()
    .with(0, store as *const c_void)
    .with(1, forget as *const c_void)
    .with(2, read as *const c_void);

/// Called with context, key and value.
type Destructor = extern "C" fn(sys::CUcontext, *mut c_void, *mut c_void);

#[derive(Clone, Copy)]
struct Value {
    address: usize,
    destructor: Option<Destructor>,
}

/// Values by context and key. Both are addresses that only their owners follow.
static VALUES: RwLock<Option<HashMap<(usize, usize), Value>>> = RwLock::new(None);

extern "C" fn store(
    context: sys::CUcontext,
    key: *mut c_void,
    value: *mut c_void,
    destructor: Option<Destructor>,
) -> sys::CUresult {
    call(|driver| {
        let context = known(driver, context)?;
        let address = value.expose_provenance();
        VALUES.write().get_or_insert_default().insert(
            (context, key.addr()),
            Value {
                address,
                destructor,
            },
        );
        Ok(())
    })
}

extern "C" fn forget(context: sys::CUcontext, key: *mut c_void) -> sys::CUresult {
    call(|driver| {
        let context = known(driver, context)?;
        if let Some(values) = VALUES.write().as_mut() {
            values.remove(&(context, key.addr()));
        }
        Ok(())
    })
}

extern "C" fn read(
    value: *mut *mut c_void,
    context: sys::CUcontext,
    key: *mut c_void,
) -> sys::CUresult {
    call(|driver| {
        let at = (known(driver, context)?, key.addr());
        let found = VALUES
            .read()
            .as_ref()
            .and_then(|values| values.get(&at).copied());
        let found = found.ok_or(sys::CUDA_ERROR_INVALID_HANDLE)?;
        // SAFETY: the caller passes room for a pointer, or null.
        unsafe { put(value, core::ptr::with_exposed_provenance_mut(found.address)) }
    })
}

fn known(driver: &dyn Driver, context: sys::CUcontext) -> Result<usize> {
    let context = if context.is_null() {
        driver.current()
    } else {
        context
    };
    if context.is_null() {
        return Err(sys::CUDA_ERROR_INVALID_CONTEXT);
    }
    Ok(context.addr())
}

/// Takes out a context's values, with their keys.
fn take(context: sys::CUcontext) -> Vec<((usize, usize), Value)> {
    let mut values = VALUES.write();
    let of_context = |(of, _): &(usize, usize), _: &mut Value| *of == context.addr();
    let taken = values
        .as_mut()
        .map(|it| it.extract_if(of_context).collect());
    taken.unwrap_or_default()
}

/// Forgets the values of a context that has ended, without their destructors, which would use it.
pub fn forget_context(context: sys::CUcontext) {
    take(context);
}

/// Runs the destructors of a context that is about to end, and forgets its values. The caller holds no lock
/// that a driver call takes: destructors may make some.
pub fn context_gone(context: sys::CUcontext) {
    for ((_, key), value) in take(context) {
        if let Some(destructor) = value.destructor {
            destructor(
                context,
                core::ptr::with_exposed_provenance_mut(key),
                core::ptr::with_exposed_provenance_mut(value.address),
            );
        }
    }
}
