//! How much of a disk's time is taken for pages that nobody waits for, while others read data of the same program from that disk.

use std::time::{Duration, Instant};

/// The longest rest: whoever needs the disk has it for as long, and a read that hung once holds nothing up afterwards.
const LONGEST: Duration = Duration::from_millis(100);
/// The least share: the rest of the memory comes some time, however little there is of it.
const LEAST: f64 = 1.0 / 16.0;

/// A share. Work is followed by rests, so that it takes that part of the time.
#[derive(Debug)]
pub struct Share {
    /// From [`LEAST`] to 1.
    part: f64,
    /// When work may go on.
    again: Option<Instant>,
}

impl Default for Share {
    /// All of the time.
    fn default() -> Self {
        Self {
            part: 1.0,
            again: None,
        }
    }
}

impl Share {
    /// So large a part of the time: 1 is all of it.
    pub fn of(part: f64) -> Self {
        Self {
            part: part.clamp(LEAST, 1.0),
            again: None,
        }
    }

    /// Work has taken so long until now.
    pub fn worked(&mut self, time: Duration) {
        let rest = time.mul_f64(1.0 / self.part - 1.0).min(LONGEST);
        self.again = Some(Instant::now() + rest).filter(|_| !rest.is_zero());
    }

    /// How long the rest still is, if there is one now.
    pub fn rest(&self) -> Option<Duration> {
        let left = self.again?.saturating_duration_since(Instant::now());
        Some(left).filter(|it| !it.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_followed_by_a_rest_in_proportion() {
        let mut share = Share::of(0.25);
        assert_eq!(share.rest(), None);
        share.worked(Duration::from_millis(20));
        let rest = share.rest().expect("a rest of 60 ms has just begun");
        assert!(rest <= Duration::from_millis(60));
        share.worked(Duration::from_secs(3600));
        assert!(share.rest().expect("the longest") <= LONGEST);
    }

    #[test]
    fn who_has_all_the_time_never_rests() {
        for mut all in [Share::default(), Share::of(1.0), Share::of(7.0)] {
            all.worked(Duration::from_secs(1));
            assert_eq!(all.rest(), None);
        }
    }

    #[test]
    fn nothing_is_put_off_for_ever() {
        for none in [0.0, -1.0, f64::MIN_POSITIVE] {
            let mut share = Share::of(none);
            share.worked(Duration::from_millis(1));
            assert!(share.rest().expect("a rest") <= Duration::from_millis(15));
        }
    }
}
