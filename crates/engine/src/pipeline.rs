//! A bounded queue between one thread that calls the driver and several that hash, read and write.
//!
//! The first failure in any thread ends the pipeline: every thread stops at its next step.

use std::collections::VecDeque;
use std::thread::Scope;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::EngineError;

/// The longest that a step of a pipeline may take; a slower disk or device counts as dead.
pub(crate) const STEP_LIMIT: Duration = Duration::from_secs(120);

struct State<T> {
    items: VecDeque<T>,
    producers: usize,
    failure: Option<EngineError>,
    failed: bool,
}

/// A queue of at most `room` items.
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    /// Signalled for each item, to one taker: waking all takers costs more than a copy.
    filled: Condvar,
    /// Signalled when there is room again.
    emptied: Condvar,
    room: usize,
}

/// The result of [`Queue::next`].
pub(crate) enum Next<T> {
    /// An item.
    Item(T),
    /// Nothing will come any more, or the pipeline has failed.
    End,
}

impl<T> Queue<T> {
    /// A queue that ends when `producers` have called [`Queue::end`].
    pub(crate) fn new(room: usize, producers: usize) -> Self {
        let state = State {
            items: VecDeque::new(),
            producers,
            failure: None,
            failed: false,
        };
        Self {
            state: Mutex::new(state),
            filled: Condvar::new(),
            emptied: Condvar::new(),
            room,
        }
    }

    /// Adds an item; false if the pipeline has failed.
    pub(crate) fn push(&self, item: T) -> bool {
        let until = Instant::now() + STEP_LIMIT;
        let mut state = self.state.lock();
        while state.items.len() >= self.room && !state.failed {
            if self.emptied.wait_until(&mut state, until).timed_out() {
                fail_in(
                    &mut state,
                    EngineError::Internal("a step of the transfer stalls".into()),
                );
            }
        }
        if state.failed {
            return false;
        }
        state.items.push_back(item);
        self.filled.notify_one();
        true
    }

    /// Takes an item, waiting for one.
    pub(crate) fn next(&self) -> Next<T> {
        let until = Instant::now() + STEP_LIMIT;
        let mut state = self.state.lock();
        loop {
            if state.failed {
                return Next::End;
            }
            if let Some(item) = state.items.pop_front() {
                self.emptied.notify_one();
                return Next::Item(item);
            }
            if state.producers == 0 {
                return Next::End;
            }
            if self.filled.wait_until(&mut state, until).timed_out() {
                fail_in(
                    &mut state,
                    EngineError::Internal("a step of the transfer stalls".into()),
                );
            }
        }
    }

    /// Takes the first item that is `wanted`, if there is one.
    pub(crate) fn take_if(&self, wanted: impl FnMut(&T) -> bool) -> Option<T> {
        let mut state = self.state.lock();
        let at = state.items.iter().position(wanted)?;
        state.items.remove(at)
    }

    /// Puts a taken item back, before all others, even if the queue is full.
    pub(crate) fn put_back(&self, item: T) {
        let mut state = self.state.lock();
        if !state.failed {
            state.items.push_front(item);
            self.filled.notify_one();
        }
    }

    /// Takes an item if there is one.
    pub(crate) fn try_next(&self) -> Option<T> {
        let item = self.state.lock().items.pop_front();
        self.emptied.notify_one();
        item
    }

    /// To be called by each producer when it has nothing more to add.
    pub(crate) fn end(&self) {
        self.state.lock().producers -= 1;
        self.filled.notify_all();
        self.emptied.notify_all();
    }

    /// Ends the pipeline; the first failure is the one reported.
    pub(crate) fn fail(&self, error: EngineError) {
        fail_in(&mut self.state.lock(), error);
        self.filled.notify_all();
        self.emptied.notify_all();
    }

    /// Whether it has failed.
    pub(crate) fn failed(&self) -> bool {
        self.state.lock().failed
    }

    /// The failure, if there was one: in full to the first caller.
    pub(crate) fn outcome(&self) -> Result<(), EngineError> {
        let mut state = self.state.lock();
        match state.failure.take() {
            Some(error) => Err(error),
            None if state.failed => Err(EngineError::Internal("an earlier step has failed".into())),
            None => Ok(()),
        }
    }
}

fn fail_in<T>(state: &mut State<T>, error: EngineError) {
    state.failed = true;
    state.items.clear();
    state.failure.get_or_insert(error);
}

/// Starts a helper thread in `scope`. Unlike `Scope::spawn` this does not panic if no thread can be made: the panic would
/// lose the program that the process serves, while a refused checkpoint costs nothing.
///
/// # Errors
/// The system has no thread left. The caller leaves the work to the other threads, or fails.
pub(crate) fn help<'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() + Send + 'scope,
) -> Result<(), EngineError> {
    std::thread::Builder::new()
        .spawn_scoped(scope, work)
        .map(drop)
        .map_err(|error| EngineError::Internal(format!("cannot start a thread: {error}")))
}

/// A pause between two long driver calls. The driver does one call at a time, and the thread that has just called gets it
/// again before threads that wait, so the program's calls get in only during a pause. Nothing tells whether any wait.
pub(crate) fn breathe(time: Duration) {
    std::thread::sleep(time);
}

/// Threads that hash and write: all cores but one, 1 to 8.
pub(crate) fn helpers() -> usize {
    std::thread::available_parallelism()
        .map_or(1, |cores| cores.get().saturating_sub(1))
        .clamp(1, 8)
}

/// Threads that hash while the program stands still: all cores but one, 1 to 32.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism()
        .map_or(1, |cores| cores.get().saturating_sub(1))
        .clamp(1, 32)
}
