//! Serving a session that has common memory: before an operation may write such a block, the session gets its own copy.

use std::time::{Duration, Instant};

use fermata_abi::op::{Address, Op, ends_context};
use fermata_abi::sys::driver as cu;
use fermata_engine::EngineError;
use fermata_graph::Graph;

use crate::errors::OpError;
use crate::failure::full_text;
use crate::server::Server;
use crate::threads::pause_beside_device;

/// How long to wait until the device is idle: its work may wait for an operation that has not been issued yet.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a checkpoint may go on reading a block that is to become the session's own.
const READING: Duration = Duration::from_millis(200);
/// How long to wait for free device memory: a driver takes seconds to release that of a process that has ended.
const ROOM_TIME: Duration = Duration::from_secs(5);
/// Between two looks.
const TURN: Duration = Duration::from_micros(20);
const ROOM_TURN: Duration = Duration::from_millis(5);
/// How long to wait for the queued work of a program that has ended.
const LAST_WORK: Duration = Duration::from_secs(1);

impl Server {
    /// Before `op` is issued: makes every block of common memory that it may write the session's own.
    pub(crate) fn pass_guard(&mut self, op: &Op<'_>) -> Result<(), OpError> {
        let begun = self.clock();
        let Some(guard) = &mut self.guard else {
            return Ok(());
        };
        let needed = guard.needs(&self.site, op);
        self.count("common memory, foreseen", begun);
        self.make_own(&needed)
    }

    /// [`Server::pass_guard`] for a graph that the driver is about to get.
    pub(crate) fn pass_guard_with(&mut self, graph: &Graph) -> Result<(), OpError> {
        let Some(guard) = &mut self.guard else {
            return Ok(());
        };
        let needed = guard.needs_of_graph(&self.site.live, graph);
        self.make_own(&needed)
    }

    /// Checks which blocks kernels have left unchanged, if that is due and the device is idle.
    pub(crate) fn look_if_due(&mut self) {
        if self.guard.as_ref().is_some_and(|it| it.is_due()) {
            self.look();
        }
    }

    /// The same check at the session's end, where the device may need a moment to become idle.
    pub(crate) fn look_last(&mut self) {
        let until = Instant::now() + LAST_WORK;
        while self.guard.is_some() && !self.condemned && !self.look() && Instant::now() < until {
            pause_beside_device(ROOM_TURN);
        }
    }

    /// Does the check; false if the device is busy.
    fn look(&mut self) -> bool {
        let begun = self.clock();
        let Some(guard) = &mut self.guard else {
            return true;
        };
        let idle = guard.is_idle(&mut self.site.live);
        if let Ok(true) = idle {
            guard.look(&mut self.site);
            if guard.is_over() {
                self.guard = None;
            }
            self.count("common memory, looked at", begun);
        }
        // A device that has failed is not waited for.
        !matches!(idle, Ok(false))
    }

    fn make_own(&mut self, blocks: &[Address]) -> Result<(), OpError> {
        if !blocks.is_empty() {
            let begun = self.clock();
            self.await_device(blocks)?;
            self.count("common memory, waited for", begun);
            let begun = self.clock();
            self.make_all_own(blocks)?;
            self.count("common memory, made its own", begun);
            if let Some(guard) = &self.guard {
                guard.learn(blocks);
            }
        }
        if self.guard.as_ref().is_some_and(|it| it.is_over()) {
            self.guard = None;
        }
        Ok(())
    }

    /// Waits until nothing uses these blocks: the device has nothing to do, and no checkpoint reads them.
    fn await_device(&mut self, blocks: &[Address]) -> Result<(), OpError> {
        let begun = Instant::now();
        loop {
            let late = begun.elapsed() > READING;
            let read = self.gate.as_mut().is_some_and(|gate| {
                let kept = blocks.iter().filter(|it| !gate.lets_go(**it, late));
                kept.count() > 0
            });
            if let Some(guard) = &self.guard
                && !read
            {
                match guard.is_idle(&mut self.site.live) {
                    Ok(true) => return Ok(()),
                    Ok(false) => {}
                    Err(error) => return Err(told(&error)),
                }
            }
            if begun.elapsed() > PATIENCE {
                let why = "the device does not come to its end, and memory that other sessions have is to be written";
                return Err(self.condemn(why));
            }
            self.gone |= self.presence.has_died();
            if self.gone || self.condemned {
                let text = "the program has ended, or is about to start again";
                return Err(OpError::new(cu::CUDA_ERROR_UNKNOWN, text));
            }
            self.poll();
            pause_beside_device(TURN);
        }
    }

    fn make_all_own(&mut self, blocks: &[Address]) -> Result<(), OpError> {
        let until = Instant::now() + ROOM_TIME;
        loop {
            let Some(guard) = &mut self.guard else {
                return Ok(());
            };
            let Err(error) = guard.make_own(&mut self.site.live, blocks) else {
                return Ok(());
            };
            let error = told(&error);
            if error.code != cu::CUDA_ERROR_OUT_OF_MEMORY {
                // The block's address may have no memory now.
                return match ends_context(error.code) {
                    true => Err(error),
                    false => Err(self.condemn(&error.text)),
                };
            }
            if Instant::now() >= until {
                return Err(error);
            }
            self.poll();
            pause_beside_device(ROOM_TURN);
        }
    }

    /// Marks the session to be started again from its image, because it cannot go on.
    fn condemn(&mut self, why: &str) -> OpError {
        if let Some(guard) = &self.guard {
            guard.give_up(why);
            self.condemned = true;
        }
        OpError::new(cu::CUDA_ERROR_UNKNOWN, why)
    }
}

fn told(error: &EngineError) -> OpError {
    match error {
        EngineError::Driver { source, .. } => OpError::new(source.code, full_text(error)),
        _ => OpError::new(cu::CUDA_ERROR_UNKNOWN, full_text(error)),
    }
}
