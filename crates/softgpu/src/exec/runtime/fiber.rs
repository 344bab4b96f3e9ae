//! Stacks and coroutines that run a kernel's threads.

use std::io;
use std::num::NonZeroUsize;

use corosensei::Coroutine;
use corosensei::stack::{Stack, StackPointer};

use super::context::{DeviceThread, Pause, Stop};
use super::threads::stagger;

/// Native stack per fiber. Compiled functions keep clear of the last [`RESERVE`] bytes.
const STACK: usize = 512 << 10;
/// Room below the limit for helpers and for a signal's frame.
const RESERVE: usize = 128 << 10;

/// One mapping that holds the stacks of all fibers of an engine.
#[derive(Debug)]
pub struct Stacks {
    base: usize,
    count: usize,
}

impl Stacks {
    /// Reserves room for `count` stacks; memory is taken as they are used.
    ///
    /// # Errors
    /// The system refuses the mapping.
    pub fn new(count: usize) -> io::Result<Self> {
        // SAFETY: a new private mapping at an address of the system's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                STACK * count,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            base: base as usize,
            count,
        })
    }

    fn stack(&self, index: usize) -> FiberStack {
        debug_assert!(index < self.count);
        FiberStack {
            limit: self.base + index * STACK,
            top: self.base + (index + 1) * STACK - stagger(index),
        }
    }

    /// The lowest stack pointer that compiled code may use in fiber `index`.
    pub fn soft_limit(&self, index: usize) -> u64 {
        (self.base + index * STACK + RESERVE) as u64
    }
}

impl Drop for Stacks {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; engines drop their fibers first.
        unsafe { libc::munmap(self.base as *mut _, STACK * self.count) };
    }
}

/// A part of [`Stacks`].
#[derive(Debug)]
pub struct FiberStack {
    limit: usize,
    top: usize,
}

// SAFETY: base and limit bound a mapped, page-aligned range that no other fiber uses, and `Stacks`
// outlives its fibers.
unsafe impl Stack for FiberStack {
    fn base(&self) -> StackPointer {
        NonZeroUsize::new(self.top).expect("a mapped address")
    }

    fn limit(&self) -> StackPointer {
        NonZeroUsize::new(self.limit).expect("a mapped address")
    }
}

/// A coroutine that runs threads; it returns only through the signal handler, with the reason.
pub type Fiber = Coroutine<(), Pause, Stop, FiberStack>;

/// What a fiber does.
pub trait Body {
    /// Runs threads of the block that `context` points to, until none is left or a waiting one is ready.
    ///
    /// # Safety
    /// Called on a fiber, with its own context, whose block is valid until it returns.
    unsafe fn run(context: *mut DeviceThread);
}

/// What makes a context's address movable into a coroutine.
struct Shared(*mut DeviceThread);

/// A fiber that runs threads of whatever block its context points to.
///
/// # Safety
/// `context` must outlive the fiber, and its `block` must be valid whenever the fiber is resumed.
pub unsafe fn fiber<B: Body>(stacks: &Stacks, index: usize, context: *mut DeviceThread) -> Fiber {
    let shared = Shared(context);
    Coroutine::with_stack(stacks.stack(index), move |yielder, ()| {
        let shared = shared;
        let context = shared.0;
        // SAFETY: the caller of `fiber` keeps the context alive; nothing else refers to it mutably
        // while this fiber runs.
        unsafe { (*context).yielder = yielder };
        loop {
            // SAFETY: as above; the scheduler has set the block.
            unsafe { B::run(context) };
            yielder.suspend(Pause::Idle);
        }
    })
}
