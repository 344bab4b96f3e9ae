//! Copies between devices: one stream for what stays on its GPU and one for what goes to peers, neighbours joined.

use std::sync::Arc;

use fermata_device::{Driver, StreamHandle};

use crate::{AppError, Result};

/// Does not wait for the program's default stream, `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;

/// A copy that may still grow.
#[derive(Debug, Clone, Copy)]
struct Pending {
    /// The GPU whose room it goes to.
    gpu: usize,
    from: u64,
    to: u64,
    bytes: u64,
}

impl Pending {
    /// Whether what is copied from `from` to `to` in the staging area of `gpu` goes on where this ends. Staging areas of
    /// two GPUs may lie side by side, and one copy over both takes a slow path of the driver's.
    fn goes_on(&self, gpu: usize, from: u64, to: u64) -> bool {
        self.gpu == gpu && self.from + self.bytes == from && self.to + self.bytes == to
    }
}

/// See the top of this file. Streams belong to the context that was current when they were made.
pub(crate) struct Streams {
    driver: Arc<Driver>,
    /// The number of the GPU that sends.
    own: usize,
    streams: [StreamHandle; 2],
    pending: Option<Pending>,
}

impl Streams {
    /// For the GPU `own`, whose context is current.
    pub(crate) fn new(driver: &Arc<Driver>, own: usize) -> Result<Self> {
        let create = || {
            driver
                .create_stream(NON_BLOCKING, 0)
                .map_err(AppError::device("create a stream"))
        };
        let first = create()?;
        let second = create().inspect_err(|_| drop(driver.destroy_stream(first)))?;
        Ok(Self {
            driver: Arc::clone(driver),
            own,
            streams: [first, second],
            pending: None,
        })
    }

    /// Copies `bytes` to the room of GPU `to` at `target`, now or with the next ones.
    pub(crate) fn copy(&mut self, to: usize, from: u64, target: u64, bytes: u64) -> Result<()> {
        if let Some(p) = &mut self.pending
            && p.goes_on(to, from, target)
        {
            p.bytes += bytes;
            return Ok(());
        }
        self.flush()?;
        self.pending = Some(Pending {
            gpu: to,
            from,
            to: target,
            bytes,
        });
        Ok(())
    }

    /// Starts what has not been started yet.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let Some(p) = self.pending.take() else {
            return Ok(());
        };
        let stream = self.streams[usize::from(p.gpu != self.own)];
        self.driver
            .copy(p.to, p.from, p.bytes, stream)
            .map_err(AppError::device("copy on the device"))
    }

    /// Waits for all of it, also after a failure.
    pub(crate) fn end(self) -> Result<()> {
        let ended = self.streams.map(|s| self.driver.synchronize_stream(s));
        for stream in self.streams {
            let _ = self.driver.destroy_stream(stream);
        }
        ended
            .into_iter()
            .collect::<std::result::Result<(), _>>()
            .map_err(AppError::device("copy on the device"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_joined_within_one_room_only() {
        let pending = Pending {
            gpu: 1,
            from: 0x1000,
            to: 0x9000,
            bytes: 0x200,
        };
        assert!(pending.goes_on(1, 0x1200, 0x9200));
        assert!(!pending.goes_on(2, 0x1200, 0x9200), "another GPU's room");
        assert!(!pending.goes_on(1, 0x1200, 0x9400));
        assert!(!pending.goes_on(1, 0x1400, 0x9200));
    }
}
