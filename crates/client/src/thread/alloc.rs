//! The library's own allocator.
//!
//! The agent works while every other thread of the program is parked, perhaps in the middle of the C
//! library's `malloc`; so this library may not use that. This allocator's lock holds the owner's thread pointer: the
//! signal handler does not park the owner, which is signalled again a moment later.
//!
//! Blocks are powers of two from 16 bytes to 64 KiB in free lists; larger ones are mappings of their own.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

/// log2 of the smallest block.
const LEAST: u32 = 4;
/// log2 of the largest block in a free list.
const MOST: u32 = 16;
const CLASSES: usize = (MOST - LEAST + 1) as usize;
/// Bytes mapped at a time for small blocks.
const CHUNK: usize = 1 << 20;
const PAGE: usize = 4096;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator {
    owner: AtomicUsize::new(0),
    lists: UnsafeCell::new(Lists {
        free: [null_mut(); CLASSES],
        chunk: 0,
        end: 0,
    }),
};

/// Whether the calling thread is inside the allocator. Async-signal-safe.
pub fn is_inside() -> bool {
    ALLOCATOR.owner.load(Ordering::Relaxed) == thread_pointer()
}

/// The address of the thread's block: a number that no other living thread has, cheaper than a thread id.
pub fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: the x86-64 ABI keeps the thread's own address at offset 0 of its thread block; reading it
    // changes nothing.
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    pointer
}

/// Holds the lock until [`thaw`]: around a fork, so that the lists are consistent in the child.
pub fn freeze() {
    ALLOCATOR.acquire();
}

/// Ends [`freeze`], in the parent or in the child.
pub fn thaw() {
    ALLOCATOR.owner.store(0, Ordering::Release);
}

struct Allocator {
    /// Thread pointer of the thread that has the lock, 0 if none.
    owner: AtomicUsize,
    lists: UnsafeCell<Lists>,
}

// SAFETY: `lists` is reached only with the lock held.
unsafe impl Sync for Allocator {}

/// Free blocks of each size, each holding the address of the next, and what is left of a chunk.
struct Lists {
    free: [*mut u8; CLASSES],
    chunk: usize,
    end: usize,
}

impl Lists {
    fn take(&mut self, class: usize) -> *mut u8 {
        let block = self.free[class];
        if !block.is_null() {
            // SAFETY: a block in the list is free, at least 16 bytes long, and begins with the address
            // that `give` stored there.
            self.free[class] = unsafe { block.cast::<*mut u8>().read() };
            return block;
        }
        let size = 1usize << (class as u32 + LEAST);
        let start = self.chunk.next_multiple_of(size.min(PAGE));
        if start + size > self.end {
            let Some(chunk) = map(CHUNK) else {
                return null_mut();
            };
            (self.chunk, self.end) = (chunk.addr(), chunk.addr() + CHUNK);
            chunk.expose_provenance();
            return self.take(class);
        }
        self.chunk = start + size;
        std::ptr::with_exposed_provenance_mut(start)
    }

    fn give(&mut self, block: *mut u8, class: usize) {
        // SAFETY: the block is no longer in use, and at least 16 bytes long.
        unsafe { block.cast::<*mut u8>().write(self.free[class]) };
        self.free[class] = block;
    }
}

impl Allocator {
    fn with<R>(&self, act: impl FnOnce(&mut Lists) -> R) -> R {
        self.acquire();
        // SAFETY: the lock is held, so this is the only reference.
        let result = act(unsafe { &mut *self.lists.get() });
        self.owner.store(0, Ordering::Release);
        result
    }

    fn acquire(&self) {
        let own = thread_pointer();
        while self
            .owner
            .compare_exchange_weak(0, own, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            // Held for a few instructions only, unless its owner has lost the processor.
            rustix::thread::sched_yield();
        }
    }
}

/// The free list for a layout; none if it needs a mapping of its own.
fn class(layout: &Layout) -> Option<usize> {
    let size = layout
        .size()
        .max(layout.align())
        .max(1 << LEAST)
        .next_power_of_two();
    let log = size.trailing_zeros();
    (log <= MOST && layout.align() <= PAGE).then_some((log - LEAST) as usize)
}

fn map(bytes: usize) -> Option<*mut u8> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh private mapping at an address of the kernel's choice overlaps nothing.
    let got =
        unsafe { rustix::mm::mmap_anonymous(null_mut(), bytes, protection, MapFlags::PRIVATE) };
    got.ok().map(|address| address.cast())
}

// SAFETY: blocks come from private mappings, are as large and as aligned as asked for, and are handed
// out to one owner at a time.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class(&layout) {
            Some(class) => self.with(|lists| lists.take(class)),
            None if layout.align() > PAGE => null_mut(),
            None => map(layout.size().next_multiple_of(PAGE)).unwrap_or(null_mut()),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class(&layout) {
            Some(class) => self.with(|lists| lists.give(block, class)),
            // SAFETY: `alloc` has made exactly this mapping for the block.
            None => unsafe {
                let _ = rustix::mm::munmap(block.cast(), layout.size().next_multiple_of(PAGE));
            },
        }
    }
}
