//! Copies from one context to the host, several under way, each handed to the writers as it lands.

use std::collections::VecDeque;

use fermata_device::{ContextHandle, CopyEngine, Direction, InFlight, PinnedBuffer, PinnedPool};

use super::piece::{Block, Piece, Stretch};
use super::run::Run;
use crate::buffer::Buffer;
use crate::gpu::Gpu;
use crate::{AppError, Result};

/// Copies from a device under way at once.
const DEPTH: usize = 4;

/// See the top of this file.
pub(crate) struct Copies<'r> {
    run: &'r Run<'r>,
    gpu: &'r Gpu,
    engine: CopyEngine,
    /// Making it takes long: not before there is something to copy.
    pool: Option<PinnedPool>,
    flying: VecDeque<(usize, Vec<Block>, InFlight)>,
}

impl<'r> Copies<'r> {
    /// In a context, which becomes current.
    pub(crate) fn new(run: &'r Run<'r>, gpu: &'r Gpu, context: ContextHandle) -> Result<Self> {
        let mut engine = CopyEngine::new(&gpu.driver, context, Direction::ToHost)
            .map_err(AppError::device("copy from the device"))?;
        // The program may copy to the host itself meanwhile.
        engine.leave_gaps(true);
        Ok(Self {
            run,
            gpu,
            engine,
            pool: None,
            flying: VecDeque::new(),
        })
    }

    /// Starts to copy a stretch, which now lies at its address.
    pub(crate) fn start(&mut self, stretch: Stretch) -> Result<()> {
        let bytes = stretch.bytes();
        if bytes == 0 {
            return Ok(());
        }
        let buffer = self.buffer()?;
        let copy = self
            .engine
            .start(stretch.address, buffer, bytes)
            .map_err(AppError::device("copy from the device"))?;
        self.flying.push_back((stretch.target, stretch.parts, copy));
        if self.flying.len() >= DEPTH {
            self.land()?;
        }
        Ok(())
    }

    /// Waits for all that are under way.
    pub(crate) fn finish(mut self) -> Result<()> {
        while self.land()? {}
        Ok(())
    }

    fn buffer(&mut self) -> Result<PinnedBuffer> {
        let pool = match &self.pool {
            Some(pool) => pool.clone(),
            None => self.pool.insert(self.gpu.pool()?).clone(),
        };
        loop {
            if let Some(buffer) = pool.try_take() {
                return Ok(buffer);
            }
            if self.run.queue.failed() {
                return Err(self.run.late());
            }
            if !self.land()? {
                let limit = self.run.plan.limit;
                return pool.take(limit).ok_or_else(|| self.run.late());
            }
        }
    }

    /// Hands the oldest copy to the writers; false if there is none.
    fn land(&mut self) -> Result<bool> {
        let Some((target, parts, copy)) = self.flying.pop_front() else {
            return Ok(false);
        };
        let buffer = self
            .engine
            .finish(copy)
            .map_err(AppError::device("copy from the device"))?;
        self.run.queue.push(Piece {
            target,
            buffer: Buffer::Pinned(buffer),
            parts,
            checked: false,
        });
        Ok(true)
    }
}
