//! Contexts that a fault has ended, as far as the program has been told.
//!
//! ```text
//!  an answer carries a fault ─► learn: the context is dead ─► check: whatever names it is answered with the fault
//! ```
//! The driver answers nearly every call on such a context with its fault, also those without an answer.
//! What the program has not been told yet it learns from the next answer, as with any error.

use std::sync::atomic::{AtomicBool, Ordering};

use fermata_abi::op::{Handle, Op, ends_context};
use fermata_abi::sys::driver::CUresult;
use parking_lot::Mutex;

use crate::entry::Result;
use crate::{context, link};

/// Whether there has been one: all that a sound program ever looks at.
static ANY: AtomicBool = AtomicBool::new(false);
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
        context::current_or_none().map_or(Ok(()), |context| look_up(context.handle))
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

/// An operation on `context`, or on one that its answer does not tell, has been answered with `status`.
#[cold]
pub fn learn(named: Option<Handle>, status: CUresult) {
    if !ends_context(status) {
        return;
    }
    if let Some(context) = named {
        let mut dead = DEAD.lock();
        if !dead.iter().any(|(known, _)| *known == context) {
            dead.push((context, status));
        }
        ANY.store(true, Ordering::Relaxed);
    } else if let Some(context) = context::current_or_none()
        && check(context.handle).is_ok()
    {
        // Of events and modules the worker knows the context: usually it is the current one.
        let context = context.handle;
        let _ = link::ask(&Op::MemInfo { context }, link::pair);
    }
}

/// The context is gone; its handle may come again.
pub fn forget(context: Handle) {
    DEAD.lock().retain(|(dead, _)| *dead != context);
}
