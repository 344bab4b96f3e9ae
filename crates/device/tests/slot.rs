//! Slots of addresses, in a process of its own: other tests would take addresses, and give them back, at the same time.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Barrier};
use std::thread::{self, Builder};

use fermata_device::slot::in_slot;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// The first slot ends here, each further one 1 TiB lower, and the thirty-third where the first does.
const TOP: u64 = 0x7a00_0000_0000;

/// Where the kernel puts the next mapping of 64 MiB.
fn next_address() -> u64 {
    let (bytes, flags) = (64 << 20, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
    let start =
        unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), flags) }.unwrap();
    // SAFETY: the mapping has just been made, and nobody refers to it.
    unsafe { munmap(start, bytes) }.unwrap();
    start as u64
}

/// Makes what a driver makes with a context: a thread with a stack and an arena, a large piece of a heap, a range.
fn like_a_driver() -> u64 {
    let work = || {
        // SAFETY: the piece is never used, nor given back, as a driver keeps what belongs to a context.
        std::hint::black_box(unsafe { libc::malloc(4 << 20) });
    };
    let started = Builder::new().stack_size(8 << 20).spawn(work);
    started.unwrap().join().unwrap();
    next_address()
}

#[test]
fn what_is_made_in_a_slot_lies_at_its_top_whatever_other_threads_have_left() {
    for (slot, end) in [(1, TOP), (3, TOP - (2 << 40)), (33, TOP)] {
        let inside = in_slot(slot, next_address).unwrap();
        assert!(
            inside < end && end - inside < 1 << 40,
            "{slot}: {inside:#x}"
        );
    }
    assert!(next_address() > TOP, "the gaps are free again");

    // What is left in one slot is not in the next: the place below its end is the same.
    let place = |slot: u64| TOP - ((slot - 1) << 40) - in_slot(slot as u32, like_a_driver).unwrap();
    let turns = Arc::new(Barrier::new(7));
    let first = place(4);
    // Others have ended, and left stacks and arenas; or they take what there is.
    for _ in 0..3 {
        like_a_driver();
    }
    // SAFETY: the piece is given back at once: such ones come from the heap from now on.
    unsafe { libc::free(std::hint::black_box(libc::malloc(16 << 20))) };
    assert_eq!(place(5), first);
    let others: Vec<_> = (0..6)
        .map(|_| {
            let turns = Arc::clone(&turns);
            thread::spawn(move || {
                like_a_driver();
                turns.wait();
                turns.wait();
            })
        })
        .collect();
    turns.wait();
    assert_eq!(place(6), first);
    turns.wait();
    others.into_iter().for_each(|it| it.join().unwrap());
    assert_eq!(place(7), first);
}
