//! Copies between devices: one stream for what stays on its GPU and one for what goes to peers, neighbours joined.

use std::sync::Arc;

use fermata_device::{Driver, StreamHandle};

use crate::{AppError, Result};

/// Does not wait for the program's default stream, `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;

/// A copy that may still grow.
#[derive(Debug, Clone, Copy)]
struct Pending {
    /// Which of the two streams.
    stream: usize,
    from: u64,
    to: u64,
    bytes: u64,
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
        let stream = usize::from(to != self.own);
        if let Some(p) = &mut self.pending
            && p.stream == stream
            && p.from + p.bytes == from
            && p.to + p.bytes == target
        {
            p.bytes += bytes;
            return Ok(());
        }
        self.flush()?;
        self.pending = Some(Pending {
            stream,
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
        self.driver
            .copy(p.to, p.from, p.bytes, self.streams[p.stream])
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
