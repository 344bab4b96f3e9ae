//! Exported functions for streams.

use core::ffi::{c_int, c_uint, c_ulonglong};

use fermata_abi::op::{Address, Op, StreamRef};
use fermata_abi::sys::driver as sys;
use fermata_graph::{MemOp, MemOpKind, NodeKind};

use crate::args::Out;
use crate::frame::entry::driver_api;
use crate::handles::{of, to_pointer};
use crate::link;
use crate::link::fault;
use crate::object::context::{Context, current};
use crate::object::session::session;
use crate::object::stream::Stream;
use crate::result::Result;
use crate::work::capture;

driver_api! {
    fn cuStreamCreate(stream: Out<sys::CUstream>, flags: c_uint) {
        check_flags(flags)?;
        stream.set(to_pointer(session()?.streams.create(&current()?, flags, 0)?.handle))
    }

    fn cuStreamCreateWithPriority(stream: Out<sys::CUstream>, flags: c_uint, priority: c_int) {
        check_flags(flags)?;
        let priority = priority.clamp(-5, 0);
        stream.set(to_pointer(session()?.streams.create(&current()?, flags, priority)?.handle))
    }

    fn cuStreamDestroy(stream: sys::CUstream) {
        let session = session()?;
        session.streams.destroy(&session.graphs, of(stream))
    }

    fn cuStreamDestroy_v2(stream: sys::CUstream) {
        let session = session()?;
        session.streams.destroy(&session.graphs, of(stream))
    }

    fn cuStreamSynchronize(stream: sys::CUstream) {
        let session = session()?;
        capture::forbid_on(session, stream)?;
        let stream = session.streams.resolve(stream)?;
        link::ask(&Op::StreamSync { stream }, link::nothing)?;
        session.managed.after_wait()
    }

    fn cuStreamQuery(stream: sys::CUstream) {
        let session = session()?;
        capture::forbid_on(session, stream)?;
        let stream = session.streams.resolve(stream)?;
        link::ask(&Op::StreamQuery { stream }, link::nothing)
    }

    fn cuStreamWaitEvent(stream: sys::CUstream, event: sys::CUevent, flags: c_uint) {
        let session = session()?;
        let (given, event) = (event, session.events.get(event)?);
        if flags & !sys::CU_EVENT_WAIT_EXTERNAL != 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let external = flags & sys::CU_EVENT_WAIT_EXTERNAL != 0;
        let handled = if external {
            capture::add(session, stream, || Ok(NodeKind::EventWait(session.events.get_for_graph(given)?)))?
        } else {
            capture::wait(session, stream, event.handle, event.is_recorded())?
        };
        if handled {
            return Ok(());
        }
        let stream = session.streams.resolve(stream)?;
        event.send(&Op::StreamWait { stream, event: event.handle, flags: 0 })
    }

    fn cuStreamGetFlags(stream: sys::CUstream, flags: Out<c_uint>) {
        fault::check_current()?;
        let stream = session()?.streams.get(stream)?;
        let is_default = |stream: &Stream| {
            stream.context.green.as_ref().is_some_and(|green| green.default == stream.handle)
        };
        let created = stream.filter(|stream| !is_default(stream));
        flags.set(created.map_or(sys::CU_STREAM_DEFAULT, |stream| stream.flags))
    }

    fn cuStreamGetPriority(stream: sys::CUstream, priority: Out<c_int>) {
        fault::check_current()?;
        let stream = session()?.streams.get(stream)?;
        priority.set(stream.map_or(0, |stream| stream.priority))
    }

    fn cuStreamGetId(stream: sys::CUstream, id: Out<c_ulonglong>) {
        let session = session()?;
        id.set(session.streams.id(&*session.streams.context_of(stream)?, stream)?)
    }

    fn cuStreamGetCtx(stream: sys::CUstream, context: Out<sys::CUcontext>) {
        context.set(session()?.streams.context_of(stream)?.pointer())
    }

    fn cuStreamGetCtx_v2(
        stream: sys::CUstream,
        context: Out<sys::CUcontext>,
        green: Out<sys::CUgreenCtx>,
    ) {
        let own = session()?.streams.context_of(stream)?;
        context.set(to_pointer(own.handle))?;
        green.set_if_wanted(green_of(&own));
        Ok(())
    }

    fn cuStreamGetGreenCtx(stream: sys::CUstream, green: Out<sys::CUgreenCtx>) {
        let stream = session()?.streams.get(stream)?;
        green.set(stream.map_or(core::ptr::null_mut(), |stream| green_of(&stream.context)))
    }

    fn cuStreamGetDevice(stream: sys::CUstream, device: Out<sys::CUdevice>) {
        device.set(session()?.streams.context_of(stream)?.device)
    }

    fn cuStreamWriteValue32(stream: sys::CUstream, address: sys::CUdeviceptr, value: sys::cuuint32_t, flags: c_uint) {
        write_value(stream, address, value.into(), flags, false)
    }

    fn cuStreamWriteValue32_v2(stream: sys::CUstream, address: sys::CUdeviceptr, value: sys::cuuint32_t, flags: c_uint) {
        write_value(stream, address, value.into(), flags, false)
    }

    fn cuStreamWriteValue64(stream: sys::CUstream, address: sys::CUdeviceptr, value: sys::cuuint64_t, flags: c_uint) {
        write_value(stream, address, value, flags, true)
    }

    fn cuStreamWriteValue64_v2(stream: sys::CUstream, address: sys::CUdeviceptr, value: sys::cuuint64_t, flags: c_uint) {
        write_value(stream, address, value, flags, true)
    }

    fn cuStreamWaitValue32(stream: sys::CUstream, address: sys::CUdeviceptr, value: sys::cuuint32_t, flags: c_uint) {
        wait_value(stream, address, value.into(), flags, false)
    }

    fn cuStreamWaitValue32_v2(stream: sys::CUstream, address: sys::CUdeviceptr, value: sys::cuuint32_t, flags: c_uint) {
        wait_value(stream, address, value.into(), flags, false)
    }

    fn cuStreamWaitValue64(stream: sys::CUstream, address: sys::CUdeviceptr, value: sys::cuuint64_t, flags: c_uint) {
        wait_value(stream, address, value, flags, true)
    }

    fn cuStreamWaitValue64_v2(stream: sys::CUstream, address: sys::CUdeviceptr, value: sys::cuuint64_t, flags: c_uint) {
        wait_value(stream, address, value, flags, true)
    }
}

fn green_of(context: &Context) -> sys::CUgreenCtx {
    let green = context.green.as_ref();
    green.map_or(core::ptr::null_mut(), |green| to_pointer(green.handle))
}

fn check_flags(flags: c_uint) -> Result {
    if flags & !sys::CU_STREAM_NON_BLOCKING == 0 {
        Ok(())
    } else {
        Err(sys::CUDA_ERROR_INVALID_VALUE)
    }
}

fn write_value(stream: sys::CUstream, address: u64, value: u64, flags: u32, wide: bool) -> Result {
    let operation = MemOp {
        kind: MemOpKind::Write,
        address,
        value,
        flags,
        wide,
    };
    let Some(stream) = checked(stream, operation)? else {
        return Ok(());
    };
    link::post(&Op::WriteValue {
        stream,
        address: Address::from_raw(address),
        value,
        flags,
        wide,
    })
}

fn wait_value(stream: sys::CUstream, address: u64, value: u64, flags: u32, wide: bool) -> Result {
    let operation = MemOp {
        kind: MemOpKind::Wait,
        address,
        value,
        flags,
        wide,
    };
    let Some(stream) = checked(stream, operation)? else {
        return Ok(());
    };
    link::post(&Op::WaitValue {
        stream,
        address: Address::from_raw(address),
        value,
        flags,
        wide,
    })
}

/// The stream for an operation on a word; `None` if it has been captured.
fn checked(stream: sys::CUstream, operation: MemOp) -> Result<Option<StreamRef>> {
    let session = session()?;
    let bytes = if operation.wide { 8 } else { 4 };
    let address = Address::from_raw(operation.address);
    if !address.is_multiple_of(bytes) || !session.memory.holds(address, bytes, |_| true) {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    if capture::add(session, stream, || {
        Ok(NodeKind::BatchMemOp(vec![operation]))
    })? {
        return Ok(None);
    }
    session.streams.resolve(stream).map(Some)
}
