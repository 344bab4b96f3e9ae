//! Host callbacks: a thread of the driver asks the program to run one, and waits until it has.
//!
//! ```text
//!  driver's thread           program                decode loop
//!   call(id) ── Callback ──►  runs it
//!      │ waits                └── CallbackDone ──►  done(id)
//!      ◄─────────────────────────────────────────────┘
//! ```
//! The decode loop never waits here, so a callback cannot hold up what it depends on.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fermata_abi::op::ToProgram;
use fermata_wire::Side;
use parking_lot::{Condvar, Mutex};

/// How long a waiting thread sleeps before it looks whether the program is still there.
const SLICE: Duration = Duration::from_millis(500);

#[derive(Default)]
struct State {
    side: Option<Arc<Side>>,
    /// How often each callback has run and not been waited for yet.
    done: HashMap<u64, u64>,
    running: u64,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Callbacks {
    state: Mutex<State>,
    changed: Condvar,
}

impl Callbacks {
    /// A program is attached over this socket.
    pub fn attach(&self, side: Arc<Side>) {
        self.state.lock().side = Some(side);
    }

    /// The program has left; whoever waits goes on.
    pub fn detach(&self) {
        let mut state = self.state.lock();
        state.side = None;
        state.done.clear();
        self.changed.notify_all();
    }

    /// Has the program run callback `id`, and returns when it has, or when it is gone.
    pub fn call(&self, id: u64) {
        let Some(side) = self.state.lock().side.clone() else {
            return;
        };
        self.state.lock().running += 1;
        let sent = side.send_to_program(&ToProgram::Callback { id }, None);
        let mut state = self.state.lock();
        while sent.is_ok() && state.side.is_some() {
            if let Some(count) = state.done.get_mut(&id) {
                *count -= 1;
                if *count == 0 {
                    state.done.remove(&id);
                }
                break;
            }
            self.changed.wait_for(&mut state, SLICE);
        }
        state.running -= 1;
    }

    /// The program has run callback `id`.
    pub fn done(&self, id: u64) {
        let mut state = self.state.lock();
        if state.running > 0 {
            *state.done.entry(id).or_default() += 1;
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_waits_for_its_own_callback() {
        let (worker, program) = Side::pair().unwrap();
        let callbacks = Arc::new(Callbacks::default());
        callbacks.attach(Arc::new(Side::new(worker)));
        let program = Side::new(program);
        let waiting = {
            let callbacks = Arc::clone(&callbacks);
            std::thread::spawn(move || callbacks.call(7))
        };
        let asked = program
            .receive_from_worker(Duration::from_secs(5))
            .unwrap()
            .unwrap();
        assert_eq!(asked.0, ToProgram::Callback { id: 7 });
        callbacks.done(8);
        assert!(!waiting.is_finished());
        callbacks.done(7);
        waiting.join().unwrap();
    }

    #[test]
    fn a_caller_goes_on_when_the_program_is_gone() {
        let (worker, program) = Side::pair().unwrap();
        let callbacks = Arc::new(Callbacks::default());
        callbacks.attach(Arc::new(Side::new(worker)));
        let waiting = {
            let callbacks = Arc::clone(&callbacks);
            std::thread::spawn(move || callbacks.call(7))
        };
        drop(program);
        callbacks.detach();
        waiting.join().unwrap();
    }
}
