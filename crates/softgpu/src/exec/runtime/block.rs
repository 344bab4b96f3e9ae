//! A block: keeps the state of its threads and schedules them.
//!
//! ```text
//!            start                 pause(Waiting)                release
//! unstarted ───────► running ─────────────────────► waiting ───────────────► ready ──► running
//!                      │  └───── pause(Yielded) ──► spinning ── when nothing is ready ──► running
//!                      └── ends: its fiber starts another thread, or idles
//! ```
//! All of it happens on one host thread. Helpers reach the block through a raw pointer while the
//! scheduler is inside `resume`, so the scheduler holds no reference to the block across it.

use std::collections::VecDeque;

use corosensei::CoroutineResult;

use super::barrier::{Alive, Barriers};
use super::context::{BlockPointer, DeviceThread, FUEL, Pause, Stop};
use super::engine::Engine;
use super::fiber::Body;
use super::grid::{Grid, RESERVED_SHARED};
use super::others::Others;
use super::signal::Guard;
use super::warp::Warps;
use crate::exec::interface::Reach;
use crate::exec::texture::Texture;

/// A block being run.
pub struct Block {
    /// The launch; outlives the block.
    pub grid: *const Grid<'static>,
    /// Threads in the block.
    pub threads: u32,
    /// Threads not yet started: the next one's linear index and coordinates.
    next: u32,
    cursor: [u32; 3],
    /// Threads that have not ended.
    pub live: u32,
    /// Contexts by fiber.
    pub contexts: Vec<*mut DeviceThread>,
    /// Fibers to resume first.
    pub ready: VecDeque<u32>,
    spinning: VecDeque<u32>,
    /// Barriers of the block.
    pub barriers: Barriers,
    /// Collectives of its warps.
    pub warps: Warps,
    index: [u32; 3],
    /// Textures and surfaces that its threads have used, by handle and level: what a handle stands for stays as it is during a
    /// launch, and to find it takes locks that all threads of the device share.
    textures: Vec<((u64, u32), Texture)>,
    /// Memory outside the window that its threads have accessed, kept so that it stays valid, too.
    reaches: Vec<Reach>,
}

/// Textures that are kept.
const TEXTURES: usize = 16;
/// Ranges of memory outside the window that are kept.
const REACHES: usize = 8;

impl Block {
    /// A block that has not begun.
    pub fn new(grid: &Grid<'_>) -> Self {
        Self {
            grid: std::ptr::from_ref(grid).cast(),
            threads: grid.block.iter().product(),
            next: 0,
            cursor: [0; 3],
            live: 0,
            contexts: Vec::new(),
            ready: VecDeque::new(),
            spinning: VecDeque::new(),
            barriers: Barriers::default(),
            warps: Warps::default(),
            index: [0; 3],
            textures: Vec::new(),
            reaches: Vec::new(),
        }
    }

    /// Whether `len` bytes at `address`, outside the window, may be accessed.
    pub fn reaches(&mut self, address: u64, len: u64, write: bool) -> bool {
        let known = |reach: &Reach| reach.allows(address, len, write);
        if self.reaches.iter().any(known) {
            return true;
        }
        let found = self.grid().host.reach(address).filter(known);
        if let Some(reach) = &found
            && self.reaches.len() < REACHES
        {
            self.reaches.push(reach.clone());
        }
        found.is_some()
    }

    /// A level of the texture or surface of a handle.
    pub fn texture(&mut self, handle: u64, level: u32) -> Option<Texture> {
        let known = self.textures.iter().find(|(of, _)| *of == (handle, level));
        if let Some((_, texture)) = known {
            return Some(texture.clone());
        }
        let found = self.grid().host.texture(handle, level)?;
        if self.textures.len() < TEXTURES {
            self.textures.push(((handle, level), found.clone()));
        }
        Some(found)
    }

    /// The launch.
    pub fn grid(&self) -> &Grid<'static> {
        // SAFETY: set from a reference that outlives the block; see `pool::run_blocks`.
        unsafe { &*self.grid }
    }

    /// Runs block number `number` of the grid to its end. `polled` is asked whether it shall stop when its threads poll
    /// memory and none can get any further.
    ///
    /// # Errors
    /// What stopped it. All fibers of the engine are idle afterwards either way.
    pub fn run(
        &mut self,
        engine: &mut Engine,
        number: u64,
        polled: impl Fn(&Grid<'static>) -> Option<Stop>,
    ) -> Result<(), Stop> {
        let [x, y, _] = self.grid().grid.map(u64::from);
        self.index = [
            (number % x) as u32,
            (number / x % y) as u32,
            (number / x / y) as u32,
        ];
        self.next = 0;
        self.cursor = [0; 3];
        self.live = self.threads;
        self.warps.begin(self.threads);
        self.barriers.clear();
        self.contexts = std::mem::take(&mut engine.pointers);
        let reserved = engine.slot.shared() + self.grid().shared_bytes();
        // SAFETY: `pool::run_blocks` has made this range accessible, and no thread of this block runs yet.
        unsafe { std::ptr::write_bytes(reserved as *mut u8, 0, RESERVED_SHARED as usize) };
        let mut idle: Vec<u32> = (0..engine.fibers.len() as u32).rev().collect();
        let result = Self::schedule(self, engine, &mut idle, &polled);
        if result.is_err() {
            let mut busy = vec![true; engine.fibers.len()];
            idle.iter().for_each(|&f| busy[f as usize] = false);
            (0..busy.len())
                .filter(|&f| busy[f])
                .for_each(|f| engine.reset::<Self>(f));
            self.ready.clear();
            self.spinning.clear();
            self.warps.clear();
        }
        engine.pointers = std::mem::take(&mut self.contexts);
        result
    }

    /// Fills what is the same for all threads of the block into a fiber's context.
    fn enlist(&mut self, engine: &mut Engine, fiber: usize) {
        let grid = self.grid();
        let (shared_base, params, local) = (
            engine.slot.shared(),
            engine.slot.params(),
            engine.slot.local(fiber),
        );
        let c = &mut *engine.contexts[fiber];
        c.shared_base = shared_base;
        c.shared_size = grid.shared_bytes();
        c.dynamic_shared = u64::from(grid.static_shared);
        c.dynamic_bytes = grid.dynamic_shared;
        c.params = params;
        c.grid_id = grid.grid_id;
        c.workspace = [(grid.workspace >> 32) as u32, grid.workspace as u32];
        c.ntid = grid.block;
        c.nctaid = grid.grid;
        c.ctaid = self.index;
        c.warps = self.threads.div_ceil(32);
        c.sms = grid.multiprocessors.max(1);
        let linear = self.index[0].wrapping_add(self.index[1].wrapping_mul(grid.grid[0]));
        c.sm = nth(grid.processors, linear);
        c.local_base = local;
        c.block = BlockPointer(std::ptr::from_mut(self).cast());
    }

    /// Resumes fibers until every thread has ended. `idle` names those that hang on nothing.
    fn schedule(
        block: *mut Self,
        engine: &mut Engine,
        idle: &mut Vec<u32>,
        polled: &impl Fn(&Grid<'static>) -> Option<Stop>,
    ) -> Result<(), Stop> {
        let guard = Guard::of_this_thread();
        loop {
            // SAFETY: `block` is the caller's exclusive borrow; no reference made here lives across
            // `resume`, during which helpers use the same pointer.
            let fiber = match unsafe { (*block).pick(idle) } {
                Pick::Waiting(fiber) => fiber,
                Pick::Fresh(fiber) => {
                    let fiber = fiber.unwrap_or_else(|| engine.grow::<Self>() as u32);
                    // SAFETY: as above.
                    unsafe {
                        (*block).contexts.append(&mut engine.pointers);
                        (*block).enlist(engine, fiber as usize);
                    }
                    fiber
                }
                Pick::Done => return Ok(()),
                Pick::Stuck => return Err(Stop::Deadlock),
            };
            let coroutine = &mut engine.fibers[fiber as usize];
            let result = guard.during(coroutine.trap_handler(), || coroutine.resume(()));
            match result {
                CoroutineResult::Yield(Pause::Idle) => idle.push(fiber),
                CoroutineResult::Yield(Pause::Waiting) => {}
                CoroutineResult::Yield(Pause::Yielded) => {
                    let polls = std::mem::take(&mut engine.contexts[fiber as usize].polls);
                    // SAFETY: as above.
                    let stop = unsafe {
                        (*block).spinning.push_back(fiber);
                        (*block).polled(polls != 0, polled)
                    };
                    if let Some(why) = stop {
                        // The fiber still runs a thread of this block; the caller resets its stack.
                        return Err(why);
                    }
                }
                CoroutineResult::Yield(Pause::Exited) => {
                    engine.reset::<Self>(fiber as usize);
                    // SAFETY: as above; the context stays where it was.
                    unsafe { (*block).ended(&mut *engine.contexts[fiber as usize]) };
                    idle.push(fiber);
                }
                CoroutineResult::Yield(Pause::Stopped(why)) => return Err(why),
                CoroutineResult::Return(why) => return Err(why),
            }
        }
    }

    fn pick(&mut self, idle: &mut Vec<u32>) -> Pick {
        if let Some(fiber) = self.ready.pop_front() {
            return Pick::Waiting(fiber);
        }
        if self.next < self.threads {
            return Pick::Fresh(idle.pop());
        }
        if self.live == 0 {
            return Pick::Done;
        }
        if self.warps.converge(&mut Others {
            contexts: &self.contexts,
            ready: &mut self.ready,
        }) && let Some(fiber) = self.ready.pop_front()
        {
            return Pick::Waiting(fiber);
        }
        self.spinning.pop_front().map_or(Pick::Stuck, Pick::Waiting)
    }

    /// A thread has run for long. If it polls memory and no other thread of the block can get any further, it may be
    /// waiting for another block.
    fn polled(
        &self,
        polls: bool,
        polled: &impl Fn(&Grid<'static>) -> Option<Stop>,
    ) -> Option<Stop> {
        if !polls || !self.ready.is_empty() || self.next < self.threads {
            return None;
        }
        let grid = self.grid();
        if grid.blocks() > 1 {
            // Other blocks may wait for this core.
            std::thread::yield_now();
        }
        polled(grid)
    }

    /// Whether another thread could run while the caller's waits.
    pub fn others(&self) -> bool {
        self.next < self.threads
            || !self.ready.is_empty()
            || !self.spinning.is_empty()
            || self.warps.any_converging()
    }

    /// Gives the next unstarted thread to `context`. For a small kernel this and [`Self::ended`] are much of what a thread takes.
    #[inline]
    fn start(&mut self, context: &mut DeviceThread) -> bool {
        if self.next >= self.threads {
            return false;
        }
        context.fuel = FUEL;
        context.local_top = context.local_base;
        context.tid = self.cursor;
        context.lane = self.next % 32;
        context.warp = self.next / 32;
        self.next += 1;
        self.cursor[0] += 1;
        if self.cursor[0] == context.ntid[0] {
            self.cursor[0] = 0;
            self.cursor[1] += 1;
            if self.cursor[1] == context.ntid[1] {
                self.cursor[1] = 0;
                self.cursor[2] += 1;
            }
        }
        true
    }

    /// Ends the thread of `context`: threads that wait for it go on.
    #[inline]
    fn ended(&mut self, context: *mut DeviceThread) {
        self.live -= 1;
        // SAFETY: contexts live as long as the engine.
        let (warp, lane) = unsafe { ((*context).warp, (*context).lane) };
        let waits = self.warps.exited(warp, lane) || self.barriers.any_waiting();
        if waits {
            self.release(warp);
        }
    }

    /// Threads that have waited for one of `warp` go on, which has ended.
    #[cold]
    fn release(&mut self, warp: u32) {
        let others = &mut Others {
            contexts: &self.contexts,
            ready: &mut self.ready,
        };
        self.warps.release(warp, others);
        if self.barriers.any_waiting() {
            let alive = Alive {
                count: self.live,
                warps: &self.warps,
            };
            self.barriers.exited(warp, &alive, others);
        }
    }
}

impl BlockPointer {
    /// The same pointer with its type.
    pub fn typed(self) -> *mut Block {
        self.0.cast()
    }
}

impl Body for Block {
    unsafe fn run(context: *mut DeviceThread) {
        // SAFETY: by contract; no reference lives across the call of compiled code.
        unsafe {
            let block = (*context).block.typed();
            let entry = (*(*block).grid).entry;
            while (*block).ready.is_empty() && (*block).start(&mut *context) {
                entry(context);
                (*block).ended(context);
            }
        }
    }
}

enum Pick {
    Waiting(u32),
    /// An idle fiber, or a new one.
    Fresh(Option<u32>),
    Done,
    Stuck,
}

/// The place of the `index`-th bit that is set in `mask`, counted around; 0 if none is.
fn nth(mask: u64, index: u32) -> u32 {
    let count = mask.count_ones().max(1);
    let mut rest = mask;
    for _ in 0..index % count {
        rest &= rest.wrapping_sub(1);
    }
    rest.trailing_zeros() % 64
}
