//! Leaves a disk to others for as long as they read it a little at a time.
//!
//! While CRIU brings a program back, and until its host memory is there, both read the disk that the device's data comes from: a
//! few pages, whose coming they wait for, and then the next few. Beside several long reads each of these waits for up to half a
//! second, because the kernel gives a disk long reads that follow each other until another request is as old as that
//! (`mq-deadline`); beside one it waits for that one (docs/decisions/058-turns-at-a-disk.md). So until then one long read is made
//! at a time, and two of a fast disk, which does not give all that it can to one; then one more each time that so many have been as fast
//! side by side, until they are slower. Who has waited longest is next: threads take what they read
//! in the order in which it is needed, and one that has just read would otherwise be there again before another one has woken up.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::pipeline::STEP_LIMIT;

/// A disk that gives more bytes a second to a single read is fast, and one that gives as much to each of several has room for one more.
const FAST: u64 = 3 << 30;
/// The fewest reads of a fast disk at a time.
const OF_FAST: usize = 2;
/// The shortest read by which that is judged.
const LEAST: usize = 1 << 20;

#[derive(Debug)]
struct State {
    /// How many reads are made at a time, if they take turns.
    most: Option<usize>,
    /// How many in a row have been fast beside as many as are made at a time.
    in_row: usize,
    /// How many are made.
    busy: usize,
    /// The number of the next thread that comes, and those of the threads that wait, the first to come first.
    comes: u64,
    waiting: VecDeque<u64>,
}

impl State {
    /// A read has been fast, or not. Only one beside as many as are made at a time says whether there is room for another.
    fn judge(&mut self, fast: bool) {
        let Some(most) = self.most.filter(|most| self.busy >= *most) else {
            return;
        };
        if fast {
            self.in_row += 1;
            if self.in_row >= most {
                (self.most, self.in_row) = (Some(most + 1), 0);
            }
        } else {
            // More than one are made only since a single one has been fast.
            let least = most.min(OF_FAST);
            (self.most, self.in_row) = (Some((most - 1).max(least)), 0);
        }
    }
}

/// The turns of several threads at reading from one disk.
#[derive(Debug)]
pub(in crate::restore) struct DiskTurns {
    state: Mutex<State>,
    next: Condvar,
}

/// A turn, which ends when this is dropped.
struct Turn<'a>(&'a DiskTurns);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.state.lock().busy -= 1;
        self.0.next.notify_all();
    }
}

impl DiskTurns {
    /// For a disk that others read meanwhile (`shared`), or not.
    pub fn new(shared: bool) -> Self {
        Self {
            state: Mutex::new(State {
                most: shared.then_some(1),
                in_row: 0,
                busy: 0,
                comes: 0,
                waiting: VecDeque::new(),
            }),
            next: Condvar::new(),
        }
    }

    /// Nobody else reads any more.
    pub fn end(&self) {
        self.state.lock().most = None;
        self.next.notify_all();
    }

    /// Makes a read of so many bytes, once it is its turn.
    pub fn read<T>(&self, bytes: usize, read: impl FnOnce() -> T) -> T {
        let Some(_turn) = self.wait() else {
            return read();
        };
        let begun = Instant::now();
        let result = read();
        if bytes >= LEAST {
            let fast = is_fast(bytes, begun.elapsed());
            // The end of this turn wakes those that wait.
            self.state.lock().judge(fast);
        }
        result
    }

    /// None if there are no turns.
    fn wait(&self) -> Option<Turn<'_>> {
        let mut state = self.state.lock();
        state.most?;
        let number = state.comes;
        state.comes += 1;
        state.waiting.push_back(number);
        let waits = |state: &mut State| {
            let is_next = state.waiting.front() == Some(&number);
            state
                .most
                .is_some_and(|most| !is_next || state.busy >= most)
        };
        // A disk that hangs is found out by who waits for the data.
        self.next.wait_while_for(&mut state, waits, STEP_LIMIT);
        state.waiting.retain(|it| *it != number);
        state.most?;
        state.busy += 1;
        // There may be room for the next one, too.
        self.next.notify_all();
        Some(Turn(self))
    }
}

fn is_fast(bytes: usize, time: Duration) -> bool {
    bytes as f64 > FAST as f64 * time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    /// The most reads at once, of 200 by four threads, of which each takes 50 us.
    fn most_at_once(turns: &DiskTurns, bytes: usize) -> usize {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let read = || {
            let count = now.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(count, Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros(50));
            now.fetch_sub(1, Ordering::SeqCst);
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50).for_each(|_| turns.read(bytes, read)));
            }
        });
        most.into_inner()
    }

    #[test]
    fn reads_of_a_shared_disk_take_turns() {
        assert_eq!(most_at_once(&DiskTurns::new(true), 4096), 1);
        assert!(most_at_once(&DiskTurns::new(false), 4096) > 1);
    }

    #[test]
    fn a_disk_is_read_by_as_many_as_it_is_fast_for() {
        let turns = DiskTurns::new(true);
        // In 50 us and what a busy machine adds: always fast.
        assert_eq!(most_at_once(&turns, 1 << 40), 4);
        assert_eq!(most_at_once(&DiskTurns::new(true), LEAST - 1), 1);
        assert!(!is_fast(2 << 20, Duration::from_millis(1)));
        assert!(is_fast(2 << 20, Duration::from_micros(500)));
    }

    /// The reads at a time of a disk that gives `rate` in all, in units of what is fast for one, and at most one such unit to each; after
    /// each of so many reads.
    fn reads_at_a_time(rate: f64, reads: usize) -> Vec<usize> {
        let turns = DiskTurns::new(true);
        let one = || {
            let mut state = turns.state.lock();
            state.busy = state.most.expect("turns");
            let fast = rate / state.busy as f64 >= 1.0;
            state.judge(fast);
            state.most.expect("turns")
        };
        std::iter::repeat_with(one).take(reads).collect()
    }

    #[test]
    fn there_is_one_more_for_as_long_as_each_is_fast() {
        assert_eq!(reads_at_a_time(0.9, 3), [1, 1, 1]);
        // Two of a disk that gives its all to one are slower, and are made all the same.
        assert_eq!(reads_at_a_time(1.0, 4), [2, 2, 2, 2]);
        assert_eq!(reads_at_a_time(9.0, 10), [2, 2, 3, 3, 3, 4, 4, 4, 4, 5]);
        // One too many is tried again and again.
        assert_eq!(reads_at_a_time(3.5, 12)[5..], [4, 3, 3, 3, 4, 3, 3]);
    }

    #[test]
    fn a_read_beside_fewer_than_may_be_says_nothing() {
        let turns = DiskTurns::new(true);
        let mut state = turns.state.lock();
        state.judge(true);
        assert_eq!((state.most, state.in_row), (Some(1), 0));
        (state.most, state.busy) = (Some(5), 4);
        (0..9).for_each(|_| state.judge(true));
        state.judge(false);
        assert_eq!(state.most, Some(5));
        state.most = None;
        state.judge(true);
        assert_eq!(state.most, None);
    }

    #[test]
    fn who_has_waited_longest_is_next() {
        let turns = DiskTurns::new(true);
        let order = Mutex::new(Vec::new());
        let waiting = || turns.state.lock().waiting.len();
        std::thread::scope(|scope| {
            turns.read(1, || {
                for number in 0..5 {
                    let (turns, order) = (&turns, &order);
                    scope.spawn(move || turns.read(1, || order.lock().push(number)));
                    while waiting() <= number {
                        std::thread::yield_now();
                    }
                }
            });
            // It comes again at once, and is the last.
            turns.read(1, || order.lock().push(5));
        });
        assert_eq!(order.into_inner(), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn who_waits_goes_on_when_turns_end() {
        let turns = DiskTurns::new(true);
        let (go_on, held) = mpsc::channel();
        std::thread::scope(|scope| {
            let turns = &turns;
            let (tell, begun) = mpsc::channel();
            scope.spawn(move || {
                turns.read(1, || {
                    tell.send(()).unwrap();
                    held.recv().unwrap();
                });
            });
            begun.recv().unwrap();
            let waiting = scope.spawn(|| turns.read(1, || ()));
            turns.end();
            waiting.join().unwrap();
            go_on.send(()).unwrap();
        });
        assert_eq!(turns.state.lock().busy, 0);
    }
}
