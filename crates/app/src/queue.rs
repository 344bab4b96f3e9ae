//! A queue from the threads that capture to those that write. The first failure anywhere ends all of them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::{AppError, Result};

struct State<T> {
    items: VecDeque<T>,
    ended: bool,
    failed: bool,
    failure: Option<AppError>,
}

/// What it holds is bounded by the buffers its items own.
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    limit: Duration,
}

impl<T> Queue<T> {
    /// A queue whose waits end after `limit`.
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            state: Mutex::new(State {
                items: VecDeque::new(),
                ended: false,
                failed: false,
                failure: None,
            }),
            changed: Condvar::new(),
            limit,
        }
    }

    /// Adds an item; dropped if the queue has failed.
    pub(crate) fn push(&self, item: T) {
        let mut state = self.state.lock();
        if !state.failed {
            state.items.push_back(item);
            self.changed.notify_one();
        }
    }

    /// The next item; `None` at the end or after a failure.
    pub(crate) fn next(&self) -> Option<T> {
        let until = Instant::now() + self.limit;
        let mut state = self.state.lock();
        loop {
            if state.failed {
                return None;
            }
            if let Some(item) = state.items.pop_front() {
                return Some(item);
            }
            if state.ended {
                return None;
            }
            if self.changed.wait_until(&mut state, until).timed_out() {
                drop(state);
                self.fail(AppError::Deadline {
                    what: "a step of the transfer",
                    seconds: self.limit.as_secs_f64(),
                });
                return None;
            }
        }
    }

    /// Nothing more will be added.
    pub(crate) fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }

    /// Ends everything; the first failure is the one reported.
    pub(crate) fn fail(&self, error: AppError) {
        let mut state = self.state.lock();
        state.failed = true;
        state.items.clear();
        state.failure.get_or_insert(error);
        drop(state);
        self.changed.notify_all();
    }

    /// Runs a step; its failure is the queue's.
    pub(crate) fn watch(&self, step: impl FnOnce() -> Result<()>) {
        if let Err(error) = step() {
            self.fail(error);
        }
    }

    /// Whether it has failed.
    pub(crate) fn failed(&self) -> bool {
        self.state.lock().failed
    }

    /// The failure, if there was one.
    pub(crate) fn outcome(&self) -> Result<()> {
        self.state.lock().failure.take().map_or(Ok(()), Err)
    }
}

/// Threads that hash, read and write: all cores but one, 2 to 8.
pub(crate) fn helpers() -> usize {
    std::thread::available_parallelism()
        .map_or(2, |cores| cores.get().saturating_sub(1))
        .clamp(2, 8)
}
