//! Host callbacks: which the program is to run, and how many it has run, told beside the ring.
//!
//! The decode loop may wait for the driver, the driver for a host callback. If a callback's end came
//! through the ring, behind what the loop waits with, both would wait for ever. So both directions are counts in the
//! header: the program runs callbacks in the order in which the worker has asked for them.
//!
//! ```text
//!   worker                     header                        program
//!   asks for 0 1 2 3   ─────►  asked: 4, their numbers ────► runs them in order
//!   0, 1 are over      ◄─────  run: 2                  ◄──── counts each
//! ```
//! Programs that are told by a callback that their step is done ask for one every step. So both sides spin for a
//! moment where the last waits were short, and no other thread is woken in between.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::thread::futex;

use crate::WireError;
use crate::layout::{ASKED_AT, CALL_IDS_AT, CALL_PLACES, CALLBACKS_AT, CALLS_AT};
use crate::protocol::{sleep_unless, wake_sleeper};
use crate::shm::Mapping;
use crate::wait::{Spin, futex_wait, futex_wake, wait};

/// After this time without a callback the program's thread sleeps longer at a time.
const LIVELY: Duration = Duration::from_millis(40);
/// The longest sleep between two looks at the worker.
const LONG: Duration = Duration::from_millis(500);

/// The program's side: one more has run.
pub(crate) fn count_one(map: &Mapping) {
    let word = map.word32(CALLBACKS_AT);
    word.fetch_add(1, Ordering::Release);
    // As many threads of the driver may wait as there are streams; each looks at the count.
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

/// The program's side: waits until callback `number`, counted from 0 since the attachment, is asked for, and says which
/// it is; `None` if `leave` came first.
///
/// # Errors
/// Whatever `alive` finds; the worker has asked for more than there are places for.
pub(crate) fn asked(
    map: &Mapping,
    spin: &Spin,
    number: u32,
    leave: impl Fn() -> bool,
    alive: impl Fn() -> Result<(), WireError>,
) -> Result<Option<u64>, WireError> {
    let due = || {
        map.word32(ASKED_AT)
            .load(Ordering::Acquire)
            .wrapping_sub(number)
    };
    let ready = || due() != 0 || leave();
    let word = map.word32(CALLS_AT);
    if !wait(spin, word, Some(LIVELY), ready, &alive)? {
        while !ready() {
            sleep_unless(word, ready, |word| futex_wait(word, LONG));
            alive()?;
        }
    }
    match due() {
        0 => Ok(None),
        1..=CALL_PLACES => {
            let place = CALL_IDS_AT + 8 * (number % CALL_PLACES) as usize;
            Ok(Some(map.word64(place).load(Ordering::Relaxed)))
        }
        many => Err(WireError::Malformed {
            what: "count of host callbacks",
            position: u64::from(many),
            why: "more are asked for than there are places",
        }),
    }
}

/// Has [`asked`] look at `leave` again.
pub(crate) fn nudge(map: &Mapping) {
    wake_sleeper(map.word32(CALLS_AT), futex_wake);
}

/// The worker's side; clones of it may go to other threads.
#[derive(Debug, Clone)]
pub struct CallbackCount {
    map: Arc<Mapping>,
    spin: Arc<Spin>,
}

impl CallbackCount {
    pub(crate) fn new(map: Arc<Mapping>) -> Self {
        Self {
            map,
            spin: Arc::new(Spin::new()),
        }
    }

    /// Asks the program to run `id` as callback `number`, counted from 0 since the attachment; false if so many have not
    /// run yet that there is no place for it. Callers take turns.
    pub fn ask(&self, number: u32, id: u64) -> bool {
        let run = self.map.word32(CALLBACKS_AT).load(Ordering::Acquire);
        // A program that counts what nobody has asked for harms itself only.
        if number.wrapping_sub(run).cast_signed() >= CALL_PLACES.cast_signed() {
            return false;
        }
        let place = CALL_IDS_AT + 8 * (number % CALL_PLACES) as usize;
        self.map.word64(place).store(id, Ordering::Relaxed);
        self.map
            .word32(ASKED_AT)
            .store(number.wrapping_add(1), Ordering::Release);
        wake_sleeper(self.map.word32(CALLS_AT), futex_wake);
        true
    }

    /// Whether callback `number` has run; waits at most `timeout` (less than a second) for it.
    pub fn has_run(&self, number: u32, timeout: Duration) -> bool {
        let word = self.map.word32(CALLBACKS_AT);
        let over = |count: u32| count.wrapping_sub(number).cast_signed() > 0;
        let has_run = || over(word.load(Ordering::Acquire));
        let Some(begun) = self.spin.until(&has_run) else {
            return true;
        };
        let end = Instant::now() + timeout;
        loop {
            let count = word.load(Ordering::Acquire);
            let left = end.saturating_duration_since(Instant::now());
            if over(count) {
                self.spin.ended(begun.elapsed());
                return true;
            }
            if left.is_zero() {
                return false;
            }
            let time = Timespec {
                tv_sec: 0,
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            // Whatever ends the sleep, the count decides.
            let _ = futex::wait(word, futex::Flags::empty(), count, Some(&time));
        }
    }

    /// Whether the program is still there.
    pub fn program_lives(&self, side: impl AsFd) -> bool {
        crate::wait::program_alive(&self.map, side).is_ok()
    }
}
