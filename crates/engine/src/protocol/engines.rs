//! Copies pieces, with a copy engine for each device in use.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use fermata_device::{
    CopyEngine, Direction, HostEnd, InFlight, PinnedBuffer, PinnedPool, SharedSpan, Span,
    StreamHandle,
};

use super::{Piece, Source};
use crate::EngineError;
use crate::live::Reach;

/// A copy engine for each device in use, and the buffers they share. Usable from any thread, one at a time;
/// each call makes the context it needs current.
pub(crate) struct Engines {
    reach: Reach,
    direction: Direction,
    gaps: bool,
    engines: HashMap<u32, CopyEngine>,
}

impl Engines {
    pub(crate) fn new(reach: Reach, direction: Direction) -> Self {
        Self {
            reach,
            direction,
            gaps: false,
            engines: HashMap::new(),
        }
    }

    /// Whether copies begun from now on leave gaps for copies of the program; see [`CopyEngine::leave_gaps`].
    pub(crate) fn leave_gaps(&mut self, gaps: bool) {
        self.gaps = gaps;
    }

    /// The buffers.
    pub(crate) fn pool(&self) -> Result<&PinnedPool, EngineError> {
        let missing = || EngineError::Internal("there are no staging buffers".to_owned());
        self.reach.staging.as_ref().ok_or_else(missing)
    }

    /// Where a piece is copied: its device, and its array if it is of one.
    fn engine(&mut self, piece: &Piece) -> Result<&mut CopyEngine, EngineError> {
        let device = match piece.source {
            Source::Device { device, .. } => device,
            Source::Array { array, .. } => self.reach.array(array)?.1,
            Source::Host { .. } => {
                return Err(EngineError::Internal(
                    "host memory needs no device".to_owned(),
                ));
            }
        };
        let context = self.reach.context(device)?;
        let driver = &self.reach.driver;
        let operation = || format!("copy from or to device {device}");
        if let Entry::Vacant(entry) = self.engines.entry(device) {
            let engine = CopyEngine::new(driver, context, self.direction);
            entry.insert(engine.map_err(EngineError::driver(operation()))?);
        }
        driver
            .set_current(context)
            .map_err(EngineError::driver(operation()))?;
        let engine = self.engines.get_mut(&device);
        let engine = engine.ok_or_else(|| EngineError::Internal(operation()))?;
        engine.leave_gaps(self.gaps);
        Ok(engine)
    }

    /// Starts copying a piece between its place and `buffer`.
    pub(crate) fn start(
        &mut self,
        piece: &Piece,
        buffer: PinnedBuffer,
    ) -> Result<InFlight, EngineError> {
        match piece.source {
            Source::Array {
                array,
                y,
                z,
                width,
                rows,
            } => {
                let (handle, _) = self.reach.array(array)?;
                let engine = self.engine(piece)?;
                let started = engine.start_array(handle, (y, z), (width, rows), buffer);
                started.map_err(EngineError::driver(format!("copy array {array:#x}")))
            }
            Source::Device { address, .. }
            | Source::Host {
                region: address, ..
            } => {
                let started = self.engine(piece)?.start(address.raw(), buffer, piece.len);
                started.map_err(EngineError::driver(format!(
                    "copy {} bytes at {address:#x}",
                    piece.len
                )))
            }
        }
    }

    /// Starts copying pieces of device memory, of which each begins where the one before ends, straight into spans of their
    /// lengths.
    pub(crate) fn start_into(
        &mut self,
        first: &Piece,
        spans: Vec<Span>,
    ) -> Result<Vec<InFlight>, EngineError> {
        let address = first.device_address()?;
        let bytes: usize = spans.iter().map(|span| span.len()).sum();
        let started = self.engine(first)?.start_into(address, spans);
        started.map_err(EngineError::driver(format!(
            "copy {bytes} bytes at {address:#x}"
        )))
    }

    /// Starts copying a span straight to a piece of device memory of its length.
    pub(crate) fn start_from(
        &mut self,
        piece: &Piece,
        span: SharedSpan,
    ) -> Result<InFlight, EngineError> {
        let address = piece.device_address()?;
        let started = self.engine(piece)?.start_from(address, span);
        started.map_err(EngineError::driver(format!(
            "copy {} bytes to {address:#x}",
            piece.len
        )))
    }

    /// Waits for a copy.
    pub(crate) fn finish(&mut self, piece: &Piece, copy: InFlight) -> Result<HostEnd, EngineError> {
        let operation = format!("copy buffer {} at offset {}", piece.buffer, piece.offset);
        self.engine(piece)?
            .finish(copy)
            .map_err(EngineError::driver(operation))
    }

    /// Fills a piece of plain device memory with zeros. New host memory is zero.
    pub(crate) fn zero(&mut self, piece: &Piece) -> Result<(), EngineError> {
        let Source::Device { address, .. } = piece.source else {
            return Ok(());
        };
        self.engine(piece)?;
        let legacy = StreamHandle::LEGACY;
        let filled = self
            .reach
            .driver
            .fill(address.raw(), 0, 1, 0, piece.len as u64, 1, legacy);
        filled.map_err(EngineError::driver(format!(
            "clear {} bytes at {address:#x}",
            piece.len
        )))
    }

    /// Waits for everything on every device that was used.
    pub(crate) fn settle(&mut self) -> Result<(), EngineError> {
        let driver = &self.reach.driver;
        for device in self.engines.keys() {
            for context in self.reach.contexts(*device) {
                let idle = driver
                    .set_current(*context)
                    .and_then(|()| driver.synchronize_context());
                idle.map_err(EngineError::driver(format!(
                    "finish the copies of device {device}"
                )))?;
            }
        }
        Ok(())
    }
}
