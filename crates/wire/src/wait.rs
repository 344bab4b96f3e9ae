//! Spinning a little, then sleeping in slices, with a look at the peer after each; spinning again when the wait
//! is likely to end.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::thread::futex;

use crate::WireError;
use crate::layout::{PEER_CLOSED, PROGRAM_AT, WORKER_AT};
use crate::protocol::{ASLEEP, sleep_unless};
use crate::rhythm::{Advice, Rhythm, cores};
use crate::shm::Mapping;

/// The longest sleep between two looks at the peer.
const SLICE: Duration = Duration::from_millis(40);
/// The longest spin where there are cores to spare, microseconds.
const SPIN_MOST: u32 = 40;
/// The longest spin where the peer may need this very core.
const SPIN_FEW_CORES: u32 = 20;
/// Waits up to this long, microseconds, call for the longest spin: a good part of them is what it costs
/// to fall asleep and be woken, on either side.
const SPIN_PAYS: u128 = 100;
/// The shortest spin.
const SPIN_LEAST: u32 = 2;
/// A wait for no longer than this is a nap: the thread has something else to look at, spins there if at all,
/// and how long it lasted says nothing about the waits that end.
const NAP: Duration = Duration::from_micros(500);

/// How long to spin before sleeping: long while waits are short, however each of them ended.
///
/// What is learnt from is the length of the wait, not whether the spin has ended it: a budget that has
/// become too short for the waits there are would otherwise never grow again.
#[derive(Debug)]
pub(crate) struct Spin {
    budget: AtomicU32,
    most: u32,
    rhythm: Rhythm,
}

impl Spin {
    /// For a peer that runs on the same cores.
    pub fn new() -> Self {
        Self::with_peer(0)
    }

    /// For a peer that may use so many cores. The side that spins may be bound to one, as launchers of MPI jobs bind their ranks:
    /// then the peer has others.
    pub fn with_peer(its: usize) -> Self {
        let cores = cores().max(its);
        let most = match cores {
            1 => 0,
            2..=4 => SPIN_FEW_CORES,
            _ => SPIN_MOST,
        };
        Self {
            budget: AtomicU32::new(most),
            most,
            rhythm: Rhythm::new(cores),
        }
    }

    /// Spins until `ready` or the budget is used up; `None` if `ready`, else when the wait began.
    pub(crate) fn until(&self, ready: &impl Fn() -> bool) -> Option<Instant> {
        if ready() {
            return None;
        }
        let begun = Instant::now();
        let budget = self.budget.load(Ordering::Relaxed);
        if budget == 0 {
            return Some(begun);
        }
        let span = Duration::from_micros(u64::from(budget));
        let Some(seen) = spins(begun, span, ready) else {
            return Some(begun);
        };
        self.ended(seen.saturating_duration_since(begun));
        None
    }

    /// A wait of this length has ended as it should.
    pub(crate) fn ended(&self, waited: Duration) {
        self.learn(waited);
        self.rhythm.learn(waited);
    }

    /// A wait of this length is over.
    fn learn(&self, waited: Duration) {
        let waited = waited.as_micros();
        let budget = self.budget.load(Ordering::Relaxed);
        let next = if waited <= SPIN_PAYS {
            self.most
        } else {
            (budget / 2).max(SPIN_LEAST.min(self.most))
        };
        if next != budget {
            self.budget.store(next, Ordering::Relaxed);
        }
    }
}

/// Spins until `ready`, or for `span` from `begun`, which is now. If ready, when the clock was last looked at, a microsecond or
/// two before: looking once more would delay what has been waited for.
fn spins(begun: Instant, span: Duration, ready: &impl Fn() -> bool) -> Option<Instant> {
    let end = begun + span;
    let mut seen = begun;
    loop {
        for _ in 0..32 {
            if ready() {
                return Some(seen);
            }
            std::hint::spin_loop();
        }
        seen = Instant::now();
        if seen >= end {
            return None;
        }
    }
}

/// Waits until `ready`, which is Ok(true), or until `timeout`, which is Ok(false).
///
/// `word` is the futex word of this wait in the shared memory.
///
/// # Errors
/// Whatever `alive` finds: it is called after every slice of sleep.
pub(crate) fn wait(
    spin: &Spin,
    word: &AtomicU32,
    timeout: Option<Duration>,
    ready: impl Fn() -> bool,
    alive: impl Fn() -> Result<(), WireError>,
) -> Result<bool, WireError> {
    wait_with(spin, word, timeout, &ready, &ready, alive)
}

/// As [`wait`]; `ready_to_sleep` is the look that follows the announcement of a sleep.
///
/// # Errors
/// As [`wait`].
pub(crate) fn wait_with(
    spin: &Spin,
    word: &AtomicU32,
    timeout: Option<Duration>,
    ready: impl Fn() -> bool,
    ready_to_sleep: impl Fn() -> bool,
    alive: impl Fn() -> Result<(), WireError>,
) -> Result<bool, WireError> {
    if timeout == Some(Duration::ZERO) {
        return Ok(ready());
    }
    if let Some(nap) = timeout.filter(|timeout| *timeout <= NAP) {
        sleep_unless(word, &ready_to_sleep, |word| futex_wait(word, nap));
        if ready() {
            return Ok(true);
        }
        return alive().map(|()| false);
    }
    let Some(begun) = spin.until(&ready) else {
        return Ok(true);
    };
    let end = timeout.map(|timeout| Instant::now() + timeout);
    loop {
        let left = end.map_or(SLICE, |end| end.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            spin.learn(begun.elapsed());
            return Ok(ready());
        }
        let longest = match spin.rhythm.advice(begun.elapsed()) {
            Advice::Spin(span) => {
                if let Some(seen) = spins(Instant::now(), span.min(left), &ready) {
                    spin.ended(seen.saturating_duration_since(begun));
                    return Ok(true);
                }
                continue;
            }
            Advice::Sleep(span) => span.min(SLICE),
            Advice::Unknown => SLICE,
        };
        sleep_unless(word, &ready_to_sleep, |word| {
            futex_wait(word, left.min(longest))
        });
        if ready() {
            spin.ended(begun.elapsed());
            return Ok(true);
        }
        alive()?;
    }
}

/// Sleeps on `word` for at most `slice`, less than a second.
pub(crate) fn futex_wait(word: &AtomicU32, slice: Duration) {
    let time = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(slice.subsec_nanos()),
    };
    // Any outcome leads to another look at the condition, which alone decides.
    let _ = futex::wait(word, futex::Flags::empty(), ASLEEP, Some(&time));
}

/// Wakes the one that sleeps on `word`.
pub(crate) fn futex_wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}

/// Whether the worker is there, seen from the program.
pub(crate) fn worker_alive(map: &Mapping, side: impl AsFd) -> Result<(), WireError> {
    alive(map, WORKER_AT, side, "worker")
}

/// Whether the program is there, seen from the worker.
pub(crate) fn program_alive(map: &Mapping, side: impl AsFd) -> Result<(), WireError> {
    alive(map, PROGRAM_AT, side, "program")
}

fn alive(map: &Mapping, word: usize, side: impl AsFd, who: &'static str) -> Result<(), WireError> {
    if map.word32(word).load(Ordering::Acquire) == PEER_CLOSED {
        return Err(WireError::PeerGone(who));
    }
    let mut fds = [PollFd::new(&side, PollFlags::empty())];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    match poll(&mut fds, Some(&now)) {
        Ok(_) if fds[0].revents().intersects(gone) => Err(WireError::PeerGone(who)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_core_spins_for_a_peer_that_has_others() {
        assert_eq!(Spin::with_peer(64).most, SPIN_MOST);
        assert_eq!(Spin::with_peer(0).most, Spin::new().most);
    }
}
