//! Host callbacks: the worker says when, a thread of ours runs them.
//!
//! ```text
//!   stream reaches it ─ worker ─ side socket ─► agent ─ queue ─► callback thread ─ count ─► worker
//! ```
//! The count does not go through the ring, so that a worker which waits for a callback hears of its end.
//! The thread is made for the first callback. While the program is stopped it waits for its queue, idle,
//! because everything has drained; so it is not parked.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use fermata_abi::op::{Op, StreamRef};
use fermata_abi::sys::driver::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUresult, CUstream,
};

use crate::entry::Result;
use crate::{gate, link, quiet, signal};

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
    waiting: HashMap<u64, (Callback, bool)>,
    due: VecDeque<u64>,
    functions: HashMap<(u64, u64), u64>,
    rows: HashMap<Rows, u64>,
}

static STATE: OnceLock<Mutex<State>> = OnceLock::new();
static ARRIVED: Condvar = Condvar::new();
static NEXT: AtomicU64 = AtomicU64::new(1);
static THREAD: AtomicI32 = AtomicI32::new(0);
/// The thread runs a callback or still tells the worker of it.
static BUSY: AtomicBool = AtomicBool::new(false);

/// Puts a callback into a stream.
pub fn enqueue(callback: Callback, stream: StreamRef) -> Result {
    let id = register(callback, true)?;
    link::post(&Op::HostCall { stream, id })
}

/// Makes a callback known; it is forgotten after its first run if `once`.
fn register(callback: Callback, once: bool) -> Result<u64> {
    start()?;
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    lock().waiting.insert(id, (callback, once));
    Ok(id)
}

/// The number of a host function for graphs, the same each time it is asked for.
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

/// The number of a copy for graphs, the same each time it is asked for.
pub fn of_rows(rows: Rows) -> Result<u64> {
    let known = lock().rows.get(&rows).copied();
    if let Some(id) = known {
        return Ok(id);
    }
    let id = register(Callback::Copy(rows), false)?;
    lock().rows.insert(rows, id);
    Ok(id)
}

/// A callback is due. Called by the agent.
pub fn due(id: u64) {
    lock().due.push_back(id);
    ARRIVED.notify_one();
}

/// Whether no callback is due or running.
pub fn is_idle() -> bool {
    lock().due.is_empty() && !BUSY.load(Ordering::Acquire)
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
        signal::with_all_blocked(|| builder.spawn(run)).is_ok()
    });
    if *started {
        Ok(())
    } else {
        Err(CUDA_ERROR_OUT_OF_MEMORY)
    }
}

fn run() {
    quiet::is_ours();
    THREAD.store(gate::gettid(), Ordering::Release);
    loop {
        let mut state = lock();
        let callback = loop {
            if let Some(id) = state.due.pop_front() {
                BUSY.store(true, Ordering::Release);
                break match state.waiting.get(&id) {
                    Some((_, true)) => state.waiting.remove(&id).map(|(callback, _)| callback),
                    found => found.map(|(callback, _)| *callback),
                };
            }
            BUSY.store(false, Ordering::Release);
            state = ARRIVED.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        drop(state);
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
    }
}
