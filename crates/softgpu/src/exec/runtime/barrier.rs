//! Block-wide barriers.
//!
//! A barrier for all threads is complete when each thread that has not ended has arrived. One with a number of threads
//! counts warps: a warp has arrived when all its threads that have not ended have, and counts as 32 threads, also where
//! some have ended or do not exist. Until then even those wait that only arrive.

use super::context::DeviceThread;
use super::others::Others;
use super::warp::Warps;

/// Barriers per block.
const COUNT: usize = 17;
/// The one for clusters, beyond those that programs name.
pub const CLUSTER: usize = 16;

/// An operation on a barrier; its number is part of the generated code.
pub mod mode {
    /// Wait.
    pub const SYNC: u32 = 0;
    /// Arrive, wait only for the own warp.
    pub const ARRIVE: u32 = 1;
    /// Wait, then how many threads had a true predicate.
    pub const POPC: u32 = 2;
    /// Wait, then whether all had.
    pub const AND: u32 = 3;
    /// Wait, then whether any had.
    pub const OR: u32 = 4;
}

/// The threads of the block that have not ended.
pub struct Alive<'b> {
    /// Their number.
    pub count: u32,
    /// Which lanes of a warp have ended.
    pub warps: &'b Warps,
}

/// Warps of a block of the largest size.
const WARPS: usize = 32;

#[derive(Debug, Default)]
struct Barrier {
    arrived: u32,
    /// Threads that take part; 0 means all that have not ended.
    expected: u32,
    /// Threads as PTX counts them: 32 for each warp that has arrived.
    counted: u32,
    /// By warp, the lanes that have arrived while others of their warp have not.
    lanes: [u32; WARPS],
    truths: u32,
    waiting: Vec<u32>,
    /// How many of those that wait only arrive.
    arriving: u32,
}

impl Barrier {
    /// Counts a warp whose lanes have all arrived or ended, and at least one arrived. Whether it was counted.
    fn count(&mut self, warp: u32, alive: &Alive<'_>) -> bool {
        let lanes = &mut self.lanes[warp as usize % WARPS];
        if *lanes == 0 || *lanes | alive.warps.ended(warp) != u32::MAX {
            return false;
        }
        *lanes = 0;
        self.counted += 32;
        true
    }

    fn is_complete(&self, alive: &Alive<'_>) -> bool {
        match self.expected {
            0 => self.arrived >= alive.count,
            expected => self.counted >= expected,
        }
    }
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
        alive: &Alive<'_>,
        context: &mut DeviceThread,
        others: &mut Others<'_>,
    ) -> bool {
        let barrier = &mut self.list[id % COUNT];
        barrier.expected = expected;
        barrier.arrived += 1;
        barrier.truths += u32::from(truth);
        barrier.lanes[context.warp as usize % WARPS] |= 1 << context.lane;
        self.arrivals += 1;
        let counted = barrier.count(context.warp, alive);
        if barrier.is_complete(alive) {
            context.result = answer(context.barrier_mode, barrier);
            self.arrivals -= barrier.arrived;
            complete(barrier, others);
            return false;
        }
        if counted {
            let_arrived_go_on(barrier, context.warp, others);
        }
        let arrives = context.barrier_mode == mode::ARRIVE;
        let waits = !counted || !arrives;
        if waits {
            barrier.waiting.push(context.fiber);
            barrier.arriving += u32::from(arrives);
        }
        waits
    }

    /// A thread of `warp` has ended.
    pub fn exited(&mut self, warp: u32, alive: &Alive<'_>, others: &mut Others<'_>) {
        for barrier in self.list.iter_mut().filter(|b| b.arrived > 0) {
            let counted = barrier.count(warp, alive);
            if barrier.is_complete(alive) {
                self.arrivals -= barrier.arrived;
                complete(barrier, others);
            } else if counted {
                let_arrived_go_on(barrier, warp, others);
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

/// The threads of a warp that has been counted go on, if they only arrive.
fn let_arrived_go_on(barrier: &mut Barrier, warp: u32, others: &mut Others<'_>) {
    if barrier.arriving == 0 {
        return;
    }
    barrier.waiting.retain(|&fiber| {
        let context = others.contexts[fiber as usize];
        // SAFETY: contexts of waiting fibers are valid, and their fibers do not run now.
        let (mode, of) = unsafe { ((*context).barrier_mode, (*context).warp) };
        let goes_on = mode == mode::ARRIVE && of == warp;
        if goes_on {
            others.ready.push_back(fiber);
            barrier.arriving -= 1;
        }
        !goes_on
    });
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
