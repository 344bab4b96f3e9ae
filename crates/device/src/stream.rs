//! Streams, events and what orders work.

use std::ffi::{c_char, c_void};

use fermata_abi::sys::driver as cu;

use crate::driver::Result;
use crate::{Driver, EventHandle, StreamHandle};

/// A priority that the driver makes the highest there is (`cuStreamCreateWithPriority`): blocks of such a stream's kernels
/// begin before waiting blocks of a program's, and it should not share a hardware queue with the program's streams.
pub const HIGHEST_PRIORITY: i32 = -100;

impl Driver {
    /// Creates a stream in the current context.
    ///
    /// # Errors
    /// What the driver says.
    pub fn create_stream(&self, flags: u32, priority: i32) -> Result<StreamHandle> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: the pointer refers to a live local.
        unsafe {
            self.f
                .cuStreamCreateWithPriority(&mut stream, flags, priority)?
        };
        Ok(StreamHandle::from_raw(stream))
    }

    /// Destroys a stream; its work goes on.
    ///
    /// # Errors
    /// What the driver says.
    pub fn destroy_stream(&self, stream: StreamHandle) -> Result<()> {
        self.f.cuStreamDestroy_v2(stream.raw())
    }

    /// Waits for a stream's work. Blocks.
    ///
    /// # Errors
    /// What the driver says, failures of earlier work included.
    pub fn synchronize_stream(&self, stream: StreamHandle) -> Result<()> {
        self.f.cuStreamSynchronize(stream.raw())
    }

    /// Whether all work of a stream has completed.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_READY` if not, or a failure of earlier work.
    pub fn query_stream(&self, stream: StreamHandle) -> Result<()> {
        self.f.cuStreamQuery(stream.raw())
    }

    /// Makes later work of a stream wait for an event.
    ///
    /// # Errors
    /// What the driver says.
    pub fn stream_wait(&self, stream: StreamHandle, event: EventHandle, flags: u32) -> Result<()> {
        self.f.cuStreamWaitEvent(stream.raw(), event.raw(), flags)
    }

    /// Creates an event in the current context.
    ///
    /// # Errors
    /// What the driver says.
    pub fn create_event(&self, flags: u32) -> Result<EventHandle> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the pointer refers to a live local.
        unsafe { self.f.cuEventCreate(&mut event, flags)? };
        Ok(EventHandle::from_raw(event))
    }

    /// Destroys an event.
    ///
    /// # Errors
    /// What the driver says.
    pub fn destroy_event(&self, event: EventHandle) -> Result<()> {
        self.f.cuEventDestroy_v2(event.raw())
    }

    /// The handle by which other processes open an event, which was made with `CU_EVENT_INTERPROCESS`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn event_handle(&self, event: EventHandle) -> Result<[u8; 64]> {
        let mut handle = cu::CUipcEventHandle::default();
        // SAFETY: the pointer refers to a live local.
        unsafe { self.f.cuIpcGetEventHandle(&mut handle, event.raw())? };
        Ok(handle.reserved.map(|byte| byte as u8))
    }

    /// Opens an event of another process in the current context.
    ///
    /// # Errors
    /// What the driver says.
    pub fn open_event(&self, handle: [u8; 64]) -> Result<EventHandle> {
        let reserved = handle.map(|byte| byte as c_char);
        let mut event = std::ptr::null_mut();
        let handle = cu::CUipcEventHandle { reserved };
        // SAFETY: the pointer refers to a live local; the handle is plain bytes, which the driver checks.
        unsafe { self.f.cuIpcOpenEventHandle(&mut event, handle)? };
        Ok(EventHandle::from_raw(event))
    }

    /// Records an event in a stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn record_event(&self, event: EventHandle, stream: StreamHandle, flags: u32) -> Result<()> {
        self.f
            .cuEventRecordWithFlags(event.raw(), stream.raw(), flags)
    }

    /// Whether an event has completed.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_READY` if not, or a failure of earlier work.
    pub fn query_event(&self, event: EventHandle) -> Result<()> {
        self.f.cuEventQuery(event.raw())
    }

    /// Waits for an event. Blocks.
    ///
    /// # Errors
    /// What the driver says, failures of earlier work included.
    pub fn synchronize_event(&self, event: EventHandle) -> Result<()> {
        self.f.cuEventSynchronize(event.raw())
    }

    /// Milliseconds from one event to another.
    ///
    /// # Errors
    /// What the driver says.
    pub fn elapsed(&self, start: EventHandle, end: EventHandle) -> Result<f32> {
        let mut milliseconds = 0.0;
        // SAFETY: the pointer refers to a live local.
        unsafe {
            self.f
                .cuEventElapsedTime(&mut milliseconds, start.raw(), end.raw())?
        };
        Ok(milliseconds)
    }

    /// Has `call` run on a thread of the driver when the stream gets there; the stream goes on when it returns.
    ///
    /// `call` must not use the driver.
    ///
    /// # Errors
    /// What the driver says; `call` is dropped then.
    pub fn launch_host(&self, stream: StreamHandle, call: Box<dyn FnOnce() + Send>) -> Result<()> {
        let data = Box::into_raw(Box::new(call));
        // SAFETY: `run_boxed` takes back exactly this box, once; the driver calls it once per launch.
        let launched = unsafe {
            self.f
                .cuLaunchHostFunc(stream.raw(), Some(run_boxed), data.cast::<c_void>())
        };
        if launched.is_err() {
            // SAFETY: the driver refused, so nobody else will take the box.
            drop(unsafe { Box::from_raw(data) });
        }
        launched
    }

    /// Writes a word when the stream gets there.
    ///
    /// # Errors
    /// What the driver says.
    pub fn write_value(
        &self,
        stream: StreamHandle,
        address: u64,
        value: u64,
        flags: u32,
        wide: bool,
    ) -> Result<()> {
        if wide {
            self.f
                .cuStreamWriteValue64_v2(stream.raw(), address, value, flags)
        } else {
            self.f
                .cuStreamWriteValue32_v2(stream.raw(), address, value as u32, flags)
        }
    }

    /// Holds the stream until a word compares as asked.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait_value(
        &self,
        stream: StreamHandle,
        address: u64,
        value: u64,
        flags: u32,
        wide: bool,
    ) -> Result<()> {
        if wide {
            self.f
                .cuStreamWaitValue64_v2(stream.raw(), address, value, flags)
        } else {
            self.f
                .cuStreamWaitValue32_v2(stream.raw(), address, value as u32, flags)
        }
    }
}

unsafe extern "C" fn run_boxed(data: *mut c_void) {
    // SAFETY: `data` is the box that `launch_host` gave away, and this is its one call.
    let call = unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) };
    // A panic must not cross into the driver; the caller of `launch_host` sees it as a call that never reported.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || (*call)()));
}
