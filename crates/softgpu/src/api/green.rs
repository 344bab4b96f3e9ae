//! Exported functions for green contexts.

use std::ffi::{c_int, c_uint, c_ulonglong};
use std::sync::Arc;

use fermata_abi::sys::driver as cu;

use super::args::{In, Out};
use super::context::{PRIORITIES, any};
use super::init::driver;
use super::{to_handle, to_pointer};
use crate::capture;
use crate::context::{self, Context};
use crate::error::{CuError, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, Result};
use crate::event::Event;
use crate::green::{Green, Part};
use crate::handle::{self, Tag};
use crate::objects::Point;
use crate::stream::{Stream, StreamKind};
use crate::work::Work;

fn tell(out: Out<cu::CUdevResource>, kind: cu::CUdevResourceType, part: &Part) -> Result {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    if kind != cu::CU_DEV_RESOURCE_TYPE_SM {
        return Err(CuError(cu::CUDA_ERROR_INVALID_RESOURCE_TYPE));
    }
    out.set(part.describe())
}

/// The green context that a handle of a context means, the current one for null.
fn named_green(handle: cu::CUcontext) -> Result<Option<Arc<Green>>> {
    let handle = match to_handle(handle) {
        0 => context::current_handle(),
        handle => handle,
    };
    Ok(driver()?.greens().get(handle))
}

/// Records an event behind all work that a context has been given, or one of its green contexts.
pub(super) fn record(context: &Arc<Context>, green: Option<&Green>, event: cu::CUevent) -> Result {
    let event = Event::resolve(event)?;
    if event.context.id != context.id {
        return Err(INVALID_HANDLE);
    }
    let streams = streams(context, green)?;
    let points: Vec<Point> = streams.iter().map(|stream| stream.end()).collect();
    let aside = Stream::new_in(context, None, StreamKind::NonBlocking, 0, 0);
    let recorded = aside.submit_made(points, || Work::Record(event.begin()));
    recorded.map(drop)
}

/// Makes all later work of a context, or of one of its green contexts, wait for an event.
pub(super) fn wait(context: &Arc<Context>, green: Option<&Green>, event: cu::CUevent) -> Result {
    let event = Event::resolve(event)?;
    let streams = streams(context, green)?;
    capture::forbid_captured(&event)?;
    let Some(mark) = event.mark() else {
        return Ok(());
    };
    for stream in streams {
        stream.submit(Work::Wait(Arc::clone(&mark)))?;
    }
    if let Some(green) = green {
        let mut awaited = green.awaited.lock();
        awaited.retain(|mark| !mark.is_passed());
        awaited.push(mark);
    }
    Ok(())
}

/// The streams of a context, or of one of its green contexts; none of them may be captured.
fn streams(context: &Arc<Context>, green: Option<&Green>) -> Result<Vec<Arc<Stream>>> {
    context.check()?;
    let streams = green.map_or_else(|| context.all_streams(), Green::streams);
    for stream in &streams {
        capture::forbid_on(stream)?;
    }
    Ok(streams)
}

api! {
    fn cuDeviceGetDevResource(
        device: cu::CUdevice,
        out: Out<cu::CUdevResource>,
        kind: cu::CUdevResourceType,
    ) {
        tell(out, kind, &Part::of_device(driver()?.device(device)?))
    }

    fn cuCtxGetDevResource(
        handle: cu::CUcontext,
        out: Out<cu::CUdevResource>,
        kind: cu::CUdevResourceType,
    ) {
        let device = &any(handle)?.device;
        let green = named_green(handle)?;
        tell(out, kind, &green.map_or_else(|| Part::of_device(device), |it| Part::of_green(&it)))
    }

    fn cuGreenCtxGetDevResource(
        handle: cu::CUgreenCtx,
        out: Out<cu::CUdevResource>,
        kind: cu::CUdevResourceType,
    ) {
        tell(out, kind, &Part::of_green(&*Green::resolve(driver()?, to_handle(handle))?))
    }

    fn cuDevSmResourceSplitByCount(
        out: Out<cu::CUdevResource>,
        count: Out<c_uint>,
        input: In<cu::CUdevResource>,
        remaining: Out<cu::CUdevResource>,
        flags: c_uint,
        minimum: c_uint,
    ) {
        let room = count.get()?;
        let part = Part::read(&input.get()?)?;
        let most = if out.is_null() { c_uint::MAX } else { room };
        let (groups, rest) = part.split(most, flags, minimum)?;
        count.set(groups.len() as c_uint)?;
        if out.is_null() {
            return Ok(());
        }
        remaining.set_if_wanted(rest.describe());
        let mut groups = groups.iter().enumerate();
        groups.try_for_each(|(index, group)| out.set_at(index, group.describe()))
    }

    fn cuDevResourceGenerateDesc(
        out: Out<cu::CUdevResourceDesc>,
        parts: Out<cu::CUdevResource>,
        count: c_uint,
    ) {
        if out.is_null() || count == 0 {
            return Err(INVALID_VALUE);
        }
        let parts = parts.list(count as usize)?;
        let parts: Result<Vec<_>> = parts.iter().map(Part::read).collect();
        let sum = Part::together(&parts?)?;
        let handle = handle::fresh(Tag::Descriptor);
        driver()?.descriptors().insert(handle, Arc::new(sum));
        out.set(to_pointer(handle))
    }

    fn cuGreenCtxCreate(
        out: Out<cu::CUgreenCtx>,
        descriptor: cu::CUdevResourceDesc,
        device: cu::CUdevice,
        flags: c_uint,
    ) {
        let driver = driver()?;
        let device = driver.device(device)?;
        let part = driver.descriptors().get(to_handle(descriptor)).ok_or(INVALID_VALUE)?;
        if out.is_null() || flags != cu::CU_GREEN_CTX_DEFAULT_STREAM || part.device != device.ordinal {
            return Err(INVALID_VALUE);
        }
        out.set(to_pointer(Green::create(driver, device, &part)?.handle))
    }

    fn cuGreenCtxDestroy(handle: cu::CUgreenCtx) {
        Green::destroy(driver()?, to_handle(handle))
    }

    fn cuCtxFromGreenCtx(out: Out<cu::CUcontext>, handle: cu::CUgreenCtx) {
        out.set(to_pointer(Green::resolve(driver()?, to_handle(handle))?.converted))
    }

    fn cuGreenCtxStreamCreate(
        out: Out<cu::CUstream>,
        handle: cu::CUgreenCtx,
        flags: c_uint,
        priority: c_int,
    ) {
        let green = Green::resolve(driver()?, to_handle(handle))?;
        if out.is_null() || flags != cu::CU_STREAM_NON_BLOCKING {
            return Err(INVALID_VALUE);
        }
        let priority = priority.clamp(PRIORITIES.1, PRIORITIES.0);
        let stream = Stream::create(&green.context, Some(&green), flags, priority)?;
        out.set(to_pointer(stream.handle))
    }

    fn cuGreenCtxRecordEvent(handle: cu::CUgreenCtx, event: cu::CUevent) {
        let green = Green::resolve(driver()?, to_handle(handle))?;
        record(&green.context, Some(&green), event)
    }

    fn cuGreenCtxWaitEvent(handle: cu::CUgreenCtx, event: cu::CUevent) {
        let green = Green::resolve(driver()?, to_handle(handle))?;
        wait(&green.context, Some(&green), event)
    }

    /// The event is passed when everything submitted to the context so far is done.
    fn cuCtxRecordEvent(handle: cu::CUcontext, event: cu::CUevent) {
        record(&context::named(to_handle(handle))?, named_green(handle)?.as_deref(), event)
    }

    /// All later work of the context waits for the event.
    fn cuCtxWaitEvent(handle: cu::CUcontext, event: cu::CUevent) {
        wait(&context::named(to_handle(handle))?, named_green(handle)?.as_deref(), event)
    }

    fn cuStreamGetGreenCtx(handle: cu::CUstream, out: Out<cu::CUgreenCtx>) {
        let stream = Stream::resolve_any(handle)?;
        out.set(to_pointer(stream.green.as_ref().map_or(0, |green| green.handle)))
    }

    fn cuGreenCtxGetId(handle: cu::CUgreenCtx, id: Out<c_ulonglong>) {
        let driver = driver()?;
        let green = match handle.is_null() {
            true => Green::current(driver).ok_or(INVALID_CONTEXT)?,
            false => Green::resolve(driver, to_handle(handle))?,
        };
        id.set(green.id)
    }
}
