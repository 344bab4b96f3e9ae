//! What a thread has launched and where, lately: so that a launch takes no lock and counts no reference.
//!
//! ```text
//!   launch ─► place of the handle in the thread's own table ── same handle, context, epoch ─► use it
//!                                                          └─ else: look it up, keep it there
//! ```
//! Whatever takes a function, a kernel or a stream away moves the epoch, and so empties every table.

use std::cell::{Cell, RefCell};
use std::mem::{ManuallyDrop, replace};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fermata_abi::op::{Handle, StreamRef};

use crate::context::Context;
use crate::entry::Result;
use crate::module::Function;

/// Places in each table; handles are multiples of 16 counted up.
const PLACES: usize = 16;

static EPOCH: AtomicU64 = AtomicU64::new(1);

/// What an entry was looked up by.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    epoch: u64,
    handle: Handle,
    context: Handle,
}

const NOBODY: Key = Key {
    epoch: 0,
    handle: 0,
    context: 0,
};

type Functions = [(Key, Option<Arc<Function>>); PLACES];

const NO_FUNCTIONS: Functions = [const { (NOBODY, None) }; PLACES];

thread_local! {
    /// Without a destructor, so that it is there as long as the thread; see [`let_go`].
    static FUNCTIONS: ManuallyDrop<RefCell<Functions>> =
        const { ManuallyDrop::new(RefCell::new(NO_FUNCTIONS)) };
    static STREAMS: [Cell<(Key, StreamRef)>; PLACES] =
        const { [const { Cell::new((NOBODY, StreamRef { context: 0, stream: 0 })) }; PLACES] };
}

/// Functions, kernels or streams are gone: to be called after they have been taken out of their tables.
pub fn forget_all() {
    EPOCH.fetch_add(1, Ordering::AcqRel);
}

#[inline]
fn key(handle: Handle, context: Handle) -> Key {
    Key {
        epoch: EPOCH.load(Ordering::Acquire),
        handle,
        context,
    }
}

#[inline]
fn place(handle: Handle) -> usize {
    (handle >> 4) as usize % PLACES
}

/// The thread ends: what it has launched need not stay for it.
pub fn let_go() {
    let known = FUNCTIONS.with(|table| {
        table
            .try_borrow_mut()
            .map(|mut it| replace(&mut *it, NO_FUNCTIONS))
    });
    drop(known);
}

/// Calls `act` with the function behind a handle, which `find` looks up if the thread does not know it.
#[inline(always)]
pub fn with_function<T>(
    handle: Handle,
    context: &Arc<Context>,
    find: impl FnOnce() -> Result<Arc<Function>>,
    act: impl FnOnce(&Function) -> Result<T>,
) -> Result<T> {
    let key = key(handle, context.handle);
    FUNCTIONS.with(|table| {
        if let Ok(known) = table.try_borrow()
            && let (found, Some(function)) = &known[place(handle)]
            && *found == key
        {
            return act(function);
        }
        let function = find()?;
        // A signal handler that launches in the middle of a launch finds the table in use.
        if let Ok(mut known) = table.try_borrow_mut() {
            known[place(handle)] = (key, Some(function.clone()));
        }
        act(&function)
    })
}

/// What operations call the stream behind a handle.
#[inline]
pub fn stream(
    handle: Handle,
    context: Handle,
    find: impl FnOnce() -> Result<StreamRef>,
) -> Result<StreamRef> {
    let key = key(handle, context);
    let known = STREAMS.try_with(|table| table[place(handle)].get());
    if let Ok((found, stream)) = known
        && found == key
    {
        return Ok(stream);
    }
    let stream = find()?;
    let _ = STREAMS.try_with(|table| table[place(handle)].set((key, stream)));
    Ok(stream)
}
