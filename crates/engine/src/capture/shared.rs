//! What the thread that serves the program and the thread that copies have in common.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fermata_abi::op::StreamRef;
use fermata_device::{ContextHandle, Driver, EventHandle};
use parking_lot::{Condvar, Mutex};

use super::map::{ChunkMap, Mark};
use super::pool::DevicePool;
use super::{Purpose, Stall};
use crate::EngineError;

/// A point in a stream.
#[derive(Debug)]
pub(crate) struct MarkEvent {
    pub event: EventHandle,
    pub context: ContextHandle,
    pub stream: StreamRef,
    pub passed: bool,
}

/// Under the lock.
pub(crate) struct Inner {
    pub map: ChunkMap,
    pub pools: Vec<DevicePool>,
    pub marks: Vec<MarkEvent>,
    pub failure: Option<EngineError>,
    /// Copies wait until then, for the program has transfers of its own.
    pub yield_until: Option<Instant>,
    pub stall: Stall,
    /// The serving thread waits for a piece.
    pub pressed: bool,
    /// Passes over what was written meanwhile, and the bytes of the last.
    pub passes: u32,
    pub last_pass: u64,
    /// Bytes read so far.
    pub moved: u64,
}

/// See the module.
pub(crate) struct Shared {
    pub purpose: Purpose,
    pub inner: Mutex<Inner>,
    pub changed: Condvar,
    /// Nothing more is read from the program's memory.
    over: AtomicBool,
}

impl Shared {
    pub(crate) fn new(purpose: Purpose, map: ChunkMap, pools: Vec<DevicePool>) -> Self {
        let last_pass = map.left().bytes;
        let inner = Inner {
            map,
            pools,
            marks: Vec::new(),
            failure: None,
            yield_until: None,
            stall: Stall::default(),
            pressed: false,
            passes: 1,
            last_pass,
            moved: 0,
        };
        Self {
            purpose,
            inner: Mutex::new(inner),
            changed: Condvar::new(),
            over: AtomicBool::new(false),
        }
    }

    /// Whether nothing more is read from the program's memory.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// The copying thread has read all it will read.
    pub(crate) fn end(&self) {
        let _inner = self.inner.lock();
        self.over.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    /// The attempt is given up; the first reason is the one that is told.
    pub(crate) fn give_up(&self, why: EngineError) {
        self.inner.lock().failure.get_or_insert(why);
        self.changed.notify_all();
    }

    /// Whether the attempt has been given up.
    pub(crate) fn given_up(&self) -> bool {
        self.inner.lock().failure.is_some()
    }

    /// Lets the program's transfers go first for about `time`.
    pub(crate) fn yield_for(&self, time: Duration) {
        let mut inner = self.inner.lock();
        let now = Instant::now();
        let from = inner.yield_until.map_or(now, |until| until.max(now));
        inner.yield_until = Some((from + time).min(now + LONGEST_YIELD));
    }
}

/// Copies never wait longer than this for the program's transfers, so that they end some day.
const LONGEST_YIELD: Duration = Duration::from_millis(20);

impl Inner {
    /// Whether all work before a mark is complete. The caller's current context may change.
    pub(crate) fn has_passed(marks: &mut [MarkEvent], driver: &Driver, mark: Mark) -> bool {
        // What was put aside while the program stood still has no mark.
        let Some(mark) = marks.get_mut(mark) else {
            return true;
        };
        if !mark.passed {
            let asked = driver
                .set_current(mark.context)
                .and_then(|()| driver.query_event(mark.event));
            // A failed context is noticed by the copy that follows.
            mark.passed = asked.is_ok();
        }
        mark.passed
    }

    /// The pool of a device.
    pub(crate) fn pool(&mut self, device: u32) -> Option<&mut DevicePool> {
        self.pools.iter_mut().find(|pool| pool.device() == device)
    }
}
