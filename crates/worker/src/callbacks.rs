//! Host callbacks: a thread of the driver asks the program to run one, and waits until it has.
//!
//! ```text
//!  driver's thread           program
//!   call(id) ── Callback ──►  runs it
//!      │ waits                └── counts it, in shared memory
//!      ◄──────────────────────────┘
//! ```
//! Nothing of this passes through the decode loop, which may itself be waiting in the driver, behind the
//! callback.

use std::sync::Arc;
use std::time::Duration;

use fermata_abi::op::ToProgram;
use fermata_wire::{CallbackCount, Side};
use parking_lot::Mutex;

/// How long a waiting thread sleeps before it looks whether the program is still there.
const SLICE: Duration = Duration::from_millis(40);

/// A program that can be asked.
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
    /// A program is attached.
    pub fn attach(&self, side: Arc<Side>, count: CallbackCount) {
        let mut state = self.state.lock();
        state.attachment += 1;
        state.program = Some(Program {
            side,
            count,
            asked: 0,
        });
    }

    /// The program has left; whoever waits goes on.
    pub fn detach(&self) {
        self.state.lock().program = None;
    }

    /// Has the program run callback `id`, and returns when it has, or when it is gone.
    pub fn call(&self, id: u64) {
        let (number, attachment, count) = {
            let mut state = self.state.lock();
            let attachment = state.attachment;
            let Some(program) = &mut state.program else {
                return;
            };
            // Under the lock: the program counts in the order of the messages.
            let asked = ToProgram::Callback { id };
            if program.side.send_to_program(&asked, None).is_err() {
                return;
            }
            let number = program.asked;
            program.asked = number.wrapping_add(1);
            (number, attachment, program.count.clone())
        };
        while !count.has_run(number, SLICE) {
            let state = self.state.lock();
            let Some(program) = &state.program else {
                return;
            };
            if state.attachment != attachment || !count.program_lives(&*program.side) {
                return;
            }
        }
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

    fn call(callbacks: &Arc<Callbacks>, program: &Side, id: u64) -> JoinHandle<()> {
        let callbacks = Arc::clone(callbacks);
        let waiting = spawn(move || callbacks.call(id));
        let asked = program
            .receive_from_worker(Duration::from_secs(60))
            .unwrap();
        assert_eq!(asked.unwrap().0, ToProgram::Callback { id });
        waiting
    }

    #[test]
    fn a_caller_waits_for_its_own_callback() {
        let (callbacks, _consumer, producer, program) = attached();
        let first = call(&callbacks, &program, 7);
        let second = call(&callbacks, &program, 5);
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
        let waiting = call(&callbacks, &program, 7);
        let other = call(&callbacks, &program, 8);
        drop((program, producer));
        waiting.join().unwrap();
        other.join().unwrap();
        let (callbacks, _consumer, _producer, program) = attached();
        let waiting = call(&callbacks, &program, 7);
        callbacks.detach();
        waiting.join().unwrap();
    }
}
