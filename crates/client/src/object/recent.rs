//! Per-thread caches of recently used functions and streams, so that a launch takes no lock and counts no reference.
//!
//! ```text
//!   launch ─► place of the handle in the thread's own table ── same handle, context, epoch ─► use it
//!                                                          └─ else: look it up, keep it there
//! ```
//! Removing a function, a kernel or a stream changes the epoch, which empties every table.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use fermata_abi::op::{ContextId, Raw, StreamId, StreamRef};

use crate::result::Result;

/// Places in each table; handles are multiples of 16 counted up.
pub const PLACES: usize = 16;

static EPOCH: AtomicU64 = AtomicU64::new(1);

/// The key of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key<H> {
    epoch: u64,
    handle: H,
    context: ContextId,
}

/// The key of an empty place, given the handle that names nothing.
pub const fn nobody<H: Copy>(null: H) -> Key<H> {
    Key {
        epoch: 0,
        handle: null,
        context: ContextId::NULL,
    }
}

const NO_STREAM: (Key<StreamId>, StreamRef) = (
    nobody(StreamId::NULL),
    StreamRef {
        context: ContextId::NULL,
        stream: StreamId::NULL,
    },
);

thread_local! {
    static STREAMS: [Cell<(Key<StreamId>, StreamRef)>; PLACES] =
        const { [const { Cell::new(NO_STREAM) }; PLACES] };
}

/// Empties every thread's tables. To be called after functions, kernels or streams have been removed from their tables.
pub fn forget_all() {
    EPOCH.fetch_add(1, Ordering::AcqRel);
}

/// The key of a lookup at this moment.
#[inline]
pub fn key<H>(handle: H, context: ContextId) -> Key<H> {
    Key {
        epoch: EPOCH.load(Ordering::Acquire),
        handle,
        context,
    }
}

/// The place of a handle in each table.
#[inline]
pub fn place(handle: impl Raw) -> usize {
    (handle.raw() >> 4) as usize % PLACES
}

/// The stream behind a handle as operations name it.
#[inline]
pub fn stream(
    handle: StreamId,
    context: ContextId,
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
