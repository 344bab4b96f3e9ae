//! How many host callbacks the program has run, told beside the ring.
//!
//! The decode loop may wait for the driver, the driver for a host callback. If the callback's end came
//! through the ring, behind what the loop waits with, both would wait for ever. So it is a count in the
//! header: the program runs callbacks in the order in which the worker has asked for them.
//!
//! ```text
//!   worker asks: 0 1 2 3        count: 2        waiting for 0 and 1 is over, for 2 and 3 not
//! ```

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::thread::futex;

use crate::layout::CALLBACKS_AT;
use crate::shm::Mapping;

/// The program's side: one more has run.
pub(crate) fn count_one(map: &Mapping) {
    let word = map.word32(CALLBACKS_AT);
    word.fetch_add(1, Ordering::Release);
    // As many threads of the driver may wait as there are streams; each looks at the count.
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

/// The worker's side; clones of it may go to other threads.
#[derive(Debug, Clone)]
pub struct CallbackCount {
    map: Arc<Mapping>,
}

impl CallbackCount {
    pub(crate) fn new(map: Arc<Mapping>) -> Self {
        Self { map }
    }

    /// Whether callback `number`, counted from 0 since the attachment, has run; waits at most `timeout`
    /// (less than a second) for it.
    pub fn has_run(&self, number: u32, timeout: Duration) -> bool {
        let word = self.map.word32(CALLBACKS_AT);
        let over = |count: u32| count.wrapping_sub(number).cast_signed() > 0;
        let count = word.load(Ordering::Acquire);
        if over(count) {
            return true;
        }
        let time = Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        // Whatever ends the sleep, the count decides.
        let _ = futex::wait(word, futex::Flags::empty(), count, Some(&time));
        over(word.load(Ordering::Acquire))
    }

    /// Whether the program is still there.
    pub fn program_lives(&self, side: impl AsFd) -> bool {
        crate::wait::program_alive(&self.map, side).is_ok()
    }
}
