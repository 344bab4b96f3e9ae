//! How one side sleeps until the other has made progress, without a lost wake-up.
//!
//! ```text
//!   sleeper                          waker
//!   word = 1                         publish progress
//!   fence                            fence
//!   progress? ── yes: word = 0, go   word == 1? ── swap to 0, wake
//!       └ no: futex wait while word == 1
//! ```
//! Of the two fences one comes first: either the sleeper sees the progress, or the waker sees the 1.
//! A sleeper may execute the waker's fence too, between its own and the look at the progress
//! (`barrier.rs`): then the waker's comes at a moment of its code that has no cost there.
//! The ring's doorbell, the ring's space word and every reply slot use this and nothing else.

use crate::sync::{AtomicU32, Ordering, fence};

/// `word`: no thread sleeps.
const AWAKE: u32 = 0;
/// `word`: the sleeper is, or is about to be, asleep.
pub(crate) const ASLEEP: u32 = 1;

/// Announces sleep, looks once more, then calls `wait`, which must return when `word` is no longer
/// [`ASLEEP`] and may return earlier.
pub(crate) fn sleep_unless(
    word: &AtomicU32,
    ready: impl FnOnce() -> bool,
    wait: impl FnOnce(&AtomicU32),
) {
    word.store(ASLEEP, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    if !ready() {
        wait(word);
    }
    word.store(AWAKE, Ordering::Relaxed);
}

/// Called after progress has been published: calls `wake` if the other side sleeps.
#[inline]
pub(crate) fn wake_sleeper(word: &AtomicU32, wake: impl FnOnce(&AtomicU32)) {
    fence(Ordering::SeqCst);
    wake_fenced(word, wake);
}

/// As [`wake_sleeper`], where the sleeper executes the waker's fence (`barrier.rs`).
#[inline]
pub(crate) fn wake_fenced(word: &AtomicU32, wake: impl FnOnce(&AtomicU32)) {
    if word.load(Ordering::Relaxed) != AWAKE && word.swap(AWAKE, Ordering::Relaxed) != AWAKE {
        wake(word);
    }
}

#[cfg(all(test, loom))]
mod model {
    //! Every interleaving of two producers, one consumer and a ring of two places. A lost wake-up shows
    //! as a deadlock, which loom reports.

    use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    use loom::sync::{Arc, Condvar, Mutex};

    use super::{ASLEEP, sleep_unless, wake_sleeper};

    /// A futex: checks the word and goes to sleep in one step.
    struct Futex {
        lock: Mutex<()>,
        queue: Condvar,
    }

    impl Futex {
        fn new() -> Self {
            Self {
                lock: Mutex::new(()),
                queue: Condvar::new(),
            }
        }

        fn wait(&self, word: &AtomicU32) {
            let guard = self.lock.lock().unwrap();
            if word.load(Ordering::SeqCst) == ASLEEP {
                drop(self.queue.wait(guard).unwrap());
            }
        }

        fn wake(&self) {
            let _guard = self.lock.lock().unwrap();
            self.queue.notify_all();
        }
    }

    struct Ring {
        head: AtomicU64,
        tail: AtomicU64,
        cells: [AtomicU64; 1],
        doorbell: AtomicU32,
        space: AtomicU32,
        doorbell_futex: Futex,
        space_futex: Futex,
        producers: Mutex<u64>,
    }

    impl Ring {
        fn new() -> Self {
            Self {
                head: AtomicU64::new(0),
                tail: AtomicU64::new(0),
                cells: [AtomicU64::new(0)],
                doorbell: AtomicU32::new(0),
                space: AtomicU32::new(0),
                doorbell_futex: Futex::new(),
                space_futex: Futex::new(),
                producers: Mutex::new(0),
            }
        }

        fn send(&self, value: u64) {
            let mut head = self.producers.lock().unwrap();
            let full = || *head - self.tail.load(Ordering::Acquire) == self.cells.len() as u64;
            while full() {
                sleep_unless(&self.space, || !full(), |word| self.space_futex.wait(word));
            }
            self.cells[*head as usize % self.cells.len()].store(value, Ordering::Relaxed);
            *head += 1;
            self.head.store(*head, Ordering::Release);
            wake_sleeper(&self.doorbell, |_| self.doorbell_futex.wake());
        }

        fn receive(&self, tail: &mut u64) -> u64 {
            let empty = |tail: u64| self.head.load(Ordering::Acquire) == tail;
            while empty(*tail) {
                sleep_unless(
                    &self.doorbell,
                    || !empty(*tail),
                    |word| self.doorbell_futex.wait(word),
                );
            }
            let value = self.cells[*tail as usize % self.cells.len()].load(Ordering::Relaxed);
            *tail += 1;
            self.tail.store(*tail, Ordering::Release);
            wake_sleeper(&self.space, |_| self.space_futex.wake());
            value
        }
    }

    fn check(senders: &[&[u64]], bound: usize) {
        let senders: Vec<Vec<u64>> = senders.iter().map(|s| s.to_vec()).collect();
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(bound);
        model.check(move || {
            let ring = Arc::new(Ring::new());
            let total: usize = senders.iter().map(Vec::len).sum();
            let threads: Vec<_> = senders
                .iter()
                .cloned()
                .map(|values| {
                    let ring = ring.clone();
                    loom::thread::spawn(move || values.iter().for_each(|v| ring.send(*v)))
                })
                .collect();
            let mut tail = 0;
            let mut seen: Vec<u64> = (0..total).map(|_| ring.receive(&mut tail)).collect();
            for thread in threads {
                thread.join().unwrap();
            }
            for values in &senders {
                let order: Vec<_> = seen.iter().filter(|v| values.contains(v)).collect();
                assert_eq!(order, values.iter().collect::<Vec<_>>());
            }
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), total);
        });
    }

    #[test]
    fn one_producer_fills_and_drains_without_a_lost_wakeup() {
        check(&[&[1, 2, 3]], 3);
    }

    #[test]
    fn two_producers_keep_their_own_order() {
        check(&[&[1, 2], &[10]], 2);
    }
}
