//! Devices and primary contexts: what a thread chose, and binding it when a call first needs a context.
//!
//! A context that the program made current through the driver API is left alone and used. Otherwise the
//! primary context of the thread's device (device 0 until it chooses) is retained, once per process, and
//! made current.
use core::ffi::c_int;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

use fermata_abi::sys::driver::{CUcontext, CUdevice};
use fermata_abi::sys::runtime::cudaErrorContextIsDestroyed;
use parking_lot::Mutex;

use crate::driver::{self, Calls};
use crate::error::{Error, Result};

/// Primary contexts retained by this library; addresses, because the handles are only passed back.
static PRIMARY: Mutex<Option<HashMap<CUdevice, usize>>> = Mutex::new(None);
/// Counts resets, so that threads notice that the context they are bound to is gone.
static RESETS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static CHOSEN: Cell<Option<c_int>> = const { Cell::new(None) };
    /// The resets when a primary context was made current last, and which.
    static BOUND_AT: Cell<u32> = const { Cell::new(0) };
    static BOUND_TO: Cell<usize> = const { Cell::new(0) };
    /// The resets at which a context was current, plus one; 0 before that.
    static READY_AT: Cell<u64> = const { Cell::new(0) };
}

/// The driver, with a context current on the calling thread.
///
/// # Errors
/// What loading the driver or creating the primary context says.
pub fn ready() -> Result<&'static Calls> {
    let calls = driver::get()?;
    let resets = RESETS.load(Ordering::Acquire);
    let mut current = core::ptr::null_mut();
    // SAFETY: writes one handle.
    unsafe { calls.cuCtxGetCurrent(&mut current) }?;
    // After a reset a primary context is retained anew; one of the program's own making is still there.
    let own = || BOUND_TO.get() != current.addr() && device_of_current(calls).is_ok();
    if !current.is_null() && (BOUND_AT.get() == resets || own()) {
        READY_AT.set(u64::from(resets) + 1);
        return Ok(calls);
    }
    bind(calls, CHOSEN.get().unwrap_or(0))?;
    READY_AT.set(u64::from(resets) + 1);
    Ok(calls)
}

/// Calls `act` with the driver. A thread that had a context lately is not asked whether it still has: the
/// driver says so without having done anything, and then it gets one. Costs a call of the driver less than
/// [`ready`].
///
/// # Errors
/// Those of [`ready`] and of `act`.
#[inline(always)]
pub fn with_ready(act: impl Fn(&'static Calls) -> Result) -> Result {
    let mut lately = READY_AT.get() == u64::from(RESETS.load(Ordering::Acquire)) + 1;
    loop {
        // Called in one place: what it does is to become part of the caller.
        match act(if lately { driver::get()? } else { ready()? }) {
            Err(Error::INVALID_CONTEXT) if lately => lately = false,
            other => return other,
        }
    }
}

/// Makes `ordinal` the calling thread's device and its primary context current.
///
/// # Errors
/// `cudaErrorInvalidDevice` if there is no such device.
pub fn choose(ordinal: c_int) -> Result {
    let calls = driver::get()?;
    device(calls, ordinal)?;
    bind(calls, ordinal)?;
    CHOSEN.set(Some(ordinal));
    Ok(())
}

/// The calling thread's device, without creating a context.
///
/// # Errors
/// What loading the driver says.
pub fn chosen() -> Result<c_int> {
    let calls = driver::get()?;
    let mut current = core::ptr::null_mut();
    // SAFETY: writes one handle.
    unsafe { calls.cuCtxGetCurrent(&mut current) }?;
    if current.is_null() {
        return Ok(CHOSEN.get().unwrap_or(0));
    }
    match device_of_current(calls) {
        // Whoever has reset the device has taken it away.
        Err(Error(cudaErrorContextIsDestroyed) | Error::INVALID_CONTEXT) => {
            Ok(CHOSEN.get().unwrap_or(0))
        }
        device => device,
    }
}

fn device_of_current(calls: &Calls) -> Result<CUdevice> {
    let mut device = 0;
    // SAFETY: writes one integer.
    unsafe { calls.cuCtxGetDevice(&mut device) }?;
    Ok(device)
}

/// The driver's handle of a device number.
///
/// # Errors
/// `cudaErrorInvalidDevice` if there is no such device.
pub fn device(calls: &Calls, ordinal: c_int) -> Result<CUdevice> {
    let mut device = 0;
    // SAFETY: writes one integer.
    let found = unsafe { calls.cuDeviceGet(&mut device, ordinal) };
    found.map_err(|error| match error {
        Error::INVALID_VALUE => Error::INVALID_DEVICE,
        other => other,
    })?;
    Ok(device)
}

/// The primary context of a device, retained at its first use.
///
/// # Errors
/// What the driver says of the device or of creating the context.
pub fn primary(calls: &Calls, ordinal: c_int) -> Result<CUcontext> {
    let device = device(calls, ordinal)?;
    let mut primary = PRIMARY.lock();
    let retained = primary.get_or_insert_default();
    if let Some(context) = retained.get(&device) {
        return Ok(core::ptr::with_exposed_provenance_mut(*context));
    }
    let mut context = core::ptr::null_mut();
    // SAFETY: writes one handle.
    unsafe { calls.cuDevicePrimaryCtxRetain(&mut context, device) }?;
    retained.insert(device, context.expose_provenance());
    Ok(context)
}

/// Destroys the primary context of the calling thread's device; later calls make it anew.
///
/// # Errors
/// What the driver says.
pub fn reset() -> Result {
    let calls = driver::get()?;
    let device = device(calls, chosen()?)?;
    if let Some(retained) = PRIMARY.lock().as_mut() {
        retained.remove(&device);
    }
    RESETS.fetch_add(1, Ordering::AcqRel);
    // SAFETY: no pointers.
    unsafe { calls.cuDevicePrimaryCtxReset_v2(device) }
}

fn bind(calls: &Calls, ordinal: c_int) -> Result {
    let resets = RESETS.load(Ordering::Acquire);
    let context = primary(calls, ordinal)?;
    // SAFETY: a live context handle of this driver.
    unsafe { calls.cuCtxSetCurrent(context) }?;
    BOUND_AT.set(resets);
    BOUND_TO.set(context.addr());
    Ok(())
}
