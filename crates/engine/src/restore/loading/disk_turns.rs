//! Leaves a disk to others for as long as they read it a little at a time.
//!
//! While CRIU brings a program back, and until its host memory is there, both read the disk that the device's data comes from: a
//! few pages, whose coming they wait for, and then the next few. Beside several long reads each of these waits for up to half a
//! second, because the kernel gives a disk long reads that follow each other until another request is as old as that
//! (`mq-deadline`); beside one it waits for that one (docs/decisions/058-turns-at-a-disk.md). So until then one long read is made
//! at a time, and two of a fast disk, which does not give all that it can to one. Who has waited longest is next: threads take what they read
//! in the order in which it is needed, and one that has just read would otherwise be there again before another one has woken up.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::pipeline::STEP_LIMIT;

/// A disk that gives more bytes a second to a single read is fast.
const FAST: u64 = 3 << 30;
/// Reads of a fast disk at a time.
const OF_FAST: usize = 2;
/// The shortest read by which that is judged.
const LEAST: usize = 1 << 20;

#[derive(Debug)]
struct State {
    /// How many reads are made at a time, if they take turns.
    most: Option<usize>,
    /// How many are made.
    busy: usize,
    /// The number of the next thread that comes, and those of the threads that wait, the first to come first.
    comes: u64,
    waiting: VecDeque<u64>,
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
        if bytes >= LEAST && is_fast(bytes, begun.elapsed()) {
            let mut state = self.state.lock();
            if state.most == Some(1) {
                state.most = Some(OF_FAST);
                self.next.notify_all();
            }
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
    fn a_fast_disk_is_read_by_two() {
        let turns = DiskTurns::new(true);
        // In 50 us and what a busy machine adds.
        assert_eq!(most_at_once(&turns, 1 << 40), OF_FAST);
        assert!(!is_fast(2 << 20, Duration::from_millis(1)));
        assert!(is_fast(2 << 20, Duration::from_micros(500)));
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
