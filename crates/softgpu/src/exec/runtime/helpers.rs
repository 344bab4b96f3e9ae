//! Functions that compiled code calls: slow paths of accesses, waiting, collectives, faults.
//!
//! None of these may panic or touch a kernel's memory: a fault there would not be taken for the kernel's.

use super::barrier::Alive;
use super::block::Block;
use super::context::{DeviceThread, FUEL, Pause, Stop};
use super::others::Others;
use super::warp::Arrival;
use crate::exec::{WINDOW_BASE, WINDOW_END};

/// Reasons that compiled code gives by number.
pub mod reason {
    #![allow(missing_docs)]
    pub const STACK: u64 = 0;
    pub const CALL: u64 = 1;
    pub const TARGET: u64 = 2;
}

/// Marks a write in the size argument of [`access`].
pub const WRITE: u64 = 1 << 32;

/// Reborrows the block of a running thread.
///
/// # Safety
/// Only on the fiber of `context`, and dropped before the fiber pauses.
pub unsafe fn block<'b>(context: *mut DeviceThread) -> &'b mut Block {
    // SAFETY: the scheduler set the pointer and holds no reference while this fiber runs.
    unsafe { &mut *(*context).block.typed() }
}

/// An address outside the window or misaligned: returns when the access may go on.
pub unsafe extern "C" fn access(context: *mut DeviceThread, address: u64, size: u64) {
    let (bytes, write) = (size & 0xFFFF_FFFF, size & WRITE != 0);
    // SAFETY: called by compiled code with its own context.
    let context_ref = unsafe { &*context };
    if bytes.is_power_of_two() && address & (bytes - 1) != 0 {
        context_ref.stop(Stop::Misaligned(address));
    }
    let inside = (WINDOW_BASE..WINDOW_END).contains(&address) && bytes <= WINDOW_END - address;
    // SAFETY: as above.
    let allowed = inside || unsafe { block(context) }.reaches(address, bytes, write);
    if !allowed {
        context_ref.stop(Stop::Address(address));
    }
}

/// A misaligned shared address.
pub unsafe extern "C" fn misaligned(context: *mut DeviceThread, address: u64) {
    // SAFETY: called by compiled code with its own context.
    unsafe { &*context }.stop(Stop::Misaligned(address));
}

/// `trap`
pub unsafe extern "C" fn trap(context: *mut DeviceThread) {
    // SAFETY: called by compiled code with its own context.
    unsafe { &*context }.stop(Stop::Trap);
}

/// One of [`reason`].
pub unsafe extern "C" fn illegal(context: *mut DeviceThread, why: u64) {
    let what = match why {
        reason::STACK => "stack overflow",
        reason::CALL => "call through a pointer that is no function of this type",
        _ => "jump to no label",
    };
    // SAFETY: called by compiled code with its own context.
    unsafe { &*context }.stop(Stop::Illegal(what.to_owned()));
}

/// Fuel has run out: looks at the clock, lets other threads run.
pub unsafe extern "C" fn refuel(context: *mut DeviceThread) {
    // SAFETY: called by compiled code with its own context; the reference to the block ends before
    // the fiber pauses.
    unsafe {
        if let Some(why) = block(context).grid().interrupted() {
            (*context).stop(why);
        }
        if (*context).polls != 0 || block(context).others() {
            (*context).pause(Pause::Yielded);
        }
        (*context).fuel = FUEL;
    }
}

/// `exit` inside a function.
pub unsafe extern "C" fn exit(context: *mut DeviceThread) {
    // SAFETY: called by compiled code with its own context. The fiber is not resumed.
    unsafe { (*context).pause(Pause::Exited) };
}

/// `bar` and `barrier`; `expected` in threads, 0 for all.
pub unsafe extern "C" fn barrier(
    context: *mut DeviceThread,
    id: u64,
    expected: u64,
    mode: u64,
    truth: u64,
) -> u64 {
    // SAFETY: called by compiled code with its own context; the reference to the block ends before
    // the fiber pauses.
    unsafe {
        (*context).barrier_mode = mode as u32;
        let waits = {
            let Block {
                barriers,
                live,
                warps,
                contexts,
                ready,
                ..
            } = block(context);
            let others = &mut Others { contexts, ready };
            let alive = Alive {
                count: *live,
                warps,
            };
            barriers.arrive(
                id as usize,
                expected as u32,
                truth & 1 == 1,
                &alive,
                &mut *context,
                others,
            )
        };
        if waits {
            (*context).pause(Pause::Waiting);
        }
        (*context).result
    }
}

/// An operation among lanes; `kind` is one of [`super::warp::kind`] and, in its high half, where in the program it
/// stands. The second result is in `flag`.
pub unsafe extern "C" fn warp(
    context: *mut DeviceThread,
    kind: u64,
    mask: u64,
    value: u64,
    other: u64,
) -> u64 {
    // SAFETY: as in `barrier`.
    unsafe {
        let waits = {
            let Block {
                warps,
                contexts,
                ready,
                ..
            } = block(context);
            let arrival = Arrival {
                kind: kind as u32,
                mask: mask as u32,
                value,
                operand: other,
                site: (kind >> 32) as u32,
            };
            warps.arrive(&mut *context, arrival, &mut Others { contexts, ready })
        };
        if waits {
            (*context).pause(Pause::Waiting);
        }
        (*context).result
    }
}

/// `activemask` at one place of the program.
pub unsafe extern "C" fn activemask(context: *mut DeviceThread, site: u64) -> u64 {
    // SAFETY: as in `barrier`.
    unsafe {
        block(context).warps.ask(&*context, site);
        (*context).pause(Pause::Waiting);
        (*context).result
    }
}

/// Nanoseconds of a clock that never goes back.
pub unsafe extern "C" fn clock(wall: u64) -> u64 {
    let id = if wall != 0 {
        libc::CLOCK_REALTIME
    } else {
        libc::CLOCK_MONOTONIC
    };
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a valid out pointer.
    unsafe { libc::clock_gettime(id, &mut now) };
    (now.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec as u64)
}
