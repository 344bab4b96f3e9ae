//! Events.
use core::ffi::c_uint;

use fermata_abi::sys::runtime::{cudaEvent_t, cudaStream_t};

use crate::context;
use crate::error::{Error, export};

export! {
    /// Creates an event with timing.
    fn cudaEventCreate(event: *mut cudaEvent_t) {
        if event.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuEventCreate(event.cast(), 0)
    }

    /// Creates an event; the flags are the driver's.
    fn cudaEventCreateWithFlags(event: *mut cudaEvent_t, flags: c_uint) {
        if event.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuEventCreate(event.cast(), flags)
    }

    /// Destroys an event.
    fn cudaEventDestroy(event: cudaEvent_t) {
        context::ready()?.cuEventDestroy_v2(event.cast())
    }

    /// Records an event.
    fn cudaEventRecord(event: cudaEvent_t, stream: cudaStream_t) {
        context::ready()?.cuEventRecord(event.cast(), stream.cast())
    }

    /// Records an event, as an external node during a capture if the flags say so.
    fn cudaEventRecordWithFlags(event: cudaEvent_t, stream: cudaStream_t, flags: c_uint) {
        context::ready()?.cuEventRecordWithFlags(event.cast(), stream.cast(), flags)
    }

    /// `cudaErrorNotReady` until the event has been reached.
    fn cudaEventQuery(event: cudaEvent_t) {
        context::ready()?.cuEventQuery(event.cast())
    }

    /// Waits until the event has been reached.
    fn cudaEventSynchronize(event: cudaEvent_t) {
        context::ready()?.cuEventSynchronize(event.cast())
    }

    /// Milliseconds between two events.
    fn cudaEventElapsedTime(milliseconds: *mut f32, start: cudaEvent_t, end: cudaEvent_t) {
        if milliseconds.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let calls = context::ready()?;
        match calls.cuEventElapsedTime_v2(milliseconds, start.cast(), end.cast()) {
            Err(Error::MISSING_DRIVER_FUNCTION) => {
                calls.cuEventElapsedTime(milliseconds, start.cast(), end.cast())
            }
            result => result,
        }
    }
}
