//! Host callbacks: the worker reports when one is due, a thread of this library runs it.
//!
//! ```text
//!   stream reaches it ─ worker ─ number in shared memory ─► callback thread ─ count ─► worker
//! ```
//! None of this goes through the ring, so that a worker which waits for a callback is told of its end.
//! The thread is made for the first callback. It is not parked while the program is stopped. A stop finds a callback in
//! one of these states, and each callback runs once, in the order of its stream:
//!
//! | state | at a stop |
//! | --- | --- |
//! | not given to the device: in the ring, or queued in the worker | the worker takes it off the ring; it is part of the image, and asked for after the restore |
//! | on the device, not due yet; due; running | the device is not idle: before the program is stopped, the stop waits until it has run |
//! | run, and not counted yet | the same: the stream waits for the count |
//! | counted; the thread has not come back yet | the agent waits ([`await_idle`]) |
//!
//! So no callback is due while the program stands still. Before the agent releases the shared memory, the thread leaves
//! it and holds nothing that a dump would have to know. It comes back when there is a worker again, and both count
//! from 0:
//!
//! ```text
//!   inside: waits in shared memory ── leave ──► outside: waits for come_back
//!        ▲                                          │
//!        └──────────────────────────────────────────┘
//! ```

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use fermata_abi::op::{Op, StreamRef};
use fermata_abi::sys::driver::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUresult, CUstream,
};
use fermata_wire::WireError;

use crate::handles::HandleMap;
use crate::link;
use crate::result::Result;
use crate::thread::block;
use crate::thread::gate;
use crate::thread::quiet;

/// What a callback calls.
#[derive(Debug, Clone, Copy)]
pub enum Callback {
    /// `cuLaunchHostFunc`.
    Function {
        /// The function.
        call: unsafe extern "C" fn(*mut core::ffi::c_void),
        /// Its argument.
        data: *mut core::ffi::c_void,
    },
    /// `cuStreamAddCallback`.
    Stream {
        /// The function.
        call: unsafe extern "C" fn(CUstream, CUresult, *mut core::ffi::c_void),
        /// The stream as the program named it.
        stream: CUstream,
        /// Its argument.
        data: *mut core::ffi::c_void,
    },
    /// A copy of ordinary memory inside a graph.
    Copy(Rows),
}

/// Rows of memory to be copied: address, bytes from row to row and from slice to slice, for both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rows {
    /// Where they go.
    pub to: (u64, u64, u64),
    /// Where they come from.
    pub from: (u64, u64, u64),
    /// Bytes in a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
    /// Slices.
    pub depth: u64,
}

impl Rows {
    /// # Safety
    /// Every row lies in memory of the program.
    unsafe fn copy(&self) {
        let at = |side: (u64, u64, u64), y: u64, z: u64| {
            std::ptr::with_exposed_provenance_mut::<u8>((side.0 + y * side.1 + z * side.2) as usize)
        };
        for (z, y) in (0..self.depth).flat_map(|z| (0..self.height).map(move |y| (z, y))) {
            // SAFETY: by the caller's promise.
            unsafe { std::ptr::copy(at(self.from, y, z), at(self.to, y, z), self.width as usize) };
        }
    }
}

// SAFETY: CUDA runs callbacks in a thread of its own; the program passes data that is good for that.
unsafe impl Send for Callback {}

#[derive(Default)]
struct State {
    waiting: HandleMap<u64, (Callback, bool)>,
    /// The thread waits in shared memory, or runs a callback and will tell the worker there.
    inside: bool,
    functions: HandleMap<(u64, u64), u64>,
    rows: HashMap<Rows, u64>,
}

static STATE: OnceLock<Mutex<State>> = OnceLock::new();
/// Notified when [`AWAY`] or `inside` has changed.
static CHANGED: Condvar = Condvar::new();
/// The thread must not wait in shared memory.
static AWAY: AtomicBool = AtomicBool::new(false);
/// The interval at which the thread looks for a worker after it has lost one.
const LOST: Duration = Duration::from_millis(200);
static NEXT: AtomicU64 = AtomicU64::new(1);
static THREAD: AtomicI32 = AtomicI32::new(0);
/// Whether the thread runs a callback or still tells the worker of it: [`IDLE`], [`RUNS`] or [`AWAITED`].
static BUSY: AtomicU32 = AtomicU32::new(IDLE);
const IDLE: u32 = 0;
const RUNS: u32 = 1;
/// It runs one, and the agent sleeps on the word until it has.
const AWAITED: u32 = 2;

/// Puts a callback into a stream.
pub fn enqueue(callback: Callback, stream: StreamRef) -> Result {
    let id = register(callback, true)?;
    link::post(&Op::HostCall { stream, id })
}

/// Registers a callback, for one run if `once`; returns its number.
fn register(callback: Callback, once: bool) -> Result<u64> {
    start()?;
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    lock().waiting.insert(id, (callback, once));
    Ok(id)
}

/// The number of a host function for graphs; the same function and argument get the same number.
pub fn of_function(function: u64, data: u64) -> Result<u64> {
    let known = lock().functions.get(&(function, data)).copied();
    if let Some(id) = known {
        return Ok(id);
    }
    let call = std::ptr::with_exposed_provenance_mut::<core::ffi::c_void>(function as usize);
    if call.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: the number is the address of a function of this type: graphs get them from nowhere else.
    let call = unsafe {
        std::mem::transmute::<*mut core::ffi::c_void, unsafe extern "C" fn(*mut core::ffi::c_void)>(
            call,
        )
    };
    let data_pointer = std::ptr::with_exposed_provenance_mut(data as usize);
    let id = register(
        Callback::Function {
            call,
            data: data_pointer,
        },
        false,
    )?;
    lock().functions.insert((function, data), id);
    Ok(id)
}

/// The number of a copy for graphs; equal copies get the same number.
pub fn of_rows(rows: Rows) -> Result<u64> {
    let known = lock().rows.get(&rows).copied();
    if let Some(id) = known {
        return Ok(id);
    }
    let id = register(Callback::Copy(rows), false)?;
    lock().rows.insert(rows, id);
    Ok(id)
}

/// Has the thread leave the shared memory, and waits until it has: nothing is due or running. Called by the agent.
pub fn leave() {
    AWAY.store(true, Ordering::SeqCst);
    let mut state = lock();
    while state.inside {
        if let Ok(link) = link::current() {
            link.producer.nudge_callbacks();
        }
        let turn = CHANGED.wait_timeout(state, Duration::from_millis(1));
        (state, _) = turn.unwrap_or_else(PoisonError::into_inner);
    }
}

/// Lets the thread come back, because there is a worker again. Called by the agent.
pub fn come_back() {
    AWAY.store(false, Ordering::SeqCst);
    // Under the lock, because the thread could otherwise miss the notification between its check and its sleep.
    drop(lock());
    CHANGED.notify_all();
}

/// Waits until no callback is running, at most `limit`; false if one still is. Those that are due run before the worker has
/// drained. Called by the agent.
pub fn await_idle(limit: Duration) -> bool {
    let awaited = BUSY.compare_exchange(RUNS, AWAITED, Ordering::SeqCst, Ordering::SeqCst);
    if awaited != Err(IDLE) {
        gate::wait_while(&BUSY, limit, |busy| busy == AWAITED);
    }
    BUSY.load(Ordering::SeqCst) == IDLE
}

/// Makes the calling thread the callback thread, which is not parked.
pub fn is_callback_thread() {
    THREAD.store(gate::gettid(), Ordering::Release);
}

/// Whether `tid` is the callback thread.
pub fn is_own_thread(tid: i32) -> bool {
    THREAD.load(Ordering::Acquire) == tid
}

fn lock() -> MutexGuard<'static, State> {
    STATE
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

fn start() -> Result {
    static STARTED: OnceLock<bool> = OnceLock::new();
    let started = STARTED.get_or_init(|| {
        let builder = std::thread::Builder::new().name("fermata-calls".into());
        block::all(|| builder.spawn(run)).is_ok()
    });
    if *started {
        Ok(())
    } else {
        Err(CUDA_ERROR_OUT_OF_MEMORY)
    }
}

fn run() {
    quiet::is_ours();
    is_callback_thread();
    let mut ran = Ran::default();
    loop {
        let id = next(&mut ran);
        let callback = {
            let mut state = lock();
            match state.waiting.get(&id) {
                Some((_, true)) => state.waiting.remove(&id).map(|(callback, _)| callback),
                found => found.map(|(callback, _)| *callback),
            }
        };
        match callback {
            // SAFETY: the program promised that the function may be called with this argument.
            Some(Callback::Function { call, data }) => unsafe { call(data) },
            // SAFETY: as above.
            Some(Callback::Stream { call, stream, data }) => unsafe { call(stream, 0, data) },
            // SAFETY: the graph that the copy is in holds both sides.
            Some(Callback::Copy(rows)) => unsafe { rows.copy() },
            None => {}
        }
        // A lost worker is reported by the program's next call.
        if let Ok(link) = link::current() {
            link.producer.callback_done();
        }
        ran.count = ran.count.wrapping_add(1);
        if BUSY.swap(IDLE, Ordering::SeqCst) == AWAITED {
            gate::wake(&BUSY);
        }
    }
}

/// How many callbacks the thread has run for one worker.
#[derive(Default)]
struct Ran {
    /// [`link::generation`].
    worker: u64,
    count: u32,
    /// The worker has asked for an impossible callback.
    refused: bool,
}

/// Waits for the next callback, inside; the thread stays inside until it calls this again.
fn next(ran: &mut Ran) -> u64 {
    loop {
        let mut state = lock();
        state.inside = false;
        CHANGED.notify_all();
        while AWAY.load(Ordering::SeqCst) || link::current().is_err() {
            let changed = CHANGED.wait_timeout(state, LOST);
            (state, _) = changed.unwrap_or_else(PoisonError::into_inner);
        }
        state.inside = true;
        drop(state);
        let Ok(link) = link::current() else { continue };
        // The worker does not change while the thread is inside.
        let worker = link::generation();
        if ran.worker != worker {
            *ran = Ran {
                worker,
                ..Ran::default()
            };
        }
        let leave = || AWAY.load(Ordering::SeqCst);
        match link.producer.callback_asked(ran.count, leave) {
            Ok(Some(id)) => {
                BUSY.store(RUNS, Ordering::Release);
                return id;
            }
            Ok(None) => {}
            // The worker stays lost until the agent connects another.
            Err(error) => {
                let is_gone = matches!(error, WireError::PeerGone(_));
                if !is_gone && !std::mem::replace(&mut ran.refused, true) {
                    link::lost(&error);
                }
                let mut state = lock();
                state.inside = false;
                CHANGED.notify_all();
                drop(CHANGED.wait_timeout(state, LOST));
            }
        }
    }
}
