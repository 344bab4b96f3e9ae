//! Records the contexts that a fault has ended, as far as the program has seen the fault.
//!
//! ```text
//!  an answer carries a fault ─► note: the context is dead ─► check: whatever names it is answered with the fault
//! ```
//! The driver answers nearly every call on such a context with its fault, also those without an answer.
//! A fault that the program has not seen yet comes with the next answer, as any error.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use fermata_abi::op::{ContextId, Op};
use fermata_abi::sys::driver::CUresult;
use parking_lot::Mutex;

use crate::result::Result;

/// Whether there has been a fault; without one, checks read nothing else.
static ANY: AtomicBool = AtomicBool::new(false);
thread_local! {
    /// The context that is current to the thread, 0 if none is.
    static CURRENT: Cell<ContextId> = const { Cell::new(ContextId::NULL) };
}

static DEAD: Mutex<Vec<(ContextId, CUresult)>> = Mutex::new(Vec::new());

/// Checks that no fault has ended a context.
///
/// # Errors
/// The fault that has ended it.
#[inline]
pub fn check(context: ContextId) -> Result {
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
fn look_up(context: ContextId) -> Result {
    match DEAD.lock().iter().find(|(dead, _)| *dead == context) {
        Some((_, status)) => Err(*status),
        None => Ok(()),
    }
}

/// Records that `context` has ended with `status`.
pub fn note(context: ContextId, status: CUresult) {
    let mut dead = DEAD.lock();
    if !dead.iter().any(|(known, _)| *known == context) {
        dead.push((context, status));
    }
    ANY.store(true, Ordering::Relaxed);
}

/// The context that is current to the thread, as far as faults are concerned.
pub fn current() -> Option<ContextId> {
    Some(CURRENT.get()).filter(|context| *context != ContextId::NULL)
}

/// Records which context is current to the thread now.
pub fn set_current(context: Option<ContextId>) {
    CURRENT.set(context.unwrap_or(ContextId::NULL));
}

/// Forgets a context that no longer exists; its handle may be used again.
pub fn forget(context: ContextId) {
    DEAD.lock().retain(|(dead, _)| *dead != context);
}
