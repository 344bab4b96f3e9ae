//! Contexts.

use core::ffi::{c_int, c_uint, c_ulonglong};
use std::sync::atomic::Ordering;

use fermata_abi::op::Op;
use fermata_abi::sys::driver as sys;

use crate::capture;
use crate::context::{current, current_or_none, current_pointer, pop, push, set_current};
use crate::entry::{Result, driver_api, get, put, put_if};
use crate::fault;
use crate::link;
use crate::managed;
use crate::session::session;

driver_api! {
    fn cuCtxCreate(context: *mut sys::CUcontext, flags: c_uint, device: sys::CUdevice) {
        let session = session()?;
        put(context, session.contexts.create(session, device, flags)?.pointer())
    }

    fn cuCtxCreate_v2(context: *mut sys::CUcontext, flags: c_uint, device: sys::CUdevice) {
        let session = session()?;
        put(context, session.contexts.create(session, device, flags)?.pointer())
    }

    fn cuCtxCreate_v3(
        context: *mut sys::CUcontext,
        params: *mut sys::CUexecAffinityParam,
        count: c_int,
        flags: c_uint,
        device: sys::CUdevice,
    ) {
        if !params.is_null() && count != 0 {
            return Err(sys::CUDA_ERROR_NOT_SUPPORTED);
        }
        let session = session()?;
        put(context, session.contexts.create(session, device, flags)?.pointer())
    }

    fn cuCtxCreate_v4(
        context: *mut sys::CUcontext,
        params: *mut sys::CUctxCreateParams,
        flags: c_uint,
        device: sys::CUdevice,
    ) {
        if let Ok(params) = get(params)
            && (params.numExecAffinityParams != 0 || !params.cigParams.is_null())
        {
            return Err(sys::CUDA_ERROR_NOT_SUPPORTED);
        }
        let session = session()?;
        put(context, session.contexts.create(session, device, flags)?.pointer())
    }

    fn cuCtxDestroy(context: sys::CUcontext) {
        let session = session()?;
        session.contexts.destroy(session, context)
    }

    fn cuCtxDestroy_v2(context: sys::CUcontext) {
        let session = session()?;
        session.contexts.destroy(session, context)
    }

    fn cuCtxAttach(context: *mut sys::CUcontext, flags: c_uint) {
        session()?;
        if flags != 0 || context.is_null() {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let own = current()?;
        own.attach();
        put(context, own.pointer())
    }

    fn cuCtxDetach(context: sys::CUcontext) {
        let session = session()?;
        session.contexts.detach(session, context)
    }

    fn cuCtxPushCurrent(context: sys::CUcontext) {
        push(session()?.contexts.get(context)?)?;
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: sys::CUcontext) {
        if context.is_null() {
            return Err(sys::CUDA_ERROR_INVALID_CONTEXT);
        }
        push(session()?.contexts.get(context)?)?;
        Ok(())
    }

    fn cuCtxPopCurrent(context: *mut sys::CUcontext) {
        session()?;
        put_if(context, pop()?.pointer());
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: *mut sys::CUcontext) {
        session()?;
        put_if(context, pop()?.pointer());
        Ok(())
    }

    fn cuCtxSetCurrent(context: sys::CUcontext) {
        let session = session()?;
        let new = if context.is_null() { None } else { Some(session.contexts.get(context)?) };
        set_current(new)?;
        Ok(())
    }

    fn cuCtxGetCurrent(context: *mut sys::CUcontext) {
        session()?;
        put(context, current_pointer())
    }

    fn cuCtxGetDevice(device: *mut sys::CUdevice) {
        session()?;
        put(device, current_device()?)
    }

    fn cuCtxGetDevice_v2(device: *mut sys::CUdevice, context: sys::CUcontext) {
        let session = session()?;
        if context.is_null() {
            return put(device, current_device()?);
        }
        put(device, session.contexts.get(context)?.device)
    }

    fn cuCtxGetFlags(flags: *mut c_uint) {
        session()?;
        // With unified addressing every context maps host memory, and the driver says so whatever was asked for.
        put(flags, current()?.flags.load(Ordering::Relaxed) | sys::CU_CTX_MAP_HOST)
    }

    fn cuCtxSetFlags(flags: c_uint) {
        session()?;
        if flags & !sys::CU_CTX_FLAGS_MASK != 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        current()?.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    fn cuCtxGetId(context: sys::CUcontext, id: *mut c_ulonglong) {
        put(id, session()?.contexts.get(context)?.handle)
    }

    fn cuCtxGetApiVersion(context: sys::CUcontext, version: *mut c_uint) {
        session()?.contexts.get(context)?;
        // What contexts have reported since version 3.2 of the API.
        put(version, 3020)
    }

    fn cuCtxSynchronize() {
        let session = session()?;
        capture::forbid_unsafe(session)?;
        link::ask(&Op::ContextSync { context: current()?.handle }, link::nothing)?;
        managed::after_wait(session)
    }

    fn cuCtxSynchronize_v2(context: sys::CUcontext) {
        let session = session()?;
        let context = session.contexts.get(context)?.handle;
        link::ask(&Op::ContextSync { context }, link::nothing)?;
        managed::after_wait(session)
    }

    fn cuCtxSetLimit(limit: sys::CUlimit, value: usize) {
        session()?;
        let op = Op::ContextSetLimit { context: current()?.handle, limit, value: value as u64 };
        link::ask(&op, link::nothing)
    }

    fn cuCtxGetLimit(value: *mut usize, limit: sys::CUlimit) {
        session()?;
        let op = Op::ContextGetLimit { context: current()?.handle, limit };
        put(value, link::ask(&op, link::number)? as usize)
    }

    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        fault::check_current()?;
        session()?;
        current()?;
        // The range of every device of the last ten years.
        put_if(least, 0);
        put_if(greatest, -5);
        Ok(())
    }

    fn cuCtxGetCacheConfig(config: *mut sys::CUfunc_cache) {
        session()?;
        current()?;
        put(config, sys::CU_FUNC_CACHE_PREFER_NONE)
    }

    fn cuCtxSetCacheConfig(config: sys::CUfunc_cache) {
        fault::check_current()?;
        session()?;
        current()?;
        // A preference: devices without a configurable cache take no notice either.
        if config > sys::CU_FUNC_CACHE_PREFER_EQUAL { Err(sys::CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
    }

    fn cuCtxGetSharedMemConfig(config: *mut sys::CUsharedconfig) {
        session()?;
        current()?;
        put(config, sys::CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE)
    }

    fn cuCtxSetSharedMemConfig(config: sys::CUsharedconfig) {
        session()?;
        current()?;
        let known = config <= sys::CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE;
        if known { Ok(()) } else { Err(sys::CUDA_ERROR_INVALID_VALUE) }
    }

    fn cuCtxResetPersistingL2Cache() {
        session()?;
        current().map(|_| ())
    }

    fn cuCtxEnablePeerAccess(peer: sys::CUcontext, flags: c_uint) {
        if flags != 0 || peer.is_null() {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let peer = session()?.contexts.get(peer)?;
        let context = current()?;
        link::ask(&Op::PeerEnable { context: context.handle, peer: peer.handle }, link::nothing)
    }

    fn cuCtxDisablePeerAccess(peer: sys::CUcontext) {
        if peer.is_null() {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let peer = session()?.contexts.get(peer)?;
        let context = current()?;
        link::ask(&Op::PeerDisable { context: context.handle, peer: peer.handle }, link::nothing)
    }
}

/// The device of the current context. A primary context that was reset still says where it is: runtimes ask before
/// they retain it again.
fn current_device() -> Result<sys::CUdevice> {
    let reset = current_or_none().filter(|context| context.primary);
    Ok(reset.map_or_else(current, Ok)?.device)
}
