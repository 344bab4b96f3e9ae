//! What a host thread owns to run blocks: a window slot, stacks, fibers. Kept for the thread's life.

use std::cell::RefCell;
use std::io;

use super::context::Context;
use super::fiber::{Fiber, Stacks, fiber};
use super::window::Slot;

/// Threads per block at most.
pub const MAX_THREADS: usize = 1024;

/// Fibers of one host thread. Index `i` of `fibers` uses context `i` and stack `i`.
pub struct Engine {
    /// Started fibers; all of them idle between blocks.
    pub fibers: Vec<Fiber>,
    /// Their contexts, at stable addresses.
    pub contexts: Vec<Box<Context>>,
    /// Pointers to them, lent to the block that runs.
    pub pointers: Vec<*mut Context>,
    /// Shared and local memory.
    pub slot: Slot,
    stacks: Stacks,
}

impl Engine {
    fn new() -> io::Result<Self> {
        Ok(Self { fibers: Vec::new(), contexts: Vec::new(), pointers: Vec::new(), slot: Slot::new()?, stacks: Stacks::new(MAX_THREADS)? })
    }

    /// Makes another fiber and returns its index.
    pub fn grow(&mut self) -> usize {
        let index = self.fibers.len();
        let mut context = Box::new(Context::new(index as u32));
        context.stack_limit = self.stacks.soft_limit(index);
        context.local_end = self.slot.local_end(index);
        // SAFETY: the box stays in `contexts`, which is dropped after `fibers`.
        let fiber = unsafe { fiber(&self.stacks, index, &mut *context) };
        self.pointers.push(&mut *context);
        self.contexts.push(context);
        self.fibers.push(fiber);
        index
    }

    /// Throws away what hangs on the stack of fiber `index` and makes it fresh.
    pub fn reset(&mut self, index: usize) {
        let context: *mut Context = &mut *self.contexts[index];
        // SAFETY: as in `grow`; the old fiber of this stack is gone before the new one starts, and
        // what is left on its stack (compiled frames, a helper that called `stop`) owns nothing.
        unsafe {
            let fresh = fiber(&self.stacks, index, context);
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

thread_local! {
    static ENGINE: RefCell<Option<Engine>> = const { RefCell::new(None) };
}

/// Runs `work` with this host thread's engine.
///
/// # Errors
/// The system refuses the memory that an engine needs.
pub fn with_engine<T>(work: impl FnOnce(&mut Engine) -> T) -> io::Result<T> {
    ENGINE.with_borrow_mut(|slot| {
        if slot.is_none() {
            *slot = Some(Engine::new()?);
        }
        match slot {
            Some(engine) => Ok(work(engine)),
            None => Err(io::Error::other("no engine")),
        }
    })
}
