//! Exported functions for streams.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::atomic::Ordering;

use fermata_abi::sys::driver as cu;

use super::args::{In, Out};
use super::context::PRIORITIES;
use super::init::driver;
use super::{to_handle, to_pointer};
use crate::capture;
use crate::context;
use crate::error::{INVALID_HANDLE, INVALID_VALUE, NOT_READY, Result};
use crate::event::Event;
use crate::green::Green;
use crate::stream::Stream;
use crate::work::{Callback, Work};

fn create(out: Out<cu::CUstream>, flags: c_uint, priority: c_int) -> Result {
    if flags & !cu::CU_STREAM_NON_BLOCKING != 0 || out.is_null() {
        return Err(INVALID_VALUE);
    }
    let priority = priority.clamp(PRIORITIES.1, PRIORITIES.0);
    let green = Green::current(driver()?);
    out.set(to_pointer(
        Stream::create(&context::current()?, green.as_ref(), flags, priority)?.handle,
    ))
}

api! {
    fn cuStreamCreate(out: Out<cu::CUstream>, flags: c_uint) {
        create(out, flags, 0)
    }

    fn cuStreamCreateWithPriority(out: Out<cu::CUstream>, flags: c_uint, priority: c_int) {
        create(out, flags, priority)
    }

    fn cuStreamDestroy_v2 | fn cuStreamDestroy(handle: cu::CUstream) {
        let known = driver()?.streams().get(to_handle(handle)).ok_or(INVALID_HANDLE)?;
        known.green.as_ref().map_or(Ok(()), |green| green.check())?;
        let stream = driver()?.streams().remove(to_handle(handle)).ok_or(INVALID_HANDLE)?;
        capture::abandon(driver()?, &stream);
        stream.destroy();
        stream.context.check()
    }

    fn cuStreamSynchronize(handle: cu::CUstream) {
        let stream = Stream::resolve(handle)?;
        capture::forbid_on(&stream)?;
        stream.synchronize()
    }

    fn cuStreamQuery(handle: cu::CUstream) {
        let stream = Stream::resolve(handle)?;
        capture::forbid_on(&stream)?;
        if stream.ends().iter().all(|point| point.reached()) {
            stream.context.flush_output();
            return stream.context.check();
        }
        Err(NOT_READY)
    }

    fn cuStreamWaitEvent(handle: cu::CUstream, event: cu::CUevent, flags: c_uint) {
        let (stream, event) = (Stream::resolve(handle)?, Event::resolve(event)?);
        if flags & !cu::CU_EVENT_WAIT_EXTERNAL != 0 {
            return Err(INVALID_VALUE);
        }
        capture::wait_event(&stream, &event, flags)
    }

    fn cuStreamAddCallback(
        handle: cu::CUstream,
        callback: cu::CUstreamCallback,
        user_data: Out<c_void>,
        flags: c_uint,
    ) {
        let stream = Stream::resolve(handle)?;
        let function = callback.ok_or(INVALID_VALUE)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        capture::forbid_on(&stream)?;
        let user_data = user_data.as_ptr().expose_provenance() as u64;
        stream.submit(Work::Callback(Callback { function, stream: to_handle(handle), user_data })).map(drop)
    }

    fn cuStreamGetPriority(handle: cu::CUstream, priority: Out<c_int>) {
        priority.set(Stream::resolve(handle)?.priority.load(Ordering::Relaxed))
    }

    fn cuStreamGetFlags(handle: cu::CUstream, flags: Out<c_uint>) {
        flags.set(Stream::resolve(handle)?.flags)
    }

    fn cuStreamGetId(handle: cu::CUstream, id: Out<c_ulonglong>) {
        id.set(Stream::resolve_any(handle)?.id)
    }

    fn cuStreamGetDevice(handle: cu::CUstream, device: Out<cu::CUdevice>) {
        device.set(Stream::resolve_any(handle)?.context.device.ordinal)
    }

    fn cuStreamGetCtx(handle: cu::CUstream, out: Out<cu::CUcontext>) {
        out.set(to_pointer(Stream::resolve_any(handle)?.context_handle()))
    }

    fn cuStreamGetCtx_v2(handle: cu::CUstream, out: Out<cu::CUcontext>, green: Out<cu::CUgreenCtx>) {
        let stream = Stream::resolve_any(handle)?;
        out.set(to_pointer(stream.context.handle))?;
        green.set_if_wanted(to_pointer(stream.green.as_ref().map_or(0, |green| green.handle)));
        Ok(())
    }

    /// Managed memory is always usable by all; who it is attached to is only remembered.
    fn cuStreamAttachMemAsync(
        handle: cu::CUstream,
        address: cu::CUdeviceptr,
        len: usize,
        flags: c_uint,
    ) {
        let _ = len;
        Stream::resolve(handle)?;
        let range = driver()?.memory.find(address).ok_or(INVALID_VALUE)?;
        let known = [cu::CU_MEM_ATTACH_GLOBAL, cu::CU_MEM_ATTACH_HOST, cu::CU_MEM_ATTACH_SINGLE];
        if !matches!(range.kind, crate::memory::Kind::Managed { .. }) || !known.contains(&flags) {
            return Err(INVALID_VALUE);
        }
        Ok(())
    }

    fn cuStreamGetAttribute(
        handle: cu::CUstream,
        attribute: cu::CUstreamAttrID,
        value: Out<cu::CUstreamAttrValue>,
    ) {
        let stream = Stream::resolve(handle)?;
        let mut answer = cu::CUstreamAttrValue::default();
        match attribute {
            cu::CU_LAUNCH_ATTRIBUTE_PRIORITY => answer.priority = stream.priority.load(Ordering::Relaxed),
            cu::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY => answer.syncPolicy = cu::CU_SYNC_POLICY_AUTO,
            cu::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
            | cu::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN
            | cu::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP => {}
            _ => return Err(INVALID_VALUE),
        }
        value.set(answer)
    }

    fn cuStreamSetAttribute(
        handle: cu::CUstream,
        attribute: cu::CUstreamAttrID,
        value: In<cu::CUstreamAttrValue>,
    ) {
        let stream = Stream::resolve(handle)?;
        let value = value.get()?;
        match attribute {
            cu::CU_LAUNCH_ATTRIBUTE_PRIORITY => {
                // SAFETY: the attribute says that the union holds a priority.
                let priority = unsafe { value.priority }.clamp(PRIORITIES.1, PRIORITIES.0);
                stream.priority.store(priority, Ordering::Relaxed);
                Ok(())
            }
            cu::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY
            | cu::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
            | cu::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN
            | cu::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP => Ok(()),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuStreamCopyAttributes(to: cu::CUstream, from: cu::CUstream) {
        let (to, from) = (Stream::resolve(to)?, Stream::resolve(from)?);
        to.priority.store(from.priority.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(())
    }
}
