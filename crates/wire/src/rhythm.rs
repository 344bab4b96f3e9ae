//! Predicts when a wait that recurs in every step of a program ends, from how long the last ones took.
//!
//! Falling asleep and being woken takes tens of microseconds, on a virtual machine more, and the program pays
//! them in every step. CUDA's own waits spin from beginning to end (`cudaDeviceScheduleAuto`); here a wait is
//! slept through until shortly before the last one like it ended, and spun for then.
//!
//! ```text
//!   0            usual - LEAD     usual     usual + LAG
//!   ├── sleep ────────┼───────── spin ──────────┼── sleep, in slices ──►
//! ```

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Spun before the expected end: what a sleep may last too long, and being late is worse than early.
const LEAD: Duration = Duration::from_micros(200);
/// Spun after it.
const LAG: Duration = Duration::from_micros(100);
/// Waits differ by a share of their length too: one part in so many.
const SPREAD: u32 = 32;
/// Shorter waits end before anybody sleeps, and say nothing about the longer ones between them.
const SHORTEST: Duration = Duration::from_micros(100);
/// Of longer waits, being woken is not worth mentioning.
const LONGEST: Duration = Duration::from_millis(20);
/// Cores a machine must have for one to be spared.
const CORES: usize = 8;

/// What to do next in a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Look again and again for so long.
    Spin(Duration),
    /// Sleep, but no longer than this.
    Sleep(Duration),
    /// Nothing is known of such a wait.
    Unknown,
}

/// The length of the latest wait that was worth sleeping in.
#[derive(Debug)]
pub struct Rhythm {
    /// Microseconds; 0 if none is known.
    usual: AtomicU32,
    /// Whether cores can be spared for spinning.
    follows: bool,
}

impl Default for Rhythm {
    fn default() -> Self {
        Self::new(cores())
    }
}

impl Rhythm {
    /// The rhythm of waits on a machine with so many `cores`.
    pub fn new(cores: usize) -> Self {
        Self {
            usual: AtomicU32::new(0),
            follows: cores >= CORES,
        }
    }

    /// A wait has taken so long.
    pub fn learn(&self, waited: Duration) {
        if self.follows && waited >= SHORTEST {
            let known = if waited <= LONGEST {
                waited
            } else {
                Duration::ZERO
            };
            self.usual
                .store(known.as_micros() as u32, Ordering::Relaxed);
        }
    }

    /// What to do in a wait that has lasted so long.
    pub fn advice(&self, waited: Duration) -> Advice {
        let usual = Duration::from_micros(u64::from(self.usual.load(Ordering::Relaxed)));
        if usual.is_zero() {
            return Advice::Unknown;
        }
        let (begin, end) = (
            usual.saturating_sub(LEAD + usual / SPREAD),
            usual + LAG + usual / SPREAD,
        );
        if waited < begin {
            Advice::Sleep(begin - waited)
        } else if waited < end {
            Advice::Spin(end - waited)
        } else {
            Advice::Unknown
        }
    }
}

/// Cores this process may use.
pub(crate) fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_wait_is_spun_for_around_the_end_of_the_last_one() {
        let rhythm = Rhythm::new(16);
        assert_eq!(rhythm.advice(ms(1)), Advice::Unknown);
        rhythm.learn(ms(3));
        let lead = Duration::from_nanos(200_000 + 93_750);
        assert_eq!(rhythm.advice(Duration::ZERO), Advice::Sleep(ms(3) - lead));
        let lag = Duration::from_nanos(100_000 + 93_750);
        assert_eq!(rhythm.advice(ms(3)), Advice::Spin(lag));
        assert_eq!(rhythm.advice(ms(3) - lead), Advice::Spin(lead + lag));
        assert_eq!(rhythm.advice(ms(3) + lag), Advice::Unknown);
    }

    #[test]
    fn short_waits_are_spun_for_from_the_beginning() {
        let rhythm = Rhythm::new(16);
        rhythm.learn(Duration::from_micros(150));
        assert!(matches!(rhythm.advice(Duration::ZERO), Advice::Spin(_)));
    }

    #[test]
    fn answers_that_come_at_once_leave_it_as_it_is() {
        let rhythm = Rhythm::new(16);
        rhythm.learn(ms(3));
        rhythm.learn(Duration::from_micros(9));
        assert!(matches!(rhythm.advice(ms(3)), Advice::Spin(_)));
    }

    #[test]
    fn nothing_is_spun_for_after_a_long_wait_or_with_few_cores() {
        let rhythm = Rhythm::new(16);
        rhythm.learn(ms(3));
        rhythm.learn(ms(21));
        assert_eq!(rhythm.advice(ms(3)), Advice::Unknown);
        let few = Rhythm::new(4);
        few.learn(ms(3));
        assert_eq!(few.advice(ms(3)), Advice::Unknown);
    }
}
