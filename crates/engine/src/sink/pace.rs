//! Limits the rate of writes to storage, for disks that others use, too.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// The longest sleep before a check whether the save has been given up.
const TURN: Duration = Duration::from_millis(50);

/// Delays writes of several threads so that together they keep to a rate.
pub(super) struct WriteRate {
    /// Bytes a second; 0 for no limit.
    rate: u64,
    /// The time at which all admitted bytes are written, at that rate.
    next: Mutex<Instant>,
    given_up: Condvar,
}

impl WriteRate {
    pub fn new(rate: u64) -> Self {
        Self {
            rate,
            next: Mutex::new(Instant::now()),
            given_up: Condvar::new(),
        }
    }

    /// Returns when `bytes` may be written; false if the save has been given up.
    pub fn wait(&self, bytes: u64, given_up: &dyn Fn() -> bool) -> bool {
        if self.rate == 0 {
            return true;
        }
        let mut next = self.next.lock();
        *next =
            (*next).max(Instant::now()) + Duration::from_secs_f64(bytes as f64 / self.rate as f64);
        let until = *next;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            if given_up() {
                return false;
            }
            self.given_up.wait_for(&mut next, left.min(TURN));
        }
    }

    /// Wakes waiting threads, to check whether the save has been given up.
    pub fn look(&self) {
        // Under the lock, so that no thread checks before this and sleeps after it.
        drop(self.next.lock());
        self.given_up.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_holds_for_all_writers_together() {
        let (pace, begun) = (WriteRate::new(1 << 20), Instant::now());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| assert!(pace.wait(50 << 10, &|| false)));
            }
        });
        assert!(begun.elapsed() > Duration::from_millis(90));
        assert!(!pace.wait(1 << 30, &|| true), "nobody waits any more");
        assert!(WriteRate::new(0).wait(u64::MAX, &|| false));
    }
}
