//! The host threads that run blocks, shared by the whole process.
//!
//! A launching thread runs blocks itself, and is joined by threads of the pool. It leaves only when
//! all of them have left the grid, which therefore may live on its stack. Where blocks wait for one another, threads
//! beyond the pool's number are started for that grid alone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use parking_lot::{Condvar, Mutex};

use super::block::Block;
use super::context::Stop;
use super::engine::with_engine;
use super::grid::{Grid, Poll, RESERVED_SHARED};
use super::mxcsr;
use super::threads::limit;
use super::window;

/// A grid that wants help.
struct Job {
    grid: *const Grid<'static>,
    /// Threads that may still join.
    wanted: usize,
    /// Threads that have joined and not left.
    active: usize,
}

// SAFETY: the launching thread keeps the grid alive until `active` is 0 and the job is out of the list,
// and `Grid` is `Sync`.
unsafe impl Send for Job {}

struct Pool {
    jobs: Mutex<State>,
    work: Condvar,
    left: Condvar,
}

struct State {
    list: Vec<Job>,
    threads: usize,
    idle: usize,
    pid: u32,
}

static POOL: Pool = Pool {
    jobs: Mutex::new(State {
        list: Vec::new(),
        threads: 0,
        idle: 0,
        pid: 0,
    }),
    work: Condvar::new(),
    left: Condvar::new(),
};

/// Runs all blocks of `grid`, all at once if they are `cooperative`; faults are left in it.
pub fn run(grid: &Grid<'_>, cooperative: bool) {
    let several = grid.blocks() > 1;
    let helpers = (limit() as u64).min(grid.blocks()).saturating_sub(1) as usize;
    let pointer: *const Grid<'static> = std::ptr::from_ref(grid).cast();
    if several {
        let mut state = POOL.jobs.lock();
        // After a fork the threads are gone.
        if state.pid != std::process::id() {
            *state = State {
                list: Vec::new(),
                threads: 0,
                idle: 0,
                pid: std::process::id(),
            };
        }
        state.list.push(Job {
            grid: pointer,
            wanted: if cooperative { 0 } else { helpers },
            active: 0,
        });
        while !cooperative && state.idle < helpers && state.threads < limit() {
            let started = std::thread::Builder::new()
                .name("softgpu".into())
                .spawn(worker);
            if started.is_err() {
                break;
            }
            state.threads += 1;
            state.idle += 1;
        }
        POOL.work.notify_all();
    }
    if several && cooperative {
        let others = grid.blocks() - 1;
        let joined = call(pointer, others);
        if joined < others {
            grid.fail(Stop::Illegal(format!(
                "a cooperative launch of {} blocks needs as many threads, and the system gives {joined}",
                grid.blocks()
            )));
        }
    }
    run_blocks(grid);
    if several {
        let mut state = POOL.jobs.lock();
        while let Some(at) = state.list.iter().position(|j| j.grid == pointer) {
            state.list[at].wanted = 0;
            if state.list[at].active == 0 {
                state.list.swap_remove(at);
                break;
            }
            POOL.left.wait(&mut state);
        }
    }
}

/// Starts up to `count` threads for one grid alone; how many have started.
fn call(grid: *const Grid<'static>, count: u64) -> u64 {
    /// Movable into a thread.
    struct Shared(*const Grid<'static>);
    // SAFETY: `Grid` is `Sync`, and the launching thread keeps it alive while `active` is not 0.
    unsafe impl Send for Shared {}

    for started in 0..count {
        let mut state = POOL.jobs.lock();
        let Some(job) = state.list.iter_mut().find(|j| j.grid == grid) else {
            return started;
        };
        job.active += 1;
        drop(state);
        let shared = Shared(grid);
        let thread = std::thread::Builder::new()
            .name("softgpu+".into())
            .spawn(move || {
                let shared = shared;
                // SAFETY: this thread counts as active until `leave`.
                run_blocks(unsafe { &*shared.0 });
                leave(&mut POOL.jobs.lock(), shared.0);
            });
        if thread.is_err() {
            leave(&mut POOL.jobs.lock(), grid);
            return started;
        }
    }
    count
}

/// Counts one thread fewer that runs blocks of a grid.
fn leave(state: &mut State, grid: *const Grid<'static>) {
    if let Some(job) = state.list.iter_mut().find(|j| j.grid == grid) {
        job.active -= 1;
    }
    POOL.left.notify_all();
}

/// A block of `grid` polls memory: whether it shall stop. Calls more threads where it may be waiting for a block that
/// has not begun.
fn polled(grid: &Grid<'static>) -> Option<Stop> {
    match grid.residents.poll(grid.unbegun()) {
        Poll::GoOn => None,
        Poll::Stop(why) => Some(why),
        Poll::Call(count) => {
            call(grid, count);
            None
        }
    }
}

fn worker() {
    let mut state = POOL.jobs.lock();
    loop {
        let Some(job) = state.list.iter_mut().find(|j| j.wanted > 0) else {
            POOL.work.wait(&mut state);
            continue;
        };
        job.wanted -= 1;
        job.active += 1;
        let pointer = job.grid;
        state.idle -= 1;
        drop(state);
        // SAFETY: the job was in the list, so its launching thread waits until `active` is 0 again.
        run_blocks(unsafe { &*pointer });
        state = POOL.jobs.lock();
        state.idle += 1;
        leave(&mut state, pointer);
    }
}

fn run_blocks(grid: &Grid<'_>) {
    grid.residents.threads.fetch_add(1, Ordering::Relaxed);
    run_blocks_here(grid);
    grid.residents.threads.fetch_sub(1, Ordering::Relaxed);
}

fn run_blocks_here(grid: &Grid<'_>) {
    let _defaults = mxcsr::Defaults::load();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        with_engine(|engine| {
            if let Err(error) = engine
                .slot
                .size_shared(grid.shared_bytes() + RESERVED_SHARED)
            {
                grid.fail(Stop::Illegal(format!(
                    "cannot give the block shared memory: {error}"
                )));
                return;
            }
            let bytes = grid.params.len().min(window::PARAMS);
            // SAFETY: the slot maps PARAMS bytes there, and no compiled code of this thread runs now.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    grid.params.as_ptr(),
                    engine.slot.params() as *mut u8,
                    bytes,
                )
            };
            let mut block = Block::new(grid);
            while let Some(number) = grid.take() {
                let result = match grid.interrupted() {
                    Some(why) => Err(why),
                    None => block.run(engine, number, polled),
                };
                if let Err(why) = result {
                    grid.fail(why);
                    return;
                }
                grid.residents.ended();
            }
        })
    }));
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(error)) => grid.fail(Stop::Illegal(format!("cannot run blocks: {error}"))),
        Err(_) => grid.fail(Stop::Illegal(
            "an internal error of the software GPU".to_owned(),
        )),
    }
}
