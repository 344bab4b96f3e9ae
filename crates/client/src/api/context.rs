//! Exported functions for contexts.

use core::ffi::{c_int, c_uint, c_ulonglong};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fermata_abi::op::Op;
use fermata_abi::sys::driver as sys;

use crate::args::Out;
use crate::frame::entry::driver_api;
use crate::link;
use crate::link::fault;
use crate::object::context::{
    Context, current, current_or_none, current_pointer, pop, push, set_current,
};
use crate::object::session::{Session, session};
use crate::result::Result;
use crate::work::capture;
use crate::work::teardown;

driver_api! {
    fn cuCtxCreate(context: Out<sys::CUcontext>, flags: c_uint, device: sys::CUdevice) {
        let session = session()?;
        context.set(session.contexts.create(&session.devices, device, flags)?.pointer())
    }

    fn cuCtxCreate_v2(context: Out<sys::CUcontext>, flags: c_uint, device: sys::CUdevice) {
        let session = session()?;
        context.set(session.contexts.create(&session.devices, device, flags)?.pointer())
    }

    fn cuCtxCreate_v3(
        context: Out<sys::CUcontext>,
        params: Out<sys::CUexecAffinityParam>,
        count: c_int,
        flags: c_uint,
        device: sys::CUdevice,
    ) {
        if !params.is_null() && count != 0 {
            return Err(sys::CUDA_ERROR_NOT_SUPPORTED);
        }
        let session = session()?;
        context.set(session.contexts.create(&session.devices, device, flags)?.pointer())
    }

    fn cuCtxCreate_v4(
        context: Out<sys::CUcontext>,
        params: Out<sys::CUctxCreateParams>,
        flags: c_uint,
        device: sys::CUdevice,
    ) {
        if let Ok(params) = params.get()
            && (params.numExecAffinityParams != 0 || !params.cigParams.is_null())
        {
            return Err(sys::CUDA_ERROR_NOT_SUPPORTED);
        }
        let session = session()?;
        context.set(session.contexts.create(&session.devices, device, flags)?.pointer())
    }

    fn cuCtxDestroy(context: sys::CUcontext) {
        let session = session()?;
        teardown::destroy_context(session, context)
    }

    fn cuCtxDestroy_v2(context: sys::CUcontext) {
        let session = session()?;
        teardown::destroy_context(session, context)
    }

    fn cuCtxAttach(context: Out<sys::CUcontext>, flags: c_uint) {
        session()?;
        if flags != 0 || context.is_null() {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let own = current()?;
        own.attach();
        context.set(own.pointer())
    }

    fn cuCtxDetach(context: sys::CUcontext) {
        let session = session()?;
        teardown::detach_context(session, context)
    }

    fn cuCtxPushCurrent(context: sys::CUcontext) {
        push(session()?.contexts.get_any(context)?)?;
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: sys::CUcontext) {
        if context.is_null() {
            return Err(sys::CUDA_ERROR_INVALID_CONTEXT);
        }
        push(session()?.contexts.get_any(context)?)?;
        Ok(())
    }

    fn cuCtxPopCurrent(context: Out<sys::CUcontext>) {
        session()?;
        context.set_if_wanted(pop()?.pointer());
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: Out<sys::CUcontext>) {
        session()?;
        context.set_if_wanted(pop()?.pointer());
        Ok(())
    }

    fn cuCtxSetCurrent(context: sys::CUcontext) {
        let session = session()?;
        let new = if context.is_null() { None } else { Some(session.contexts.get_any(context)?) };
        set_current(new)?;
        Ok(())
    }

    fn cuCtxGetCurrent(context: Out<sys::CUcontext>) {
        session()?;
        context.set(current_pointer())
    }

    fn cuCtxGetDevice(device: Out<sys::CUdevice>) {
        session()?;
        device.set(current_device()?)
    }

    fn cuCtxGetDevice_v2(device: Out<sys::CUdevice>, context: sys::CUcontext) {
        let session = session()?;
        if context.is_null() {
            return device.set(current_device()?);
        }
        device.set(session.contexts.get(context)?.device)
    }

    fn cuCtxGetFlags(flags: Out<c_uint>) {
        session()?;
        // With unified addressing every context maps host memory, and the driver always reports the flag.
        flags.set(current_or_reset()?.flags.load(Ordering::Relaxed) | sys::CU_CTX_MAP_HOST)
    }

    fn cuCtxSetFlags(flags: c_uint) {
        session()?;
        if flags & !sys::CU_CTX_FLAGS_MASK != 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        current()?.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    fn cuCtxGetId(context: sys::CUcontext, id: Out<c_ulonglong>) {
        id.set(session()?.contexts.id(context)?)
    }

    fn cuCtxGetApiVersion(context: sys::CUcontext, version: Out<c_uint>) {
        session()?.contexts.get(context)?;
        // What contexts have reported since version 3.2 of the API.
        version.set(3020)
    }

    fn cuCtxSynchronize() {
        let session = session()?;
        capture::forbid_unsafe(session)?;
        synchronize(session, &*current()?)
    }

    fn cuCtxSynchronize_v2(context: sys::CUcontext) {
        let session = session()?;
        synchronize(session, &*session.contexts.get(context)?)
    }

    fn cuCtxSetLimit(limit: sys::CUlimit, value: usize) {
        session()?;
        let op = Op::ContextSetLimit { context: current()?.handle, limit, value: value as u64 };
        link::ask(&op, link::nothing)
    }

    fn cuCtxGetLimit(value: Out<usize>, limit: sys::CUlimit) {
        session()?;
        let op = Op::ContextGetLimit { context: current()?.handle, limit };
        value.set(link::ask(&op, link::number)? as usize)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        fault::check_current()?;
        session()?;
        current()?;
        // The range of every device of the last ten years.
        least.set_if_wanted(0);
        greatest.set_if_wanted(-5);
        Ok(())
    }

    fn cuCtxGetCacheConfig(config: Out<sys::CUfunc_cache>) {
        session()?;
        current()?;
        config.set(sys::CU_FUNC_CACHE_PREFER_NONE)
    }

    fn cuCtxSetCacheConfig(config: sys::CUfunc_cache) {
        fault::check_current()?;
        session()?;
        current()?;
        // Only a preference: devices without a configurable cache ignore it, too.
        if config > sys::CU_FUNC_CACHE_PREFER_EQUAL { Err(sys::CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
    }

    fn cuCtxGetSharedMemConfig(config: Out<sys::CUsharedconfig>) {
        session()?;
        current()?;
        config.set(sys::CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE)
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

/// Waits for all work of a context: for a primary context, that of its green contexts, too; for a green context, only its own.
fn synchronize(session: &Session, context: &Context) -> Result {
    if context.green.is_none() {
        let context = context.handle;
        link::ask(&Op::ContextSync { context }, link::nothing)?;
        return session.managed.after_wait();
    }
    // Not while the streams are kept from ending: other threads may have to give them work that this waits for.
    for stream in session.streams.with_those_of(context, |streams| streams) {
        let waited = link::ask(&Op::StreamSync { stream }, link::nothing);
        // A stream that another thread has destroyed meanwhile is no longer one of the context.
        if waited != Err(sys::CUDA_ERROR_INVALID_HANDLE) {
            waited?;
        }
    }
    session.managed.after_wait()
}

/// The device of the current context, also of a primary context that was reset: runtimes ask before they retain it
/// again.
fn current_device() -> Result<sys::CUdevice> {
    Ok(current_or_reset()?.device)
}

/// The current context; if it is a primary one, whether it is active or not.
fn current_or_reset() -> Result<Arc<Context>> {
    let primary = current_or_none().filter(|context| context.primary);
    primary.map_or_else(current, Ok)
}
