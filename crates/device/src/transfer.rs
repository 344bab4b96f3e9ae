//! Copies between device memory and pinned host memory, many in flight.

use std::sync::Arc;

use fermata_abi::sys::driver as cu;

use crate::driver::Result;
use crate::{
    ContextHandle, CopyBox, CopySide, Driver, Endpoint, EventHandle, PinnedBuffer, StreamHandle,
};

/// Which way data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the device to the host.
    ToHost,
    /// From the host to the device.
    ToDevice,
}

/// A stream of its own in one context for one direction. Whichever thread uses it must have the context
/// current.
pub struct CopyEngine {
    driver: Arc<Driver>,
    context: ContextHandle,
    stream: StreamHandle,
    direction: Direction,
    spare: Vec<EventHandle>,
}

/// A copy under way; it owns its end in host memory. Dropping one before it is waited for waits for it.
#[must_use]
pub struct InFlight {
    driver: Arc<Driver>,
    context: ContextHandle,
    event: Option<EventHandle>,
    buffer: Option<PinnedBuffer>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(event) = self.event.take() {
            // The buffer must not go back while the device may touch it; a failed device touches nothing.
            let _ = self.driver.set_current(self.context);
            let _ = self.driver.synchronize_event(event);
            let _ = self.driver.destroy_event(event);
        }
    }
}

impl CopyEngine {
    /// An engine in `context`, which becomes current.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(driver: &Arc<Driver>, context: ContextHandle, direction: Direction) -> Result<Self> {
        driver.set_current(context)?;
        let stream = driver.create_stream(cu::CU_STREAM_NON_BLOCKING, 0)?;
        Ok(Self {
            driver: Arc::clone(driver),
            context,
            stream,
            direction,
            spare: Vec::new(),
        })
    }

    /// Starts copying `len` bytes between `address` and the start of `buffer`.
    ///
    /// # Errors
    /// What the driver says. Panics if the buffer is shorter than `len`.
    pub fn start(&mut self, address: u64, buffer: PinnedBuffer, len: usize) -> Result<InFlight> {
        assert!(len <= buffer.len(), "a piece fits its buffer");
        let stream = self.stream.raw();
        // SAFETY: the buffer is pinned memory of at least `len` bytes, owned by the copy until it is done.
        unsafe {
            match self.direction {
                Direction::ToHost => {
                    self.driver
                        .f
                        .cuMemcpyDtoHAsync_v2(buffer.as_void(), address, len, stream)?
                }
                Direction::ToDevice => {
                    self.driver
                        .f
                        .cuMemcpyHtoDAsync_v2(address, buffer.as_void(), len, stream)?
                }
            }
        }
        self.mark(buffer)
    }

    /// Starts copying `rows` rows of `width` bytes, from row `y` of slice `z` of an array, packed in `buffer`.
    ///
    /// # Errors
    /// What the driver says. Panics if the buffer is too short.
    pub fn start_array(
        &mut self,
        array: crate::ArrayHandle,
        (y, z): (u64, u64),
        (width, rows): (u64, u64),
        buffer: PinnedBuffer,
    ) -> Result<InFlight> {
        assert!(
            width * rows <= buffer.len() as u64,
            "a piece fits its buffer"
        );
        let side = |endpoint, y, z| CopySide {
            endpoint,
            x: 0,
            y,
            z,
            pitch: width,
            rows,
        };
        let array = side(Endpoint::Array(array), y, z);
        let host = side(Endpoint::Address(buffer.address()), 0, 0);
        let (to, from) = match self.direction {
            Direction::ToHost => (host, array),
            Direction::ToDevice => (array, host),
        };
        self.driver.copy_box(
            &CopyBox {
                to,
                from,
                width,
                height: rows,
                depth: 1,
            },
            self.stream,
        )?;
        self.mark(buffer)
    }

    fn mark(&mut self, buffer: PinnedBuffer) -> Result<InFlight> {
        let event = match self.spare.pop() {
            Some(event) => event,
            None => self.driver.create_event(cu::CU_EVENT_DISABLE_TIMING)?,
        };
        self.driver.record_event(event, self.stream, 0)?;
        Ok(InFlight {
            driver: Arc::clone(&self.driver),
            context: self.context,
            event: Some(event),
            buffer: Some(buffer),
        })
    }

    /// Waits for a copy and gives its buffer back. Blocks.
    ///
    /// # Errors
    /// What the driver says, the copy's failure included.
    pub fn finish(&mut self, mut copy: InFlight) -> Result<PinnedBuffer> {
        let (Some(event), Some(buffer)) = (copy.event.take(), copy.buffer.take()) else {
            unreachable!("a copy is finished once");
        };
        self.driver.synchronize_event(event)?;
        self.spare.push(event);
        Ok(buffer)
    }
}

impl Drop for CopyEngine {
    fn drop(&mut self) {
        // A dead context cannot give anything back, and ends with the process.
        let _ = self.driver.set_current(self.context);
        let _ = self.driver.synchronize_stream(self.stream);
        for event in self.spare.drain(..) {
            let _ = self.driver.destroy_event(event);
        }
        let _ = self.driver.destroy_stream(self.stream);
    }
}
