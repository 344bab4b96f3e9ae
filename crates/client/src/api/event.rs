//! Exported functions for events.

use core::ffi::c_uint;

use fermata_abi::op::{Op, ReplyBody};
use fermata_abi::sys::driver as sys;
use fermata_graph::NodeKind;

use crate::args::Out;
use crate::frame::entry::driver_api;
use crate::handles::to_pointer;
use crate::link;
use crate::object::context::current;
use crate::object::session::session;
use crate::result::Result;
use crate::work::capture;

const FLAGS: c_uint =
    sys::CU_EVENT_BLOCKING_SYNC | sys::CU_EVENT_DISABLE_TIMING | sys::CU_EVENT_INTERPROCESS;

driver_api! {
    fn cuEventCreate(event: Out<sys::CUevent>, flags: c_uint) {
        // Interprocess events cannot be timed.
        let timed_between = flags & (sys::CU_EVENT_INTERPROCESS | sys::CU_EVENT_DISABLE_TIMING) == sys::CU_EVENT_INTERPROCESS;
        if flags & !FLAGS != 0 || timed_between {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        event.set(to_pointer(session()?.events.create(&current()?, flags)?.handle))
    }

    fn cuEventDestroy(event: sys::CUevent) {
        let session = session()?;
        session.events.destroy(&session.graphs, event)
    }

    fn cuEventDestroy_v2(event: sys::CUevent) {
        let session = session()?;
        session.events.destroy(&session.graphs, event)
    }

    fn cuEventRecord(event: sys::CUevent, stream: sys::CUstream) {
        record(event, stream, 0)
    }

    fn cuEventRecordWithFlags(event: sys::CUevent, stream: sys::CUstream, flags: c_uint) {
        if flags & !sys::CU_EVENT_RECORD_EXTERNAL != 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        record(event, stream, flags)
    }

    fn cuEventQuery(event: sys::CUevent) {
        let session = session()?;
        let event = session.events.get(event)?.handle;
        capture::forbid_event(session, event)?;
        link::ask(&Op::EventQuery { event }, link::nothing)
    }

    fn cuEventSynchronize(event: sys::CUevent) {
        let session = session()?;
        let event = session.events.get(event)?.handle;
        capture::forbid_event(session, event)?;
        link::ask(&Op::EventSync { event }, link::nothing)?;
        session.managed.after_wait()
    }

    fn cuEventElapsedTime(milliseconds: Out<f32>, start: sys::CUevent, end: sys::CUevent) {
        milliseconds.set(elapsed(start, end)?)
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: sys::CUevent, end: sys::CUevent) {
        milliseconds.set(elapsed(start, end)?)
    }
}

fn record(given: sys::CUevent, stream: sys::CUstream, flags: u32) -> Result {
    let session = session()?;
    let event = session.events.get(given)?;
    let handled = if flags & sys::CU_EVENT_RECORD_EXTERNAL != 0 {
        let node = || Ok(NodeKind::EventRecord(session.events.get_for_graph(given)?));
        capture::add(session, stream, node)?
    } else {
        capture::record(session, stream, event.handle)?
    };
    if handled {
        return Ok(());
    }
    let stream = session.streams.resolve(stream)?;
    if stream.context != event.context.handle {
        return Err(sys::CUDA_ERROR_INVALID_HANDLE);
    }
    event.note_recorded();
    event.send(&Op::EventRecord {
        event: event.handle,
        stream,
        flags: 0,
    })
}

fn elapsed(start: sys::CUevent, end: sys::CUevent) -> Result<f32> {
    let events = &session()?.events;
    let (start, end) = (events.get(start)?, events.get(end)?);
    let untimed = (start.flags | end.flags) & sys::CU_EVENT_DISABLE_TIMING != 0;
    if untimed || start.context.handle != end.context.handle {
        return Err(sys::CUDA_ERROR_INVALID_HANDLE);
    }
    link::ask(
        &Op::EventElapsed {
            start: start.handle,
            end: end.handle,
        },
        |body| match body {
            ReplyBody::F32(value) => Ok(value),
            _ => Err(sys::CUDA_ERROR_UNKNOWN),
        },
    )
}
