//! Exported functions for green contexts and the multiprocessors that they have.

use core::ffi::{c_int, c_uint, c_ulonglong};

use fermata_abi::op::{Op, ReplyBody, SM_GROUPS, SM_REST, SmQuestion, SmResource, SmSplit};
use fermata_abi::sys::driver as sys;

use crate::args::{In, Out};
use crate::frame::entry::driver_api;
use crate::handles::{of, to_pointer};
use crate::link;
use crate::object::context::current;
use crate::object::green::Described;
use crate::object::session::{Session, session};
use crate::result::Result;
use crate::work::{context_events, green, teardown};

/// Bytes of the longest answer: three numbers for each group and the rest.
const LONGEST: u64 = (SM_GROUPS as u64 + 1) * 24;

driver_api! {
    fn cuDeviceGetDevResource(
        device: sys::CUdevice,
        resource: Out<sys::CUdevResource>,
        kind: sys::CUdevResourceType,
    ) {
        let session = session()?;
        let index = session.devices.get(device)?.index;
        tell(session, resource, kind, SmResource::whole(index))
    }

    fn cuCtxGetDevResource(
        context: sys::CUcontext,
        resource: Out<sys::CUdevResource>,
        kind: sys::CUdevResourceType,
    ) {
        let session = session()?;
        let context = session.contexts.get(context)?;
        let index = session.devices.get(context.device)?.index;
        let whole = || SmResource::whole(index);
        let own = context.green.as_ref().map_or_else(whole, |green| green.resource.clone());
        tell(session, resource, kind, own)
    }

    fn cuGreenCtxGetDevResource(
        green: sys::CUgreenCtx,
        resource: Out<sys::CUdevResource>,
        kind: sys::CUdevResourceType,
    ) {
        let session = session()?;
        let context = session.greens.get(green)?;
        let own = &context.green.as_ref().ok_or(sys::CUDA_ERROR_INVALID_CONTEXT)?.resource;
        tell(session, resource, kind, own.clone())
    }

    fn cuDevSmResourceSplitByCount(
        result: Out<sys::CUdevResource>,
        groups: Out<c_uint>,
        input: In<sys::CUdevResource>,
        remaining: Out<sys::CUdevResource>,
        flags: c_uint,
        minimum: c_uint,
    ) {
        let session = session()?;
        let room = groups.get()?;
        let given = session.greens.read(&input.get()?)?;
        if !given.splittable {
            return Err(sys::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
        }
        let of = given.resource;
        if result.is_null() {
            let answer = ask(&of, SmQuestion::Groups { flags, minimum })?;
            return groups.set(*answer.first().ok_or(sys::CUDA_ERROR_UNKNOWN)? as c_uint);
        }
        let split = SmSplit { groups: room.min(SM_GROUPS), flags, minimum };
        let answer = ask(&of, SmQuestion::Split(split))?;
        let (numbers, _) = answer.as_chunks::<3>();
        let (rest, made) = numbers.split_first().ok_or(sys::CUDA_ERROR_UNKNOWN)?;
        // A worker that answered with more would have been given room for them.
        let made = made.get(..split.groups as usize).unwrap_or(made);
        let part = |part, numbers| describe_part(session, &of, split, part, numbers);
        for (index, numbers) in made.iter().enumerate() {
            result.set_at(index, part(index as u32, *numbers)?)?;
        }
        remaining.set_if_wanted(part(SM_REST, *rest)?);
        groups.set(made.len() as c_uint)
    }

    fn cuDevResourceGenerateDesc(
        descriptor: Out<sys::CUdevResourceDesc>,
        resources: Out<sys::CUdevResource>,
        count: c_uint,
    ) {
        let greens = &session()?.greens;
        if descriptor.is_null() || count == 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let given = resources.list(count as usize)?;
        let given: Result<Vec<_>> = given.iter().map(|it| Ok(greens.read(it)?.resource)).collect();
        let sum = SmResource::together(&given?);
        let sum = sum.ok_or(sys::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION)?;
        descriptor.set(to_pointer(greens.number(&sum)))
    }

    fn cuGreenCtxCreate(
        green: Out<sys::CUgreenCtx>,
        descriptor: sys::CUdevResourceDesc,
        device: sys::CUdevice,
        flags: c_uint,
    ) {
        let session = session()?;
        let index = session.devices.get(device)?.index;
        let resource = session.greens.resource(of(descriptor))?;
        if green.is_null() || flags != sys::CU_GREEN_CTX_DEFAULT_STREAM || resource.device != index {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let home = session.contexts.retain(&session.devices, device)?;
        let made = green::create(session, &home, resource).inspect_err(|_| {
            // The first failure is the one to report.
            let _ = teardown::release_primary(session, device);
        })?;
        let made = made.green.as_ref().ok_or(sys::CUDA_ERROR_UNKNOWN)?;
        green.set(to_pointer(made.handle))
    }

    fn cuGreenCtxDestroy(green: sys::CUgreenCtx) {
        let session = session()?;
        teardown::destroy_green(session, green)
    }

    fn cuCtxFromGreenCtx(context: Out<sys::CUcontext>, green: sys::CUgreenCtx) {
        context.set(session()?.greens.get(green)?.pointer())
    }

    fn cuGreenCtxStreamCreate(
        stream: Out<sys::CUstream>,
        green: sys::CUgreenCtx,
        flags: c_uint,
        priority: c_int,
    ) {
        let session = session()?;
        let context = session.greens.get(green)?;
        if stream.is_null() || flags != sys::CU_STREAM_NON_BLOCKING {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let priority = priority.clamp(-5, 0);
        stream.set(to_pointer(session.streams.create(&context, flags, priority)?.handle))
    }

    fn cuGreenCtxRecordEvent(green: sys::CUgreenCtx, event: sys::CUevent) {
        let session = session()?;
        context_events::record(session, &*session.greens.get(green)?, event)
    }

    fn cuGreenCtxWaitEvent(green: sys::CUgreenCtx, event: sys::CUevent) {
        let session = session()?;
        context_events::wait(session, &*session.greens.get(green)?, event)
    }

    fn cuGreenCtxGetId(green: sys::CUgreenCtx, id: Out<c_ulonglong>) {
        let session = session()?;
        let context = if green.is_null() { current()? } else { session.greens.get(green)? };
        let green = context.green.as_ref().ok_or(sys::CUDA_ERROR_INVALID_CONTEXT)?;
        id.set(green.name.raw())
    }
}

/// Describes all multiprocessors of a device or a green context.
fn tell(
    session: &Session,
    out: Out<sys::CUdevResource>,
    kind: sys::CUdevResourceType,
    resource: SmResource,
) -> Result {
    if out.is_null() {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    if kind != sys::CU_DEV_RESOURCE_TYPE_SM {
        return Err(sys::CUDA_ERROR_INVALID_RESOURCE_TYPE);
    }
    let answer = ask(&resource, SmQuestion::Counts)?;
    let numbers = answer.first_chunk().ok_or(sys::CUDA_ERROR_UNKNOWN)?;
    let described = Described {
        resource,
        splittable: true,
    };
    out.set(session.greens.describe(&described, *numbers))
}

fn describe_part(
    session: &Session,
    of: &SmResource,
    split: SmSplit,
    part: u32,
    numbers: [u64; 3],
) -> Result<sys::CUdevResource> {
    let part = of.part(split, part);
    let described = Described {
        resource: part.ok_or(sys::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION)?,
        splittable: false,
    };
    Ok(session.greens.describe(&described, numbers))
}

fn ask(of: &SmResource, question: SmQuestion) -> Result<Vec<u64>> {
    let of = of.clone();
    let room = link::stage(LONGEST)?;
    let op = Op::SmAsk { of, question };
    link::ask_in(
        &room,
        &op,
        |_| (),
        |body| match body {
            ReplyBody::Bytes(bytes) => {
                let (words, _) = bytes.as_chunks::<8>();
                Ok(words.iter().map(|it| u64::from_le_bytes(*it)).collect())
            }
            _ => Err(sys::CUDA_ERROR_UNKNOWN),
        },
    )
}
