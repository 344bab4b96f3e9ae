//! Host callbacks: a thread of the driver asks the program to run one, and waits until it has.
//!
//! ```text
//!  driver's thread           program
//!   call(id) ── number ────►  runs it
//!      │ waits                └── counts it
//!      ◄──────────────────────────┘
//! ```
//! Number and count lie in shared memory. The decode loop takes no part: it may itself be waiting in the driver for
//! the callback.

use std::sync::Arc;
use std::time::Duration;

use fermata_wire::{CALL_PLACES, CallbackCount, Side};
use parking_lot::Mutex;

/// How long a waiting thread sleeps before it looks whether the program is still there.
const SLICE: Duration = Duration::from_millis(40);

/// The attached program.
struct Program {
    side: Arc<Side>,
    count: CallbackCount,
    /// Callbacks asked for so far.
    asked: u32,
}

#[derive(Default)]
struct State {
    program: Option<Program>,
    /// Counts attachments.
    attachment: u64,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Callbacks {
    state: Mutex<State>,
}

impl Callbacks {
    /// From now on callbacks go to this program.
    pub fn attach(&self, side: Arc<Side>, count: CallbackCount) {
        let mut state = self.state.lock();
        state.attachment += 1;
        state.program = Some(Program {
            side,
            count,
            asked: 0,
        });
    }

    /// The program has left; threads that wait go on.
    pub fn detach(&self) {
        self.state.lock().program = None;
    }

    /// Has the program run callback `id`; returns when the program has run it, or is gone.
    pub fn call(&self, id: u64) {
        let Some((number, attachment, count)) = self.ask(id) else {
            return;
        };
        while !count.has_run(number, SLICE) {
            if !self.is_there(attachment, &count) {
                return;
            }
        }
    }

    /// Asks for it: its count, and in which attachment; `None` without a program.
    fn ask(&self, id: u64) -> Option<(u32, u64, CallbackCount)> {
        loop {
            let (number, attachment, count) = {
                let mut state = self.state.lock();
                let attachment = state.attachment;
                let program = state.program.as_mut()?;
                // Under the lock: the program counts in the order of the numbers.
                let (number, count) = (program.asked, program.count.clone());
                if count.ask(number, id) {
                    program.asked = number.wrapping_add(1);
                    return Some((number, attachment, count));
                }
                (number, attachment, count)
            };
            // The program has `CALL_PLACES` places: this callback's is free once the callback that many before it has run.
            if !count.has_run(number.wrapping_sub(CALL_PLACES), SLICE)
                && !self.is_there(attachment, &count)
            {
                return None;
            }
        }
    }

    /// Whether the program of this attachment is still there.
    fn is_there(&self, attachment: u64, count: &CallbackCount) -> bool {
        let state = self.state.lock();
        let lives = |program: &Program| count.program_lives(&*program.side);
        state.attachment == attachment && state.program.as_ref().is_some_and(lives)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::fd::AsFd;
    use std::thread::{JoinHandle, sleep, spawn};

    use fermata_wire::{Config, Consumer, Producer, create};

    use super::*;

    fn attached() -> (Arc<Callbacks>, Consumer, Producer, Arc<Side>) {
        let (worker, program) = Side::pair().unwrap();
        let (worker, program) = (Arc::new(Side::new(worker)), Arc::new(Side::new(program)));
        let memory = create(&Config::default()).unwrap();
        let consumer = Consumer::open(memory.as_fd(), Arc::clone(&worker)).unwrap();
        let producer = Producer::open(memory.as_fd(), Arc::clone(&program)).unwrap();
        let callbacks = Arc::new(Callbacks::default());
        callbacks.attach(worker, consumer.callbacks());
        (callbacks, consumer, producer, program)
    }

    /// Has `id` called, and waits until the program is asked for it, after `before` others.
    fn call(
        callbacks: &Arc<Callbacks>,
        producer: &Producer,
        id: u64,
        before: u32,
    ) -> JoinHandle<()> {
        let callbacks = Arc::clone(callbacks);
        let waiting = spawn(move || callbacks.call(id));
        let asked = producer.callback_asked(before, || false).unwrap();
        assert_eq!(asked, Some(id));
        waiting
    }

    #[test]
    fn a_caller_waits_for_its_own_callback() {
        let (callbacks, _consumer, producer, _program) = attached();
        let first = call(&callbacks, &producer, 7, 0);
        let second = call(&callbacks, &producer, 5, 1);
        producer.callback_done();
        first.join().unwrap();
        sleep(Duration::from_millis(5));
        assert!(!second.is_finished());
        producer.callback_done();
        second.join().unwrap();
    }

    #[test]
    fn a_caller_goes_on_when_the_program_is_gone() {
        let (callbacks, _consumer, producer, program) = attached();
        let waiting = call(&callbacks, &producer, 7, 0);
        let other = call(&callbacks, &producer, 8, 1);
        drop((program, producer));
        waiting.join().unwrap();
        other.join().unwrap();
        let (callbacks, _consumer, producer, _program) = attached();
        let waiting = call(&callbacks, &producer, 7, 0);
        callbacks.detach();
        waiting.join().unwrap();
    }

    #[test]
    fn more_callbacks_than_there_are_places_all_run_once() {
        let (callbacks, _consumer, producer, _program) = attached();
        let many = u64::from(CALL_PLACES) + 50;
        let threads: Vec<_> = (0..many)
            .map(|id| {
                let callbacks = Arc::clone(&callbacks);
                spawn(move || callbacks.call(id))
            })
            .collect();
        let mut ran: Vec<u64> = (0..many)
            .map(|number| {
                let id = producer.callback_asked(number as u32, || false).unwrap();
                producer.callback_done();
                id.unwrap()
            })
            .collect();
        ran.sort_unstable();
        assert!(ran.into_iter().eq(0..many));
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        assert_eq!(producer.callback_asked(many as u32, || true).unwrap(), None);
    }
}
