//! The driver's own checkpoint of this process: device memory goes to host memory and back.
//!
//! ```text
//!   running ──lock──► locked ──checkpoint──► checkpointed ──┐
//!      ▲                │ ▲                       │         │ a restore that cannot end
//!      └────unlock──────┘ └──────restore──────────┘         ▼
//!                                                         failed
//! ```
//!
//! From locked on, calls of the API wait until the process is unlocked; those of one that has failed wait for ever. Other
//! processes ask for all of this through `remote`.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fermata_abi::sys::driver as cu;
use parking_lot::{Condvar, Mutex};

use crate::device;
use crate::driver::{self, Driver};
use crate::error::{CuError, NOT_SUPPORTED, Result};
use crate::memory::Saved;
use crate::remote::page;

/// Where the process stands.
#[derive(Debug)]
enum State {
    Running,
    Locked,
    Checkpointed(Vec<Saved>),
    Failed,
}

impl State {
    fn number(&self) -> cu::CUprocessState {
        match self {
            Self::Running => cu::CU_PROCESS_STATE_RUNNING,
            Self::Locked => cu::CU_PROCESS_STATE_LOCKED,
            Self::Checkpointed(_) => cu::CU_PROCESS_STATE_CHECKPOINTED,
            Self::Failed => cu::CU_PROCESS_STATE_FAILED,
        }
    }

    /// Sets the state of the process, which other processes can read.
    fn enter(&mut self, state: Self) {
        page::show(state.number());
        *self = state;
    }
}

static STATE: Mutex<State> = Mutex::new(State::Running);
static CHANGED: Condvar = Condvar::new();
/// Not running: calls must look at the state.
static SHUT: AtomicBool = AtomicBool::new(false);
/// Calls of the API in progress.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);
/// Of the wait for the end of calls; it guards nothing else.
static ENDING: Mutex<()> = Mutex::new(());
/// The last call in progress has ended, while the process is not running.
static ENDED: Condvar = Condvar::new();

/// A call of the API in progress.
#[derive(Debug)]
pub struct Call(());

impl Call {
    /// Begins a call, when the process is not locked. Callbacks are let through: what a lock waits for
    /// must be able to end.
    pub fn begin() -> Self {
        loop {
            ACTIVE.fetch_add(1, Ordering::SeqCst);
            if !SHUT.load(Ordering::SeqCst) || driver::is_in_callback() {
                return Self(());
            }
            leave();
            let mut state = STATE.lock();
            while !matches!(*state, State::Running) {
                CHANGED.wait(&mut state);
            }
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        leave();
    }
}

/// A call is no longer in progress. Either this sees that the process is shut, or who has shut it sees the count.
fn leave() {
    if ACTIVE.fetch_sub(1, Ordering::SeqCst) == 1 && SHUT.load(Ordering::SeqCst) {
        // Under the lock, because a waiter could otherwise miss the notification between its check and its sleep.
        drop(ENDING.lock());
        ENDED.notify_all();
    }
}

fn illegal_state() -> CuError {
    CuError(cu::CUDA_ERROR_ILLEGAL_STATE)
}

/// `CU_PROCESS_STATE_*`
pub fn state() -> cu::CUprocessState {
    STATE.lock().number()
}

/// Waits until no call is in progress and everything submitted has ended; false if that is not so by `until`. The process
/// is shut.
fn drain(driver: &Driver, until: Option<Instant>) -> bool {
    loop {
        if !calls_end(until) {
            return false;
        }
        let contexts = driver.contexts().all().into_iter();
        let points: Vec<_> = contexts
            .flat_map(|context| context.streams.lock().ends())
            .collect();
        let mut waited = false;
        for point in points.iter().filter(|point| !point.reached()) {
            waited = true;
            if !point.wait_until(until) {
                return false;
            }
        }
        // Callbacks of the work that was waited for may have made calls.
        if !waited && ACTIVE.load(Ordering::SeqCst) == 0 {
            return true;
        }
    }
}

/// Waits until no call is in progress; false if that is not so by `until`.
fn calls_end(until: Option<Instant>) -> bool {
    let mut ending = ENDING.lock();
    while ACTIVE.load(Ordering::SeqCst) != 0 {
        let Some(until) = until else {
            ENDED.wait(&mut ending);
            continue;
        };
        if ENDED.wait_until(&mut ending, until).timed_out() {
            return ACTIVE.load(Ordering::SeqCst) == 0;
        }
    }
    true
}

/// Does `work` while no call is in progress and nothing runs. Called without a [`Call`].
pub fn quiet<T>(driver: &Driver, work: impl FnOnce() -> T) -> T {
    let mut state = STATE.lock();
    while !matches!(*state, State::Running) {
        CHANGED.wait(&mut state);
    }
    SHUT.store(true, Ordering::SeqCst);
    drain(driver, None);
    let done = work();
    SHUT.store(false, Ordering::SeqCst);
    CHANGED.notify_all();
    done
}

/// Lets calls in progress and submitted work end, and no new calls begin.
///
/// # Errors
/// The process is not running, or that took longer than `timeout`; it runs on then.
pub fn lock(driver: &Driver, timeout: Option<Duration>) -> Result {
    let mut state = STATE.lock();
    if !matches!(*state, State::Running) {
        return Err(illegal_state());
    }
    let until = timeout.map(|timeout| Instant::now() + timeout);
    SHUT.store(true, Ordering::SeqCst);
    if !drain(driver, until) {
        SHUT.store(false, Ordering::SeqCst);
        CHANGED.notify_all();
        return Err(CuError(cu::CUDA_ERROR_NOT_READY));
    }
    state.enter(State::Locked);
    Ok(())
}

/// Moves device memory to host memory.
///
/// # Errors
/// The process is not locked, or has managed memory or exported memory mapped, which cannot be moved.
pub fn checkpoint(driver: &Driver) -> Result {
    let mut state = STATE.lock();
    if !matches!(*state, State::Locked) {
        return Err(illegal_state());
    }
    if driver.memory.has_managed() || driver.memory.is_shared() {
        return Err(NOT_SUPPORTED);
    }
    let saved = driver.memory.evict()?;
    state.enter(State::Checkpointed(saved));
    Ok(())
}

/// Moves device memory back to where it was. `pairs` are UUIDs of devices: those that the process has had, each with that
/// of the device that takes its place; none for the same devices.
///
/// # Errors
/// The process is not checkpointed, or `pairs` are not all its devices and as many others: it stays as it is. Or there is
/// no memory: it has failed for good.
pub fn restore(driver: &Driver, pairs: &[([u8; 16], [u8; 16])]) -> Result {
    let mut state = STATE.lock();
    let State::Checkpointed(saved) = &*state else {
        return Err(illegal_state());
    };
    let places = device::exchanged(&driver.devices, pairs)?;
    if let Err(error) = driver.memory.bring_back(saved) {
        // A part may be back, and another not.
        state.enter(State::Failed);
        return Err(error);
    }
    for (device, place) in driver.devices.iter().zip(places) {
        device.move_to(place);
    }
    state.enter(State::Locked);
    Ok(())
}

/// Lets calls go on.
///
/// # Errors
/// The process is not locked.
pub fn unlock() -> Result {
    let mut state = STATE.lock();
    if !matches!(*state, State::Locked) {
        return Err(illegal_state());
    }
    state.enter(State::Running);
    SHUT.store(false, Ordering::SeqCst);
    CHANGED.notify_all();
    Ok(())
}
