//! The state that the thread that serves the program and the thread that copies share during a capture.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fermata_abi::op::{Address, FunctionId, StreamRef};
use fermata_abi::sys::driver as cu;
use fermata_device::{ContextHandle, Driver, EventHandle, StreamHandle};
use parking_lot::{Condvar, Mutex};

use super::cost::Cost;
use super::first_use::FirstUse;
use super::map::{ChunkMap, Mark};
use super::pool::{DevicePool, of_device};
use super::purpose::Purpose;
use crate::EngineError;
use crate::sink::Signals;
use fermata_terms::{Stall, Validation};

/// A point in a stream of ours, after copies aside.
#[derive(Debug)]
pub(crate) struct MarkEvent {
    pub event: EventHandle,
    pub context: ContextHandle,
    pub copies: StreamHandle,
    /// The program's stream whose operation they were made for, and which waits for them.
    pub stream: StreamRef,
    pub passed: bool,
}

/// Under the lock.
pub(crate) struct Inner {
    pub map: ChunkMap,
    pub pools: Vec<DevicePool>,
    pub marks: Vec<MarkEvent>,
    pub failure: Option<EngineError>,
    /// The image was given up so that the program need not wait; a stop takes what has changed. Why.
    pub yielded: Option<String>,
    /// Copies wait until then, for the program has transfers of its own.
    pub yield_until: Option<Instant>,
    pub cost: Cost,
    /// Since when an operation waits, if one does.
    pub waiting: Option<Instant>,
    pub validation: Validation,
    /// Contexts in which instrumented kernels have been launched.
    pub checked_in: BTreeSet<ContextHandle>,
    /// Kernels launched meanwhile, each with whether all it touches was foreseen.
    pub launched: HashMap<FunctionId, bool>,
    /// In which order the program has used memory meanwhile.
    pub first_use: FirstUse,
    /// The gate has been closed, and has told all it knows.
    pub closed: bool,
    /// The serving thread waits for a piece.
    pressed: bool,
    /// The same for the sink, which then does not wait for storage.
    signals: Arc<Signals>,
    /// When the last piece that it had waited for was there, or it went on.
    pub relieved: Option<Instant>,
    /// Passes over what was written meanwhile, and the bytes of the last.
    pub passes: u32,
    pub last_pass: u64,
    /// Bytes read so far.
    pub moved: u64,
}

/// How a capture has gone.
pub(crate) struct Verdict {
    /// Why it was given up.
    pub failure: Option<EngineError>,
    /// Whether it was given up so that the program need not wait.
    pub yielded: bool,
    /// What it has cost.
    pub stall: Stall,
    /// How it was validated.
    pub validation: Validation,
    /// Kernels launched meanwhile, each with whether all it touches was foreseen.
    pub launched: HashMap<FunctionId, bool>,
    /// Device memory that the program has used meanwhile, first used first.
    pub used: Vec<Address>,
}

/// See the module.
pub(crate) struct Shared {
    pub purpose: Purpose,
    pub inner: Mutex<Inner>,
    pub changed: Condvar,
    /// Nothing more is read from the program's memory.
    over: AtomicBool,
    /// Every instrumented kernel that was launched before that has ended.
    settled: AtomicBool,
    /// The program has nothing on its devices.
    rests: Mutex<bool>,
    /// That is so now, or nothing is copied any more.
    rested: Condvar,
}

impl Shared {
    pub(crate) fn new(
        purpose: Purpose,
        map: ChunkMap,
        pools: Vec<DevicePool>,
        validation: Validation,
        signals: Arc<Signals>,
    ) -> Self {
        let last_pass = map.left().bytes;
        let inner = Inner {
            map,
            pools,
            marks: Vec::new(),
            failure: None,
            yielded: None,
            yield_until: None,
            cost: Cost::default(),
            waiting: None,
            validation,
            checked_in: BTreeSet::new(),
            launched: HashMap::new(),
            first_use: FirstUse::default(),
            closed: false,
            pressed: false,
            signals,
            relieved: None,
            passes: 1,
            last_pass,
            moved: 0,
        };
        Self {
            purpose,
            inner: Mutex::new(inner),
            changed: Condvar::new(),
            over: AtomicBool::new(false),
            settled: AtomicBool::new(false),
            rests: Mutex::new(false),
            rested: Condvar::new(),
        }
    }

    /// Whether the program has nothing on its devices just now.
    pub(crate) fn set_rests(&self, rests: bool) {
        *self.rests.lock() = rests;
        if rests {
            self.rested.notify_all();
        }
    }

    /// Waits until the program has nothing on its devices, or for `longest`, or until nothing is copied any more.
    pub(crate) fn await_rest(&self, longest: Duration) {
        let until = Instant::now() + longest;
        let mut rests = self.rests.lock();
        while !*rests && !self.is_over() {
            if self.rested.wait_until(&mut rests, until).timed_out() {
                return;
            }
        }
    }

    /// Whether nothing more is read from the program's memory.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// The copying thread has read all it will read.
    pub(crate) fn end(&self) {
        let inner = self.inner.lock();
        self.over.store(true, Ordering::Release);
        self.changed.notify_all();
        drop(inner);
        // Under the lock, or `await_rest` could look before and sleep after.
        drop(self.rests.lock());
        self.rested.notify_all();
    }

    /// Whether instrumented kernels that were launched while data was copied have all ended.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    /// Waits until instrumented kernels that were launched while data was copied have ended, and what they have found
    /// has been told by the gate. Called by the thread that has copied; its current context changes.
    pub(crate) fn settle(&self, driver: &Driver) {
        let contexts = self.inner.lock().checked_in.clone();
        for context in &contexts {
            // A context that has failed has nothing more to report.
            let _ = driver
                .set_current(*context)
                .and_then(|()| driver.synchronize_context());
        }
        self.settled.store(true, Ordering::Release);
        let until = Instant::now() + CLOSING;
        let mut inner = self.inner.lock();
        while !contexts.is_empty() && !inner.closed && inner.failure.is_none() {
            if self.changed.wait_until(&mut inner, until).timed_out() {
                let why = "what instrumented kernels have found is not told".to_owned();
                inner.failure.get_or_insert(EngineError::Internal(why));
            }
        }
    }

    /// How it has gone, asked once it has ended; `copying` is how long it took.
    pub(crate) fn verdict(&self, copying: Duration) -> Verdict {
        let mut inner = self.inner.lock();
        inner.cost.copying = copying;
        inner.count_wait();
        let mut validation = std::mem::take(&mut inner.validation);
        if let Some(why) = &inner.yielded {
            validation.note.clone_from(why);
        }
        Verdict {
            failure: inner.failure.take(),
            yielded: inner.yielded.is_some(),
            stall: inner.cost.stall(),
            validation,
            launched: std::mem::take(&mut inner.launched),
            used: inner.first_use.take(),
        }
    }

    /// The attempt is given up; the first reason is the one that is told.
    pub(crate) fn give_up(&self, why: EngineError) {
        let mut inner = self.inner.lock();
        inner.failure.get_or_insert(why);
        inner.signals.give_up();
        drop(inner);
        self.changed.notify_all();
    }

    /// The program does not wait any longer: what it overwrites is taken in a stop.
    pub(crate) fn make_way(&self, why: &str) {
        self.inner.lock().yielded.get_or_insert(why.to_owned());
        self.changed.notify_all();
    }

    /// Whether nothing is copied any more for this attempt, whose gate lets everything pass.
    pub(crate) fn given_up(&self) -> bool {
        self.inner.lock().is_given_up()
    }

    /// Lets the program's transfers go first for about `time`.
    pub(crate) fn yield_for(&self, time: Duration) {
        let mut inner = self.inner.lock();
        let now = Instant::now();
        let from = inner.yield_until.map_or(now, |until| until.max(now));
        inner.yield_until = Some((from + time).min(now + LONGEST_YIELD));
    }
}

/// A gate whose work is done is closed within this time.
const CLOSING: Duration = Duration::from_secs(30);
/// Copies never wait longer than this for the program's transfers, so that they end some day.
const LONGEST_YIELD: Duration = Duration::from_millis(20);

impl Inner {
    /// An operation waits no longer, or what it waits for has come.
    pub(crate) fn count_wait(&mut self) {
        if let Some(since) = self.waiting.take() {
            self.cost.waits += 1;
            self.cost.waited += since.elapsed();
            self.cost.timeline.waited(since);
        }
    }

    /// Whether the attempt has been given up, with or without an image that comes of it.
    pub(crate) fn is_given_up(&self) -> bool {
        self.failure.is_some() || self.yielded.is_some()
    }

    /// Whether the serving thread waits for a piece.
    pub(crate) fn is_pressed(&self) -> bool {
        self.pressed
    }

    /// The serving thread waits for a piece from now on, or does not.
    pub(crate) fn press(&mut self, pressed: bool) {
        self.pressed = pressed;
        self.signals.hurry(pressed);
    }

    /// A launch could not be checked; the first reason is told.
    pub(crate) fn unchecked(&mut self, why: &str) {
        self.validation.unchecked += 1;
        if self.validation.note.is_empty() {
            self.validation.note = why.to_owned();
        }
    }

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
            mark.passed = !asked.is_err_and(|error| error.code == cu::CUDA_ERROR_NOT_READY);
        }
        mark.passed
    }

    /// The pool of a device.
    pub(crate) fn pool(&mut self, device: u32) -> Option<&mut DevicePool> {
        of_device(&mut self.pools, device)
    }
}
