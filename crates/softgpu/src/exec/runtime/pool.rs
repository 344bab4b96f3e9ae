//! The host threads that run blocks, shared by the whole process.
//!
//! A launching thread runs blocks itself, and is joined by threads of the pool. It leaves only when
//! all of them have left the grid, which therefore may live on its stack.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use parking_lot::{Condvar, Mutex};

use super::block::Block;
use super::context::Stop;
use super::engine::with_engine;
use super::grid::{Grid, RESERVED_SHARED};
use super::window;
use crate::exec::THREADS;

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

/// Threads that may serve one launch.
fn limit() -> usize {
    match THREADS.load(Ordering::Relaxed) {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        n => n,
    }
}

/// Runs all blocks of `grid`; faults are left in it.
pub fn run(grid: &Grid<'_>) {
    let helpers = (limit() as u64).min(grid.blocks()).saturating_sub(1) as usize;
    let pointer: *const Grid<'static> = std::ptr::from_ref(grid).cast();
    if helpers > 0 {
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
            wanted: helpers,
            active: 0,
        });
        while state.idle < helpers && state.threads < limit() {
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
    run_blocks(grid);
    if helpers > 0 {
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
        if let Some(job) = state.list.iter_mut().find(|j| j.grid == pointer) {
            job.active -= 1;
        }
        POOL.left.notify_all();
    }
}

fn run_blocks(grid: &Grid<'_>) {
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
                    None => block.run(engine, number),
                };
                if let Err(why) = result {
                    grid.fail(why);
                    return;
                }
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
