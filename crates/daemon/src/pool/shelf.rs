//! Keeps which workers the pool has of each kind, and decides what to do next. Pure bookkeeping: no processes, threads or clock.
//!
//! ```text
//!             want              begin            made            take
//!  (nothing) ──────► to be filled ───► being made ───► ready ───────────► a session's
//!                      ▲   ▲             │ failed       │  │ idle limit
//!                      │   └─ a pause ◄──┴─── died ◄────┘  └──────────► ended; none is made before the next `want`
//! ```

use std::time::{Duration, Instant};

/// The kinds that the last so many different sessions wanted are kept.
const KINDS: usize = 2;
/// The pause after a worker that could not be made, or has ended while it waited. It doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// A worker that has waited so long was sound: its end says nothing of the next one.
const SOUND: Duration = Duration::from_secs(60);

/// How many workers of a kind are kept, and how long.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How many.
    pub most: usize,
    /// How many of a kind that waits for an image.
    pub preloaded: usize,
    /// How long one may wait; none for ever.
    pub idle: Option<Duration>,
}

/// What has become of workers since the daemon began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Ended by the idle limit.
    pub idle: u64,
    /// Could not be made, or have ended by themselves while they waited.
    pub failed: u64,
}

/// All kinds. `K` tells kinds apart, `W` is a worker.
pub struct Shelf<K, W> {
    limits: Limits,
    /// That wanted last is behind.
    kinds: Vec<Kind<K, W>>,
    /// Numbers the calls of `want`.
    turn: u64,
    tally: Tally,
    closed: bool,
}

/// The workers of a kind.
pub struct Kind<K, W> {
    /// Which.
    pub key: K,
    /// Those that wait for a session, the oldest first.
    pub ready: Vec<Ready<W>>,
    /// One that is being made, and since when.
    pub making: Option<Instant>,
    /// Why the last one could not be made, or has ended, while that holds up the next one.
    pub trouble: String,
    /// When the next one may be made.
    pub not_before: Option<Instant>,
    /// Sessions that wait for the one that is being made.
    pub awaited: u32,
    /// How many are kept.
    pub most: usize,
    /// When it was wanted last.
    turn: u64,
    fill: bool,
    failures: u32,
}

/// A worker that waits.
pub struct Ready<W> {
    /// The worker.
    pub worker: W,
    /// Since when.
    pub since: Instant,
}

impl<K: PartialEq + Clone, W> Shelf<K, W> {
    /// Nothing.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            kinds: Vec::new(),
            turn: 0,
            tally: Tally::default(),
            closed: false,
        }
    }

    /// What it keeps.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// What has become of workers.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// All kinds.
    pub fn kinds(&self) -> &[Kind<K, W>] {
        &self.kinds
    }

    /// Whether nothing is kept any more.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// A session has used workers of these kinds: as many of each are to wait as it says. The answer is those of kinds that are
    /// given up for them.
    #[must_use = "they are to be ended"]
    pub fn want(&mut self, wanted: impl IntoIterator<Item = (K, usize)>) -> Vec<W> {
        self.turn += 1;
        for (key, most) in wanted {
            let at = self.kinds.iter().position(|it| it.key == key);
            let mut kind = match at {
                Some(at) => self.kinds.remove(at),
                None => Kind::new(key),
            };
            (kind.most, kind.turn) = (most, self.turn);
            kind.fill = kind.ready.len() < most;
            self.kinds.push(kind);
        }
        let mut turns: Vec<u64> = self.kinds.iter().map(|it| it.turn).collect();
        turns.dedup();
        let oldest = turns.iter().rev().nth(KINDS - 1).copied().unwrap_or(0);
        let given_up = self.kinds.extract_if(.., |it| it.turn < oldest);
        given_up.flat_map(Kind::into_workers).collect()
    }

    /// The oldest worker of this kind that is `usable`.
    pub fn take(&mut self, key: &K, usable: impl Fn(&W) -> bool) -> Option<W> {
        let kind = self.of(key)?;
        let at = kind.ready.iter().position(|it| usable(&it.worker))?;
        kind.healthy();
        Some(kind.ready.remove(at).worker)
    }

    /// Whether a session may wait for the worker of this kind that is being made; it says [`Shelf::waited`] afterwards.
    pub fn wait(&mut self, key: &K) -> bool {
        let Some(kind) = self.of(key) else {
            return false;
        };
        let free = kind.making.is_some() && kind.awaited == 0;
        kind.awaited += u32::from(free);
        free
    }

    /// A session waits no more.
    pub fn waited(&mut self, key: &K) {
        if let Some(kind) = self.of(key) {
            kind.awaited = kind.awaited.saturating_sub(1);
        }
    }

    /// Whether a session waits for the worker of this kind that is being made.
    pub fn is_awaited(&self, key: &K) -> bool {
        let mut kinds = self.kinds.iter();
        kinds.any(|it| it.key == *key && it.awaited > 0)
    }

    /// The kind of which a worker is to be made now; one of each is made at a time.
    pub fn begin(&mut self, now: Instant) -> Option<K> {
        let due = |it: &&mut Kind<K, W>| it.due().is_some_and(|at| at.is_none_or(|at| at <= now));
        let kind = self.kinds.iter_mut().rev().find(due)?;
        kind.making = Some(now);
        Some(kind.key.clone())
    }

    /// A worker was made.
    ///
    /// # Errors
    /// The worker, which is not kept any more.
    pub fn made(&mut self, key: &K, worker: W, now: Instant) -> Result<(), W> {
        if self.closed {
            return Err(worker);
        }
        let Some(kind) = self.of(key) else {
            return Err(worker);
        };
        kind.making = None;
        kind.ready.push(Ready { worker, since: now });
        kind.fill &= kind.ready.len() < kind.most;
        Ok(())
    }

    /// A worker could not be made. The answer is the pause until the next one.
    pub fn failed(&mut self, key: &K, why: &str, now: Instant) -> Duration {
        self.tally.failed += 1;
        let Some(kind) = self.of(key) else {
            return Duration::ZERO;
        };
        kind.making = None;
        kind.trouble(why, now)
    }

    /// A worker of this kind is of no use: none is made before the next [`Shelf::want`].
    pub fn unfit(&mut self, key: &K) {
        self.tally.failed += 1;
        if let Some(kind) = self.of(key) {
            (kind.making, kind.fill) = (None, false);
        }
    }

    /// The workers that wait, of all kinds that are `which`; no others are made before the next [`Shelf::want`].
    #[must_use = "they are to be ended"]
    pub fn give_up(&mut self, which: impl Fn(&K) -> bool) -> Vec<W> {
        let kinds = self.kinds.iter_mut().filter(|it| which(&it.key));
        let given_up = kinds.flat_map(|kind| {
            kind.fill = false;
            kind.ready.drain(..)
        });
        given_up.map(|it| it.worker).collect()
    }

    /// A worker has ended. The answer is itself and the pause until the next one, if it was one that waited.
    pub fn died(
        &mut self,
        which: impl Fn(&W) -> bool,
        why: &str,
        now: Instant,
    ) -> Option<(W, Duration)> {
        let found = self.kinds.iter_mut().find_map(|kind| {
            let at = kind.ready.iter().position(|it| which(&it.worker))?;
            Some((kind.ready.remove(at), kind))
        });
        let (dead, kind) = found?;
        if now.saturating_duration_since(dead.since) >= SOUND {
            kind.healthy();
        }
        kind.fill = true;
        let pause = kind.trouble(why, now);
        self.tally.failed += 1;
        Some((dead.worker, pause))
    }

    /// Those that have waited as long as they may.
    #[must_use = "they are to be ended"]
    pub fn expired(&mut self, now: Instant) -> Vec<W> {
        let Some(idle) = self.limits.idle else {
            return Vec::new();
        };
        let mut all = Vec::new();
        for kind in &mut self.kinds {
            let is_old = |it: &mut Ready<W>| now.saturating_duration_since(it.since) >= idle;
            let old: Vec<_> = kind.ready.extract_if(.., is_old).collect();
            kind.fill &= old.is_empty();
            all.extend(old.into_iter().map(|it| it.worker));
        }
        self.tally.idle += all.len() as u64;
        all
    }

    /// When there is something to do next, if nothing changes before.
    pub fn next(&self) -> Option<Instant> {
        let made = self.kinds.iter().filter_map(|it| it.due().flatten());
        let idle = self.limits.idle;
        let waits = self.kinds.iter().flat_map(|it| &it.ready);
        let ends = waits.filter_map(|it| it.since.checked_add(idle?));
        made.chain(ends).min()
    }

    /// Keeps nothing any more. The answer is those that waited.
    #[must_use = "they are to be ended"]
    pub fn close(&mut self) -> Vec<W> {
        self.closed = true;
        let kinds = std::mem::take(&mut self.kinds);
        kinds.into_iter().flat_map(Kind::into_workers).collect()
    }

    fn of(&mut self, key: &K) -> Option<&mut Kind<K, W>> {
        self.kinds.iter_mut().find(|it| it.key == *key)
    }
}

impl<K, W> Kind<K, W> {
    fn new(key: K) -> Self {
        Self {
            key,
            ready: Vec::new(),
            making: None,
            trouble: String::new(),
            not_before: None,
            awaited: 0,
            most: 0,
            turn: 0,
            fill: false,
            failures: 0,
        }
    }

    /// Whether one is being made, or will be at once.
    pub fn is_coming(&self) -> bool {
        self.making.is_some() || (self.fill && self.not_before.is_none())
    }

    /// Whether a worker is to be made, and when if not at once.
    fn due(&self) -> Option<Option<Instant>> {
        (self.fill && self.making.is_none()).then_some(self.not_before)
    }

    fn trouble(&mut self, why: &str, now: Instant) -> Duration {
        let doubled = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16));
        let pause = doubled.min(LONGEST_PAUSE);
        self.failures += 1;
        self.trouble = why.to_owned();
        self.not_before = now.checked_add(pause);
        pause
    }

    fn healthy(&mut self) {
        self.failures = 0;
        self.not_before = None;
        self.trouble.clear();
    }

    fn into_workers(self) -> impl Iterator<Item = W> {
        self.ready.into_iter().map(|it| it.worker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shelf(most: usize, idle: Option<u64>) -> (Shelf<&'static str, u32>, Instant) {
        let idle = idle.map(Duration::from_secs);
        let limits = Limits {
            most,
            preloaded: most,
            idle,
        };
        (Shelf::new(limits), Instant::now())
    }

    fn want(shelf: &mut Shelf<&'static str, u32>, key: &'static str) -> Vec<u32> {
        shelf.want([(key, shelf.limits().most)])
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Makes what is due, with these numbers; which were made.
    fn fill(shelf: &mut Shelf<&'static str, u32>, numbers: &[u32], now: Instant) -> Vec<u32> {
        let mut made = Vec::new();
        for number in numbers {
            let Some(key) = shelf.begin(now) else { break };
            shelf.made(&key, *number, now).expect("kept");
            made.push(*number);
        }
        made
    }

    #[test]
    fn a_use_fills_the_pool_up_and_a_worker_is_given_once() {
        let (mut shelf, now) = shelf(2, None);
        assert_eq!(shelf.begin(now), None, "nothing is wanted yet");
        assert!(want(&mut shelf, "a").is_empty());
        assert_eq!(fill(&mut shelf, &[1, 2, 3], now), [1, 2]);
        assert_eq!(shelf.take(&"b", |_| true), None);
        assert_eq!(shelf.take(&"a", |_| true), Some(1));
        assert_eq!(shelf.begin(now), None, "not before it is used");
        assert!(want(&mut shelf, "a").is_empty());
        assert_eq!(fill(&mut shelf, &[4, 5], now), [4]);
        assert_eq!(shelf.take(&"a", |it| *it != 2), Some(4));
        assert_eq!(shelf.take(&"a", |_| true), Some(2));
        assert_eq!(shelf.take(&"a", |_| true), None);
    }

    #[test]
    fn a_pool_of_none_stays_empty() {
        let (mut shelf, now) = shelf(0, Some(1));
        assert!(want(&mut shelf, "a").is_empty());
        assert_eq!((shelf.begin(now), shelf.next()), (None, None));
    }

    #[test]
    fn workers_that_fail_again_and_again_are_replaced_ever_more_slowly() {
        let (mut shelf, mut now) = shelf(1, None);
        assert!(want(&mut shelf, "a").is_empty());
        let mut pauses = Vec::new();
        for number in 0..12 {
            let key = shelf.begin(now).expect("the pause is over");
            let pause = match number % 2 {
                0 => shelf.failed(&key, "no driver", now),
                _ => {
                    shelf.made(&key, number, now).expect("kept");
                    shelf
                        .died(|it| *it == number, "killed", now)
                        .expect("waited")
                        .1
                }
            };
            assert_eq!(shelf.begin(now), None, "within the pause");
            assert_eq!(shelf.next(), Some(now + pause));
            pauses.push(pause.as_secs());
            now += pause;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        assert_eq!(shelf.kinds()[0].trouble, "killed");
        assert_eq!(shelf.tally().failed, 12);
        // One that is used was sound.
        assert_eq!(fill(&mut shelf, &[50], now), [50]);
        assert_eq!(shelf.take(&"a", |_| true), Some(50));
        assert_eq!(shelf.kinds()[0].trouble, "");
        assert!(want(&mut shelf, "a").is_empty());
        let key = shelf.begin(now).expect("at once");
        assert_eq!(shelf.failed(&key, "no driver", now), seconds(1));
    }

    #[test]
    fn a_worker_that_dies_after_a_long_wait_is_replaced_soon() {
        let (mut shelf, mut now) = shelf(2, None);
        assert!(want(&mut shelf, "a").is_empty());
        for number in 0..5 {
            fill(&mut shelf, &[2 * number, 2 * number + 1], now);
            now += seconds(3600);
            let (dead, pause) = shelf
                .died(|it| *it == 2 * number, "killed", now)
                .expect("waited");
            assert_eq!((dead, pause), (2 * number, seconds(1)));
            assert_eq!(shelf.kinds()[0].ready.len(), 1, "the other one stays");
            assert_eq!(shelf.take(&"a", |_| true), Some(2 * number + 1));
            assert!(want(&mut shelf, "a").is_empty());
        }
        assert!(shelf.died(|_| true, "killed", now).is_none(), "none waits");
    }

    #[test]
    fn a_worker_that_was_not_used_ends_and_the_next_use_fills_the_pool_again() {
        let (mut shelf, start) = shelf(2, Some(100));
        assert!(want(&mut shelf, "a").is_empty());
        fill(&mut shelf, &[1, 2], start);
        assert!(shelf.expired(start + seconds(99)).is_empty());
        assert_eq!(shelf.next(), Some(start + seconds(100)));
        let now = start + seconds(100);
        assert_eq!(shelf.expired(now), [1, 2]);
        assert_eq!((shelf.begin(now), shelf.next()), (None, None));
        assert_eq!(shelf.tally().idle, 2);
        assert!(want(&mut shelf, "a").is_empty());
        assert_eq!(fill(&mut shelf, &[3, 4], now), [3, 4]);
    }

    #[test]
    fn one_session_waits_for_the_worker_that_is_being_made() {
        let (mut shelf, now) = shelf(1, None);
        assert!(!shelf.wait(&"a"), "nothing is known of it");
        assert!(want(&mut shelf, "a").is_empty());
        assert!(!shelf.wait(&"a"), "none is being made");
        let key = shelf.begin(now).expect("due");
        assert!(!shelf.is_awaited(&"a"));
        assert!(shelf.wait(&"a") && shelf.is_awaited(&"a"));
        assert!(!shelf.wait(&"a"), "a second one starts its own");
        shelf.made(&key, 1, now).expect("kept");
        shelf.waited(&"a");
        assert!(!shelf.is_awaited(&"a"));
        assert_eq!(shelf.take(&"a", |_| true), Some(1));
    }

    #[test]
    fn the_kind_used_longest_ago_is_given_up() {
        let (mut shelf, now) = shelf(1, None);
        for (number, key) in (1..).zip(["a", "b"]) {
            assert!(want(&mut shelf, key).is_empty());
            fill(&mut shelf, &[number], now);
        }
        assert!(want(&mut shelf, "a").is_empty());
        assert_eq!(want(&mut shelf, "c"), [2]);
        let late = shelf.begin(now).expect("due");
        assert_eq!(late, "c");
        assert!(want(&mut shelf, "b").contains(&1) && want(&mut shelf, "a").is_empty());
        assert_eq!(shelf.made(&late, 9, now), Err(9), "given up meanwhile");
    }

    #[test]
    fn kinds_of_one_session_are_kept_together() {
        let (mut shelf, now) = shelf(1, None);
        let parts = ["a", "b", "c", "d"];
        assert!(shelf.want(parts.map(|it| (it, 1))).is_empty());
        assert_eq!(fill(&mut shelf, &[1, 2, 3, 4], now), [1, 2, 3, 4]);
        assert!(want(&mut shelf, "e").is_empty());
        assert!(shelf.want([("e", 0), ("a", 1)]).is_empty());
        let mut given_up = shelf.want([("f", 1), ("g", 1)]);
        given_up.sort_unstable();
        // The kind wanted last was made first: the worker of `a` is 4.
        assert_eq!(given_up, [1, 2, 3], "what the last two sessions used stays");
        assert_eq!(fill(&mut shelf, &[5, 6, 7], now), [5, 6], "none of `e`");
    }

    #[test]
    fn what_is_of_no_use_is_not_made_again_before_it_is_wanted() {
        let (mut shelf, now) = shelf(1, None);
        assert!(want(&mut shelf, "a").is_empty());
        assert_eq!(shelf.begin(now), Some("a"));
        shelf.unfit(&"a");
        assert_eq!((shelf.begin(now), shelf.next()), (None, None));
        assert!(!shelf.wait(&"a"), "nothing comes");
        assert!(want(&mut shelf, "a").is_empty());
        assert_eq!(shelf.begin(now), Some("a"));
    }

    #[test]
    fn what_is_given_up_is_not_made_again_before_it_is_wanted() {
        let (mut shelf, now) = shelf(2, Some(9));
        for (numbers, key) in [([1, 2], "a"), ([3, 4], "b")] {
            assert!(want(&mut shelf, key).is_empty());
            assert_eq!(fill(&mut shelf, &numbers, now), numbers);
        }
        assert_eq!(shelf.give_up(|it| *it == "a"), [1, 2]);
        assert!(shelf.give_up(|it| *it == "a").is_empty());
        assert_eq!((shelf.begin(now), shelf.take(&"a", |_| true)), (None, None));
        assert_eq!(shelf.take(&"b", |_| true), Some(3));
        assert!(want(&mut shelf, "a").is_empty());
        assert_eq!(shelf.begin(now), Some("a"));
    }

    #[test]
    fn a_closed_pool_keeps_nothing() {
        let (mut shelf, now) = shelf(2, None);
        assert!(want(&mut shelf, "a").is_empty());
        fill(&mut shelf, &[1], now);
        let key = shelf.begin(now).expect("due");
        assert_eq!(shelf.close(), [1]);
        assert!(shelf.is_closed());
        assert_eq!(shelf.made(&key, 2, now), Err(2));
    }
}
