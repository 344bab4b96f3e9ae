//! Contexts that a fault has ended, as far as the program has been told.
//!
//! ```text
//!  an answer carries a fault ─► note: the context is dead ─► check: whatever names it is answered with the fault
//! ```
//! The driver answers nearly every call on such a context with its fault, also those without an answer.
//! What the program has not been told yet it learns from the next answer, as with any error.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use fermata_abi::op::{Handle, Op};
use fermata_abi::sys::driver::CUresult;
use parking_lot::Mutex;

use crate::result::Result;

/// Whether there has been one: all that a sound program ever looks at.
static ANY: AtomicBool = AtomicBool::new(false);
thread_local! {
    /// The context that is current to the thread, 0 if none is.
    static CURRENT: Cell<Handle> = const { Cell::new(0) };
}

static DEAD: Mutex<Vec<(Handle, CUresult)>> = Mutex::new(Vec::new());

/// The fault that has ended a context.
///
/// # Errors
/// That fault.
#[inline]
pub fn check(context: Handle) -> Result {
    if ANY.load(Ordering::Relaxed) {
        look_up(context)
    } else {
        Ok(())
    }
}

/// As [`check`], of the context that an operation names.
///
/// # Errors
/// As there.
#[inline]
pub fn check_op(op: &Op<'_>) -> Result {
    if ANY.load(Ordering::Relaxed) {
        op.context().map_or(Ok(()), look_up)
    } else {
        Ok(())
    }
}

/// As [`check`], of the thread's current context.
///
/// # Errors
/// As there.
#[inline]
pub fn check_current() -> Result {
    if ANY.load(Ordering::Relaxed) {
        current().map_or(Ok(()), look_up)
    } else {
        Ok(())
    }
}

#[cold]
fn look_up(context: Handle) -> Result {
    match DEAD.lock().iter().find(|(dead, _)| *dead == context) {
        Some((_, status)) => Err(*status),
        None => Ok(()),
    }
}

/// `context` has ended with `status`.
pub fn note(context: Handle, status: CUresult) {
    let mut dead = DEAD.lock();
    if !dead.iter().any(|(known, _)| *known == context) {
        dead.push((context, status));
    }
    ANY.store(true, Ordering::Relaxed);
}

/// The context that is current to the thread, as far as faults are concerned.
pub fn current() -> Option<Handle> {
    Some(CURRENT.get()).filter(|context| *context != 0)
}

/// Another context is current to the thread, or none.
pub fn set_current(context: Option<Handle>) {
    CURRENT.set(context.unwrap_or(0));
}

/// The context is gone; its handle may come again.
pub fn forget(context: Handle) {
    DEAD.lock().retain(|(dead, _)| *dead != context);
}
