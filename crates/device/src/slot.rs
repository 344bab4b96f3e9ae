//! Slots of addresses, one for each context after a worker's first.
//!
//! A driver keeps the code and variables of modules in ranges that it takes when it makes a context, from the top of the free
//! addresses. A worker's first context comes before everything else, so its range is the same in each process. A later one's
//! would depend on all that was mapped before it, and a program that knows a variable's address could not be restored. So
//! everything above the context's slot is taken while it is made:
//!
//! ```text
//!              slot 2      slot 1   0x7a00_0000_0000                     stack
//!  ──────────────┴───────────┴────────┴───▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓────┴──
//!                     range ◄┘         the gaps above the slot, without access, until the context is made
//! ```
//! A driver's threads and its heap take addresses, too: stacks, and arenas of the C library. Whether they do depends on what
//! other threads have left, so enough of both is there when a context is made, and large pieces come from the heap.
//!
//! (Measured with the driver 580 on two H100: docs/decisions/049-contexts-in-slots.md.)

use std::ffi::c_void;
use std::hint::black_box;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread::{Builder, ScopedJoinHandle};
use std::{fs, io};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Below this the first slot begins; further ones follow downward.
const TOP: u64 = 0x7a00_0000_0000;
/// Bytes of a slot: far more than a driver takes for a context.
const BYTES: u64 = 1 << 40;
/// After so many they begin from the top again: below lies the program that the worker is.
const SLOTS: u64 = 32;

/// Threads that leave a stack and an arena each: more than a driver starts with a context.
const THREADS: usize = 4;
/// Larger pieces of a heap would be mappings of their own: as much as the C library permits.
const HEAP_PIECE: i32 = 32 << 20;

/// Runs `make`, on a thread of its own, while the kernel gives addresses below the end of slot `number` (from 1) alone. Where
/// the gaps above cannot be taken, it runs all the same.
///
/// # Errors
/// There is no thread for it.
pub fn in_slot<T: Send>(number: u32, make: impl FnOnce() -> T + Send) -> io::Result<T> {
    keep_to_heaps();
    leave_stacks_and_arenas();
    let work = || {
        let plugs = plugs_above(end_of(number));
        let made = make();
        drop(plugs);
        made
    };
    // What it takes from its heap must not depend on what the calling thread has in its own.
    std::thread::scope(|scope| Ok(joined(thread().spawn_scoped(scope, work)?)))
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    match thread.join() {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// A thread with a stack as those have that a driver starts.
fn thread() -> Builder {
    // SAFETY: the attributes are a local that is made before it is read and destroyed after.
    let bytes = unsafe {
        let mut attributes = std::mem::zeroed();
        let mut bytes = 0;
        if libc::pthread_attr_init(&mut attributes) == 0 {
            libc::pthread_attr_getstacksize(&attributes, &mut bytes);
            libc::pthread_attr_destroy(&mut attributes);
        }
        bytes
    };
    Builder::new().name("slot".to_owned()).stack_size(bytes)
}

/// From now on the C library's heaps hold pieces that were mappings of their own, and are not given back at once.
fn keep_to_heaps() {
    // SAFETY: mallopt takes two numbers; a value that it refuses changes nothing.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, HEAP_PIECE);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 2 * HEAP_PIECE);
    }
}

/// Has the C library keep a stack and an arena of as many threads as a driver may start, which are then taken before new ones are
/// made.
fn leave_stacks_and_arenas() {
    let (stay, (tell, told)) = (Mutex::new(()), mpsc::channel());
    std::thread::scope(|scope| {
        let held = stay.lock();
        let started = (0..THREADS).filter_map(|_| {
            let (stay, tell) = (&stay, tell.clone());
            let work = move || {
                // SAFETY: the piece is given back at once; free takes what malloc gives, also nothing.
                unsafe { libc::free(black_box(libc::malloc(1 << 16))) };
                let _ = tell.send(());
                // Each needs its own as long as the others have theirs.
                drop(stay.lock().unwrap_or_else(PoisonError::into_inner));
            };
            thread().spawn_scoped(scope, work).ok()
        });
        // With fewer, a restore may have to refuse what it could have done.
        let started: Vec<_> = started.collect();
        told.iter().take(started.len()).for_each(drop);
        drop(held);
        // A scope does not wait until all of a thread's mappings are gone.
        started.into_iter().for_each(joined);
    });
}

/// The first address above a slot.
fn end_of(number: u32) -> u64 {
    TOP - u64::from(number.saturating_sub(1)) % SLOTS * BYTES
}

/// A range that nobody else gets, as long as this is there.
struct Plug {
    start: u64,
    bytes: u64,
}

impl Plug {
    /// Takes a range that is free; none if it is not, or the process may have no more.
    fn take(start: u64, end: u64) -> Option<Self> {
        let bytes = end - start;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: without a replacement the mapping overlaps nothing, and nobody reads it.
        let mapped = unsafe {
            mmap_anonymous(
                start as *mut c_void,
                usize::try_from(bytes).ok()?,
                ProtFlags::empty(),
                flags,
            )
        };
        let plug = Self {
            start: mapped.ok()? as u64,
            bytes,
        };
        // A kernel that does not know the flag may have put it elsewhere.
        (plug.start == start).then_some(plug)
    }
}

impl Drop for Plug {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's own, and nobody refers to it.
        let _ = unsafe { munmap(self.start as *mut c_void, self.bytes as usize) };
    }
}

/// Plugs for all gaps between this address and the stack.
fn plugs_above(end: u64) -> Vec<Plug> {
    // Without it the context comes where the kernel puts it.
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    gaps(&maps, end)
        .into_iter()
        .filter_map(|(from, to)| Plug::take(from, to))
        .collect()
}

/// The gaps above `end` in a process's list of mappings, up to the last mapping below the stack: what is free above that the
/// kernel keeps for the stack to grow.
fn gaps(maps: &str, end: u64) -> Vec<(u64, u64)> {
    let mut gaps = Vec::new();
    let mut free = end;
    for line in maps.lines().take_while(|line| !line.ends_with("[stack]")) {
        let range = line
            .split_whitespace()
            .next()
            .and_then(|it| it.split_once('-'));
        let number = |text| u64::from_str_radix(text, 16).ok();
        let Some((Some(from), Some(to))) = range.map(|(from, to)| (number(from), number(to)))
        else {
            continue;
        };
        if from > free {
            gaps.push((free, from));
        }
        free = free.max(to);
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_lie_between_mappings_and_below_the_stack() {
        let maps = "1000-2000 r--p 0 0:0 0 /x\n\
                    3000-5000 rw-p 0 0:0 0\n\
                    7000-8000 rw-p 0 0:0 0\n\
                    8000-9000 rw-p 0 0:0 0\n\
                    f000-f800 rw-p 0 0:0 0 [stack]\n\
                    ff00-ff80 r-xp 0 0:0 0 [vsyscall]\n";
        assert_eq!(gaps(maps, 0x2800), [(0x2800, 0x3000), (0x5000, 0x7000)]);
        assert_eq!(gaps(maps, 0x3800), [(0x5000, 0x7000)]);
        assert_eq!(gaps(maps, 0x5800), [(0x5800, 0x7000)]);
        assert_eq!(gaps(maps, 0xa000), []);
    }
}
