//! Releases the library's per-thread state when a thread ends, as late as the C library allows.
//!
//! ```text
//!  first call ─► key set        the thread ends: thread-locals of C++ and Rust are destroyed
//!                               destructors of keys, round 1, 2, 3: here everything kept for it goes
//! ```
//! A program's destructors call the driver. Rust's own thread-locals with destructors would be gone by then, so every
//! thread-local of this library is plain data without one, and this key's destructor, which asks for two rounds
//! more, releases what it refers to. The thread that calls `exit` runs no destructors of keys: its state stays until
//! the process has ended.

use core::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use crate::frame::fork;
use crate::object::context;
use crate::object::recent_functions;
use crate::object::session::session;
use crate::object::stream;
use crate::thread::gate;

/// The round in which the state is released: one before the C library's last (`PTHREAD_DESTRUCTOR_ITERATIONS`, 4), so that
/// it is also released for a thread whose first call comes in the first round.
const LAST: usize = 3;

/// The key, if the process has one left.
static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();

/// From now on [`at_end`] is called at the end of the calling thread.
pub fn watch() {
    let key = KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: the key is a local; the destructor stays loaded, for the library is never unloaded (`build.rs`).
        let made = unsafe { libc::pthread_key_create(&mut key, Some(at_end)) };
        (made == 0).then_some(key)
    });
    if let Some(key) = key {
        wait_for_round(*key, 1);
    }
}

/// Whether the C library will call [`at_end`] with `round`.
fn wait_for_round(key: libc::pthread_key_t, round: usize) -> bool {
    // SAFETY: the key exists; its value is a number, never followed.
    unsafe { libc::pthread_setspecific(key, std::ptr::without_provenance::<c_void>(round)) == 0 }
}

unsafe extern "C" fn at_end(round: *mut c_void) {
    let round = round.addr();
    if let Some(Some(key)) = KEY.get()
        && round < LAST
        && wait_for_round(*key, round + 1)
    {
        return;
    }
    // Nothing may unwind into the C library; after a panic the rest of the state stays.
    let _ = catch_unwind(AssertUnwindSafe(let_go));
}

fn let_go() {
    if !fork::is_orphan() {
        end_streams();
    }
    context::let_go();
    recent_functions::let_go();
    gate::let_go();
}

/// The thread's default streams end with it.
fn end_streams() {
    let own = stream::take_own();
    if own.is_empty() {
        return;
    }
    let _inside = gate::enter();
    let Ok(session) = session() else { return };
    for stream in own {
        // A stream has already ended with its context.
        let _ = session.streams.destroy(&session.graphs, stream.handle);
    }
}
