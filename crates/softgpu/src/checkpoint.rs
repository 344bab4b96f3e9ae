//! The driver's own checkpoint of this process: device memory goes to host memory and back.
//!
//! ```text
//!   running ──lock──► locked ──checkpoint──► checkpointed
//!      ▲                │ ▲                       │
//!      └────unlock──────┘ └──────restore──────────┘
//! ```
//!
//! From locked on, calls of the API wait until the process is unlocked.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fermata_abi::sys::driver as cu;
use parking_lot::{Condvar, Mutex};

use crate::driver::{self, Driver};
use crate::error::{CuError, NOT_SUPPORTED, Result};
use crate::memory::Saved;

/// How often a lock looks whether calls have ended.
const POLL: Duration = Duration::from_millis(1);

/// Where the process stands.
#[derive(Debug)]
enum State {
    Running,
    Locked,
    Checkpointed(Vec<Saved>),
}

static STATE: Mutex<State> = Mutex::new(State::Running);
static CHANGED: Condvar = Condvar::new();
/// Not running: calls must look at the state.
static SHUT: AtomicBool = AtomicBool::new(false);
/// Calls of the API in progress.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);

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
            ACTIVE.fetch_sub(1, Ordering::SeqCst);
            let mut state = STATE.lock();
            while !matches!(*state, State::Running) {
                CHANGED.wait(&mut state);
            }
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        ACTIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

fn illegal_state() -> CuError {
    CuError(cu::CUDA_ERROR_ILLEGAL_STATE)
}

/// `CU_PROCESS_STATE_*`
pub fn state() -> cu::CUprocessState {
    match *STATE.lock() {
        State::Running => cu::CU_PROCESS_STATE_RUNNING,
        State::Locked => cu::CU_PROCESS_STATE_LOCKED,
        State::Checkpointed(_) => cu::CU_PROCESS_STATE_CHECKPOINTED,
    }
}

/// Whether no call is in progress, and everything submitted has ended.
fn is_drained(driver: &Driver) -> bool {
    let points = driver
        .contexts
        .all()
        .into_iter()
        .flat_map(|context| context.streams.lock().ends());
    ACTIVE.load(Ordering::SeqCst) == 0 && points.into_iter().all(|point| point.reached())
}

/// Does `work` while no call is in progress and nothing runs. Called without a [`Call`].
pub fn quiet<T>(driver: &Driver, work: impl FnOnce() -> T) -> T {
    let mut state = STATE.lock();
    while !matches!(*state, State::Running) {
        CHANGED.wait(&mut state);
    }
    SHUT.store(true, Ordering::SeqCst);
    while !is_drained(driver) {
        std::thread::sleep(POLL);
    }
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
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
    SHUT.store(true, Ordering::SeqCst);
    while !is_drained(driver) {
        if late() {
            SHUT.store(false, Ordering::SeqCst);
            CHANGED.notify_all();
            return Err(CuError(cu::CUDA_ERROR_NOT_READY));
        }
        std::thread::sleep(POLL);
    }
    *state = State::Locked;
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
    *state = State::Checkpointed(driver.memory.evict()?);
    Ok(())
}

/// Moves device memory back to where it was.
///
/// # Errors
/// The process is not checkpointed, or there is no memory.
pub fn restore(driver: &Driver) -> Result {
    let mut state = STATE.lock();
    let State::Checkpointed(saved) = &*state else {
        return Err(illegal_state());
    };
    driver.memory.bring_back(saved)?;
    *state = State::Locked;
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
    *state = State::Running;
    SHUT.store(false, Ordering::SeqCst);
    CHANGED.notify_all();
    Ok(())
}
