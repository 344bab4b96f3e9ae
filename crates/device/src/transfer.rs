//! Copies between device memory and pinned host memory, many in flight.

use std::sync::Arc;

use fermata_abi::sys::driver as cu;

use crate::driver::Result;
use crate::{
    ContextHandle, CopyBox, CopySide, Driver, Endpoint, EventHandle, PinnedBuffer, SharedSpan,
    Span, StreamHandle,
};

/// Which way data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the device to the host.
    ToHost,
    /// From the host to the device.
    ToDevice,
}

/// The host memory at one end of a copy.
pub enum HostEnd {
    /// A buffer of a pool.
    Buffer(PinnedBuffer),
    /// Part of a window that is written.
    Span(Span),
    /// Part of a window that is read.
    Shared(SharedSpan),
}

impl HostEnd {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Buffer(buffer) => buffer,
            Self::Span(span) => span,
            Self::Shared(span) => span,
        }
    }
}

/// A stream of its own in one context for one direction, in which copies follow each other. Whichever thread uses it must have the
/// context current.
///
/// The device's engine for a direction stays with a stream as long as that has copies that are ready. Copies of other streams of the
/// process wait until then, so those that come one right after the other may leave gaps ([`CopyEngine::leave_gaps`]).
pub struct CopyEngine {
    driver: Arc<Driver>,
    context: ContextHandle,
    /// The stream of the last copy.
    stream: StreamHandle,
    gaps: bool,
    /// Once gaps have been left: the stream of the next copy, and an event by which that waits for the last one.
    other: Option<(StreamHandle, EventHandle)>,
    direction: Direction,
    spare: Vec<EventHandle>,
}

/// A copy under way; it owns its end in host memory. Dropping one before it is waited for waits for it.
#[must_use]
pub struct InFlight {
    driver: Arc<Driver>,
    context: ContextHandle,
    event: Option<EventHandle>,
    end: Option<HostEnd>,
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
            gaps: false,
            other: None,
            direction,
            spare: Vec::new(),
        })
    }

    /// Whether copies begun from now on leave gaps: two streams take turns, and each copy waits for the one before it. In between
    /// no copy of this engine is ready, so the device serves other streams, however many copies are under way here.
    pub fn leave_gaps(&mut self, gaps: bool) {
        self.gaps = gaps;
    }

    /// The stream of the next copy, which becomes that of the last one.
    fn next_stream(&mut self) -> Result<cu::CUstream> {
        if !self.gaps {
            return Ok(self.stream.raw());
        }
        let (next, event) = match self.other {
            Some(other) => other,
            None => *self.other.insert((
                self.driver.create_stream(cu::CU_STREAM_NON_BLOCKING, 0)?,
                self.driver.create_event(cu::CU_EVENT_DISABLE_TIMING)?,
            )),
        };
        self.driver.record_event(event, self.stream, 0)?;
        self.driver.stream_wait(next, event, 0)?;
        self.other = Some((self.stream, event));
        self.stream = next;
        Ok(next.raw())
    }

    /// Starts copying `len` bytes between `address` and the start of `buffer`.
    ///
    /// # Errors
    /// What the driver says. Panics if the buffer is shorter than `len`.
    pub fn start(&mut self, address: u64, buffer: PinnedBuffer, len: usize) -> Result<InFlight> {
        assert!(len <= buffer.len(), "a piece fits its buffer");
        let stream = self.next_stream()?;
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
        self.mark(HostEnd::Buffer(buffer))
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
        self.next_stream()?;
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
        self.mark(HostEnd::Buffer(buffer))
    }

    /// Starts filling spans, one after the other, from `address` on the device on: those that are neighbours in one window with
    /// one copy. Returns a copy for each. The direction must be to the host.
    ///
    /// # Errors
    /// What the driver says. Panics if the engine copies the other way.
    pub fn start_into(&mut self, address: u64, spans: Vec<Span>) -> Result<Vec<InFlight>> {
        assert_eq!(self.direction, Direction::ToHost);
        let stream = self.next_stream()?;
        let mut from = address;
        for (part, len) in Span::parts_of(&spans) {
            let to = part as *mut std::ffi::c_void;
            // SAFETY: the part is mapped and registered, and the spans, which the copies own until they are done,
            // are its only users.
            let started = unsafe {
                self.driver
                    .f
                    .cuMemcpyDtoHAsync_v2(to, from, len as usize, stream)
            };
            self.or_settle(started)?;
            from += len;
        }
        let ends = spans.into_iter().map(HostEnd::Span);
        ends.map(|end| self.mark(end)).collect()
    }

    /// Starts copying a shared span to `address` on the device. The direction must be to the device.
    ///
    /// # Errors
    /// What the driver says. Panics if the engine copies the other way.
    pub fn start_from(&mut self, address: u64, span: SharedSpan) -> Result<InFlight> {
        assert_eq!(self.direction, Direction::ToDevice);
        let stream = self.next_stream()?;
        let mut to = address;
        for (part, len) in span.parts() {
            let from = part as *const std::ffi::c_void;
            // SAFETY: the part is mapped and registered, and only read while the copy owns the span.
            let started = unsafe {
                self.driver
                    .f
                    .cuMemcpyHtoDAsync_v2(to, from, len as usize, stream)
            };
            self.or_settle(started)?;
            to += len;
        }
        self.mark(HostEnd::Shared(span))
    }

    /// Nothing may be under way to memory that is given back because of an error.
    fn or_settle<T>(&self, started: Result<T>) -> Result<T> {
        if started.is_err() {
            // The first error is the one to report.
            let _ = self.driver.synchronize_stream(self.stream);
        }
        started
    }

    fn mark(&mut self, end: HostEnd) -> Result<InFlight> {
        let event = match self.spare.pop() {
            Some(event) => Ok(event),
            None => self.driver.create_event(cu::CU_EVENT_DISABLE_TIMING),
        };
        let marked = event.and_then(|event| {
            self.driver.record_event(event, self.stream, 0)?;
            Ok(event)
        });
        let event = self.or_settle(marked)?;
        Ok(InFlight {
            driver: Arc::clone(&self.driver),
            context: self.context,
            event: Some(event),
            end: Some(end),
        })
    }

    /// Waits for a copy and gives its end in host memory back. Blocks.
    ///
    /// # Errors
    /// What the driver says, the copy's failure included.
    pub fn finish(&mut self, mut copy: InFlight) -> Result<HostEnd> {
        let (Some(event), Some(end)) = (copy.event.take(), copy.end.take()) else {
            unreachable!("a copy is finished once");
        };
        self.driver.synchronize_event(event)?;
        self.spare.push(event);
        Ok(end)
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
        if let Some((stream, event)) = self.other.take() {
            let _ = self.driver.synchronize_stream(stream);
            let _ = self.driver.destroy_event(event);
            let _ = self.driver.destroy_stream(stream);
        }
    }
}
