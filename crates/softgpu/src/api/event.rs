//! Exported functions for events.

use std::ffi::{c_float, c_uint};

use fermata_abi::sys::driver as cu;

use super::args::Out;
use super::init::driver;
use super::{to_handle, to_pointer};
use crate::capture;
use crate::context;
use crate::error::{INVALID_HANDLE, INVALID_VALUE, NOT_READY, Result};
use crate::event::Event;
use crate::stream::Stream;

fn record(event: cu::CUevent, stream: cu::CUstream, flags: c_uint) -> Result {
    let (stream, event) = (Stream::resolve(stream)?, Event::resolve(event)?);
    if flags & !cu::CU_EVENT_RECORD_EXTERNAL != 0 {
        return Err(INVALID_VALUE);
    }
    if stream.context.id != event.context.id {
        return Err(INVALID_HANDLE);
    }
    capture::record_event(&stream, &event, flags)
}

api! {
    fn cuEventCreate(out: Out<cu::CUevent>, flags: c_uint) {
        if out.is_null() {
            return Err(INVALID_VALUE);
        }
        Event::check_flags(flags)?;
        out.set(to_pointer(Event::create(&context::current()?, flags)?.handle))
    }

    fn cuEventRecord(event: cu::CUevent, stream: cu::CUstream) {
        record(event, stream, 0)
    }

    fn cuEventRecordWithFlags(event: cu::CUevent, stream: cu::CUstream, flags: c_uint) {
        record(event, stream, flags)
    }

    fn cuEventQuery(event: cu::CUevent) {
        let event = Event::resolve(event)?;
        event.context.check()?;
        capture::forbid_captured(&event)?;
        if !event.done() {
            return Err(NOT_READY);
        }
        event.context.flush_output();
        event.context.check()
    }

    fn cuEventSynchronize(event: cu::CUevent) {
        let event = Event::resolve(event)?;
        event.context.check()?;
        capture::forbid_captured(&event)?;
        event.synchronize()
    }

    fn cuEventDestroy_v2 | fn cuEventDestroy(event: cu::CUevent) {
        let gone = driver()?.events().remove(to_handle(event)).ok_or(INVALID_HANDLE)?;
        capture::forget_event(to_handle(event));
        gone.context.check()
    }

    fn cuEventElapsedTime_v2 | fn cuEventElapsedTime(
        milliseconds: Out<c_float>,
        start: cu::CUevent,
        end: cu::CUevent,
    ) {
        let (start, end) = (Event::resolve(start)?, Event::resolve(end)?);
        start.context.check()?;
        capture::forbid_captured(&start)?;
        capture::forbid_captured(&end)?;
        milliseconds.set(Event::elapsed(&start, &end)?)
    }
}
