//! Retries an allocation that failed for lack of device memory: the daemon pauses sessions of lower priority, one at a
//! time, and the call is repeated after each.
//!
//! The daemon is asked by a datagram, which needs no connection: a thread that waits counts as outside of our functions,
//! and a stop parks it where it is. If no room can be made, the program gets the driver's error.

use std::time::{Duration, Instant};

use fermata_abi::op::{ContextId, Op};
use fermata_abi::sys::driver::CUDA_ERROR_OUT_OF_MEMORY;
use fermata_control::letter::Home;
use fermata_control::program::{About, MOST_BYTES, Question, SOCKET, is_done};
use fermata_control::wait;
use rustix::io::Errno;

use crate::link;
use crate::result::Result;
use crate::thread::gate;

/// How often a call is tried again: each time a session was paused for it, or the daemon has changed.
const MOST: u32 = 64;
/// How long an answer may take: the longest `FERMATA_PRIORITY_WAIT`, and a pause that waits for kernels.
const ANSWER: Duration = Duration::from_secs(900);
/// How long to wait for a daemon if there is none.
const AWAY: Duration = Duration::from_secs(5);
/// The pause between two attempts.
const LOOK: Duration = Duration::from_millis(20);

/// Makes `call`, which allocates `bytes` on the worker's device number `device`; in `context`, if there is one.
///
/// # Errors
/// Those of the call.
pub fn with_room<T>(
    context: Option<ContextId>,
    (device, bytes): (u32, u64),
    call: impl Fn() -> Result<T>,
) -> Result<T> {
    for _ in 0..MOST {
        match call() {
            Err(CUDA_ERROR_OUT_OF_MEMORY) if is_made(context, device, bytes) => {}
            other => return other,
        }
    }
    call()
}

/// Asks the daemon to make room and waits for its answer; returns whether it has.
fn is_made(context: Option<ContextId>, device: u32, bytes: u64) -> bool {
    let info = |context| link::ask(&Op::MemInfo { context }, link::pair).ok();
    let free = context.and_then(info).map(|it| it.0);
    gate::step_outside(|| ask(device, bytes, free)).unwrap_or(false)
}

fn ask(device: u32, bytes: u64, free: Option<u64>) -> bool {
    let mut away = None;
    let about = About::Room {
        device,
        bytes,
        free,
    };
    let attempt = || {
        let Some(home) = Home::find(SOCKET) else {
            return Some(false);
        };
        let question = Question {
            token: home.token.clone(),
            about: about.clone(),
        };
        match home.ask(question.encode().as_bytes(), MOST_BYTES, ANSWER) {
            // Another daemon has started meanwhile.
            Ok(answer) if answer.is_empty() => away = None,
            Ok(answer) => return Some(is_done(&answer)),
            Err(Errno::NOENT | Errno::CONNREFUSED) => {
                let since = *away.get_or_insert_with(Instant::now);
                if since.elapsed() > AWAY {
                    return Some(false);
                }
            }
            // The daemon's queue is full, or a signal came.
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => {}
            Err(_) => return Some(false),
        }
        None
    };
    // Polled: without a connection the program is not notified of the next daemon.
    wait::until(ANSWER, LOOK, attempt).unwrap_or(false)
}
