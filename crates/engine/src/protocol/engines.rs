//! Copies of pieces, with a copy engine for each device in use.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use fermata_device::{CopyEngine, Direction, InFlight, PinnedBuffer, PinnedPool, StreamHandle};

use super::{Piece, Source};
use crate::{EngineError, Live};

/// A copy engine for each device in use, and the buffers they share.
pub(crate) struct Engines<'d> {
    live: &'d Live,
    direction: Direction,
    engines: HashMap<u32, CopyEngine<'d>>,
}

impl<'d> Engines<'d> {
    pub(crate) fn new(live: &'d Live, direction: Direction) -> Self {
        Self {
            live,
            direction,
            engines: HashMap::new(),
        }
    }

    /// The buffers.
    pub(crate) fn pool(&self) -> Result<&'d PinnedPool, EngineError> {
        let missing = || EngineError::Internal("there are no staging buffers".to_owned());
        self.live.staging.as_ref().ok_or_else(missing)
    }

    /// Where a piece is copied: its device, and its array if it is of one.
    fn engine(&mut self, piece: &Piece) -> Result<&mut CopyEngine<'d>, EngineError> {
        let device = match piece.source {
            Source::Device { device, .. } => device,
            Source::Array { array, .. } => {
                let context = self.live.arrays.get(&array).map(|(_, context)| *context);
                let found = context.and_then(|context| self.live.contexts.get(&context));
                found
                    .ok_or_else(|| {
                        EngineError::Internal(format!("array {array:#x} has no context"))
                    })?
                    .device
            }
            Source::Host { .. } => {
                return Err(EngineError::Internal(
                    "host memory needs no device".to_owned(),
                ));
            }
        };
        let live = self.live;
        let context = live
            .contexts
            .values()
            .filter(|it| it.device == device)
            .min_by_key(|it| it.handle);
        let context = context
            .ok_or_else(|| EngineError::Internal(format!("device {device} has no context")))?
            .handle;
        let operation = || format!("copy from or to device {device}");
        if let Entry::Vacant(entry) = self.engines.entry(device) {
            let engine = CopyEngine::new(&live.driver, context, self.direction);
            entry.insert(engine.map_err(EngineError::driver(operation()))?);
        }
        live.driver
            .set_current(context)
            .map_err(EngineError::driver(operation()))?;
        self.engines
            .get_mut(&device)
            .ok_or_else(|| EngineError::Internal(operation()))
    }

    /// Starts copying a piece between its place and `buffer`.
    pub(crate) fn start(
        &mut self,
        piece: &Piece,
        buffer: PinnedBuffer,
    ) -> Result<InFlight<'d>, EngineError> {
        let live = self.live;
        let engine = self.engine(piece)?;
        match piece.source {
            Source::Array {
                array,
                y,
                z,
                width,
                rows,
            } => {
                let handle = live
                    .array(array)
                    .map_err(EngineError::driver("copy an array"))?;
                let started = engine.start_array(handle, (y, z), (width, rows), buffer);
                started.map_err(EngineError::driver(format!("copy array {array:#x}")))
            }
            Source::Device { address, .. }
            | Source::Host {
                region: address, ..
            } => {
                let started = engine.start(address, buffer, piece.len);
                started.map_err(EngineError::driver(format!(
                    "copy {} bytes at {address:#x}",
                    piece.len
                )))
            }
        }
    }

    /// Waits for a copy.
    pub(crate) fn finish(
        &mut self,
        piece: &Piece,
        copy: InFlight<'d>,
    ) -> Result<PinnedBuffer, EngineError> {
        let operation = format!("copy buffer {} at offset {}", piece.buffer, piece.offset);
        self.engine(piece)?
            .finish(copy)
            .map_err(EngineError::driver(operation))
    }

    /// Fills a device piece with zeros.
    pub(crate) fn zero(&mut self, piece: &Piece) -> Result<(), EngineError> {
        let Source::Device { address, .. } = piece.source else {
            return Ok(());
        };
        let live = self.live;
        self.engine(piece)?;
        let legacy = StreamHandle::LEGACY;
        let filled = live
            .driver
            .fill(address, 0, 1, 0, piece.len as u64, 1, legacy);
        filled.map_err(EngineError::driver(format!(
            "clear {} bytes at {address:#x}",
            piece.len
        )))
    }

    /// Waits for everything on every device that was used.
    pub(crate) fn settle(&mut self) -> Result<(), EngineError> {
        for device in self.engines.keys() {
            let contexts = self
                .live
                .contexts
                .values()
                .filter(|it| it.device == *device);
            for context in contexts {
                let idle = self
                    .live
                    .driver
                    .set_current(context.handle)
                    .and_then(|()| self.live.driver.synchronize_context());
                idle.map_err(EngineError::driver(format!(
                    "finish the copies of device {device}"
                )))?;
            }
        }
        Ok(())
    }
}
