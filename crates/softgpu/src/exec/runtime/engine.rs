//! Engines: the window slot, stacks and fibers with which a host thread runs blocks. Idle engines are kept and lent to
//! the next threads, so that there are no more of them than ever ran at once.

use std::io;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::context::DeviceThread;
use super::fiber::{Body, Fiber, Stacks, fiber};
use super::threads::{self, MAX_THREADS};
use super::window::Slot;

/// Fibers of one host thread. Index `i` of `fibers` uses context `i` and stack `i`.
pub struct Engine {
    /// Started fibers; all of them idle between blocks.
    pub fibers: Vec<Fiber>,
    /// Their contexts.
    #[expect(
        clippy::vec_box,
        reason = "compiled code holds their addresses while the list grows"
    )]
    pub contexts: Vec<Box<DeviceThread>>,
    /// Pointers to them, lent to the block that runs.
    pub pointers: Vec<*mut DeviceThread>,
    /// Shared and local memory.
    pub slot: Slot,
    stacks: Stacks,
}

impl Engine {
    fn new() -> io::Result<Self> {
        Ok(Self {
            fibers: Vec::new(),
            contexts: Vec::new(),
            pointers: Vec::new(),
            slot: Slot::new()?,
            stacks: Stacks::new(MAX_THREADS)?,
        })
    }

    /// Makes another fiber, which does `B`, and returns its index.
    pub fn grow<B: Body>(&mut self) -> usize {
        let index = self.fibers.len();
        let mut context = Box::new(DeviceThread::new(index as u32));
        context.stack_limit = self.stacks.soft_limit(index);
        context.local_end = self.slot.local_end(index);
        // SAFETY: the box stays in `contexts`, which is dropped after `fibers`.
        let fiber = unsafe { fiber::<B>(&self.stacks, index, &mut *context) };
        self.pointers.push(&mut *context);
        self.contexts.push(context);
        self.fibers.push(fiber);
        index
    }

    /// Resets the stack of fiber `index` and makes the fiber anew, to run `B`.
    pub fn reset<B: Body>(&mut self, index: usize) {
        let context: *mut DeviceThread = &mut *self.contexts[index];
        // SAFETY: as in `grow`; the old fiber of this stack is gone before the new one starts, and
        // what is left on its stack (compiled frames, a helper that called `stop`) owns nothing.
        unsafe {
            let fresh = fiber::<B>(&self.stacks, index, context);
            let mut old = std::mem::replace(&mut self.fibers[index], fresh);
            old.force_reset();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for fiber in &mut self.fibers {
            // SAFETY: an idle fiber's stack holds only its endless loop, which owns nothing.
            unsafe { fiber.force_reset() };
        }
        self.fibers.clear();
    }
}

// SAFETY: contexts and fibers point only into the engine itself while no block runs, and an idle fiber
// holds nothing of the thread that last resumed it.
unsafe impl Send for Engine {}

/// Engines that are not in use, and how many are lent.
struct Shelf {
    free: Vec<Engine>,
    lent: usize,
}

static SHELF: Mutex<Shelf> = Mutex::new(Shelf {
    free: Vec::new(),
    lent: 0,
});
static RETURNED: Condvar = Condvar::new();

/// The least number of idle engines that are kept.
const KEPT: usize = 16;

/// How often and how long a thread waits for an engine when no further one can be made.
const PATIENCE: (u32, Duration) = (600, Duration::from_secs(1));

fn borrow() -> io::Result<Engine> {
    let mut waits = 0;
    loop {
        let mut shelf = SHELF.lock();
        if let Some(engine) = shelf.free.pop() {
            shelf.lent += 1;
            return Ok(engine);
        }
        let error = match Engine::new() {
            Ok(engine) => {
                shelf.lent += 1;
                return Ok(engine);
            }
            Err(error) => error,
        };
        if shelf.lent == 0 || waits == PATIENCE.0 {
            return Err(error);
        }
        RETURNED.wait_for(&mut shelf, PATIENCE.1);
        waits += 1;
    }
}

/// An engine on loan. One that is dropped in a panic is not lent again.
struct Loan(Option<Engine>);

impl Drop for Loan {
    fn drop(&mut self) {
        let mut engine = self.0.take().filter(|_| !std::thread::panicking());
        let mut shelf = SHELF.lock();
        shelf.lent -= 1;
        // Those of a cooperative launch are not kept: each holds what its threads have touched of their stacks.
        if shelf.free.len() < KEPT.max(threads::limit()) {
            shelf.free.extend(engine.take());
        }
        drop(shelf);
        drop(engine);
        RETURNED.notify_one();
    }
}

/// Runs `work` with an engine.
///
/// # Errors
/// The system refuses the memory that an engine needs, and none is in use that could be waited for.
pub fn with_engine<T>(work: impl FnOnce(&mut Engine) -> T) -> io::Result<T> {
    let mut loan = Loan(Some(borrow()?));
    match &mut loan.0 {
        Some(engine) => Ok(work(engine)),
        None => Err(io::Error::other("no engine")),
    }
}
