//! Block-wide barriers, counted by thread.

use std::collections::VecDeque;

use super::context::DeviceThread;

/// Barriers per block.
const COUNT: usize = 17;
/// The one for clusters, beyond those that programs name.
pub const CLUSTER: usize = 16;

/// An operation on a barrier; its number is part of the generated code.
pub mod mode {
    /// Wait.
    pub const SYNC: u32 = 0;
    /// Arrive, do not wait.
    pub const ARRIVE: u32 = 1;
    /// Wait, then how many threads had a true predicate.
    pub const POPC: u32 = 2;
    /// Wait, then whether all had.
    pub const AND: u32 = 3;
    /// Wait, then whether any had.
    pub const OR: u32 = 4;
}

/// The other fibers of the block: their contexts, and those to be resumed.
pub struct Others<'b> {
    /// By fiber.
    pub contexts: &'b [*mut DeviceThread],
    /// Fibers that may go on.
    pub ready: &'b mut VecDeque<u32>,
}

#[derive(Debug, Default)]
struct Barrier {
    arrived: u32,
    /// Threads that take part; 0 means all that have not ended.
    expected: u32,
    truths: u32,
    waiting: Vec<u32>,
}

/// The barriers of a block.
#[derive(Debug, Default)]
pub struct Barriers {
    list: [Barrier; COUNT],
    arrivals: u32,
}

impl Barriers {
    /// Forgets all arrivals.
    pub fn clear(&mut self) {
        if self.arrivals > 0 {
            *self = Self::default();
        }
    }

    /// Whether any barrier has been reached and not completed.
    #[inline]
    pub fn any_waiting(&self) -> bool {
        self.arrivals > 0
    }

    /// The thread of `context` reaches barrier `id`. Returns whether it must wait.
    pub fn arrive(
        &mut self,
        id: usize,
        expected: u32,
        truth: bool,
        live: u32,
        context: &mut DeviceThread,
        others: &mut Others<'_>,
    ) -> bool {
        let barrier = &mut self.list[id % COUNT];
        barrier.expected = expected;
        barrier.arrived += 1;
        barrier.truths += u32::from(truth);
        self.arrivals += 1;
        let need = if expected == 0 { live } else { expected };
        if barrier.arrived >= need {
            context.result = answer(context.barrier_mode, barrier);
            self.arrivals -= barrier.arrived;
            complete(barrier, others);
            return false;
        }
        let waits = context.barrier_mode != mode::ARRIVE;
        if waits {
            barrier.waiting.push(context.fiber);
        }
        waits
    }

    /// A thread has ended; `live` are left.
    pub fn exited(&mut self, live: u32, others: &mut Others<'_>) {
        for barrier in &mut self.list {
            if barrier.arrived > 0 && barrier.expected == 0 && barrier.arrived >= live {
                self.arrivals -= barrier.arrived;
                complete(barrier, others);
            }
        }
    }
}

fn answer(mode: u32, barrier: &Barrier) -> u64 {
    u64::from(match mode {
        mode::POPC => barrier.truths,
        mode::AND => u32::from(barrier.truths == barrier.arrived),
        mode::OR => u32::from(barrier.truths > 0),
        _ => 0,
    })
}

fn complete(barrier: &mut Barrier, others: &mut Others<'_>) {
    let waiting = std::mem::take(&mut barrier.waiting);
    for &fiber in &waiting {
        let context = others.contexts[fiber as usize];
        // SAFETY: contexts of waiting fibers are valid, and their fibers do not run now.
        unsafe { (*context).result = answer((*context).barrier_mode, barrier) };
        others.ready.push_back(fiber);
    }
    // The list keeps its capacity for the next time.
    *barrier = Barrier {
        waiting,
        ..Barrier::default()
    };
    barrier.waiting.clear();
}
