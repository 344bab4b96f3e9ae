//! Exported functions for contexts.

use std::ffi::{c_int, c_uint, c_ulonglong};
use std::sync::atomic::Ordering;

use fermata_abi::sys::driver as cu;

use super::args::{In, Out};
use super::init::driver;
use super::{to_handle, to_pointer};
use crate::context::{self, Context};
use crate::error::{CuError, INVALID_CONTEXT, INVALID_VALUE, NOT_SUPPORTED, Result};
use crate::green::Green;
use crate::primary::Primary;

/// The API version contexts report.
const API_VERSION: c_uint = 3020;
/// Lowest and highest priority of streams.
pub const PRIORITIES: (c_int, c_int) = (0, -5);

fn create(out: Out<cu::CUcontext>, flags: c_uint, device: cu::CUdevice) -> Result {
    context::check_flags(flags)?;
    let driver = driver()?;
    let context = Context::create(driver, driver.device(device)?, flags)?;
    context::push_current(context.handle);
    out.set(to_pointer(context.handle))
}

/// What a limit is when the program has not set it.
fn default_limit(limit: cu::CUlimit) -> Result<usize> {
    match limit {
        cu::CU_LIMIT_STACK_SIZE => Ok(1024),
        cu::CU_LIMIT_PRINTF_FIFO_SIZE => Ok(1 << 20),
        cu::CU_LIMIT_MALLOC_HEAP_SIZE => Ok(8 << 20),
        cu::CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH => Ok(2),
        cu::CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT => Ok(2048),
        cu::CU_LIMIT_MAX_L2_FETCH_GRANULARITY => Ok(64),
        cu::CU_LIMIT_PERSISTING_L2_CACHE_SIZE => Ok(0),
        // As an H200 answers: what is no limit at all is not even unsupported.
        _ if limit >= cu::CU_LIMIT_MAX => Err(INVALID_VALUE),
        _ => Err(CuError(cu::CUDA_ERROR_UNSUPPORTED_LIMIT)),
    }
}

api! {
    fn cuDevicePrimaryCtxRetain(out: Out<cu::CUcontext>, device: cu::CUdevice) {
        if out.is_null() {
            return Err(INVALID_VALUE);
        }
        let driver = driver()?;
        out.set(to_pointer(Primary::retain(driver, driver.device(device)?)?.handle))
    }

    fn cuDevicePrimaryCtxRelease_v2 | fn cuDevicePrimaryCtxRelease(device: cu::CUdevice) {
        let driver = driver()?;
        Primary::release(driver, driver.device(device)?)
    }

    fn cuDevicePrimaryCtxReset_v2 | fn cuDevicePrimaryCtxReset(device: cu::CUdevice) {
        let driver = driver()?;
        Primary::reset(driver, driver.device(device)?);
        Ok(())
    }

    fn cuDevicePrimaryCtxSetFlags_v2 | fn cuDevicePrimaryCtxSetFlags(device: cu::CUdevice, flags: c_uint) {
        context::check_flags(flags)?;
        let driver = driver()?;
        Primary::set_flags(driver, driver.device(device)?, flags);
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(device: cu::CUdevice, flags: Out<c_uint>, active: Out<c_int>) {
        let driver = driver()?;
        let (set, exists) = Primary::state(driver, driver.device(device)?);
        flags.set(set)?;
        active.set(c_int::from(exists))
    }

    fn cuCtxCreate_v4(
        out: Out<cu::CUcontext>,
        params: In<cu::CUctxCreateParams>,
        flags: c_uint,
        device: cu::CUdevice,
    ) {
        if !params.is_null() {
            let params = params.get()?;
            if params.numExecAffinityParams > 0 || !params.cigParams.is_null() {
                return Err(NOT_SUPPORTED);
            }
        }
        create(out, flags, device)
    }

    fn cuCtxCreate_v3(
        out: Out<cu::CUcontext>,
        params: In<cu::CUexecAffinityParam>,
        count: c_int,
        flags: c_uint,
        device: cu::CUdevice,
    ) {
        if !params.is_null() && count > 0 {
            return Err(CuError(cu::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY));
        }
        create(out, flags, device)
    }

    fn cuCtxCreate_v2 | fn cuCtxCreate(out: Out<cu::CUcontext>, flags: c_uint, device: cu::CUdevice) {
        create(out, flags, device)
    }

    fn cuCtxDestroy_v2 | fn cuCtxDestroy(handle: cu::CUcontext) {
        Context::destroy(driver()?, to_handle(handle))
    }

    fn cuCtxAttach(out: Out<cu::CUcontext>, flags: c_uint) {
        if flags != 0 || out.is_null() {
            return Err(INVALID_VALUE);
        }
        let context = context::current_any()?;
        context.attached.fetch_add(1, Ordering::AcqRel);
        out.set(to_pointer(context.handle))
    }

    /// Removes a holder that `cuCtxAttach` added; ends the context if there is none.
    fn cuCtxDetach(handle: cu::CUcontext) {
        let driver = driver()?;
        let context = context::current_any()?;
        if context.handle != to_handle(handle) {
            return Err(INVALID_CONTEXT);
        }
        let less = |holders: u32| holders.checked_sub(1);
        let order = Ordering::AcqRel;
        match context.attached.fetch_update(order, Ordering::Acquire, less) {
            Ok(_) => Ok(()),
            Err(_) => Context::destroy(driver, to_handle(handle)),
        }
    }

    fn cuCtxPushCurrent_v2 | fn cuCtxPushCurrent(handle: cu::CUcontext) {
        context::check_known(to_handle(handle))?;
        context::push_current(to_handle(handle));
        Ok(())
    }

    fn cuCtxPopCurrent_v2 | fn cuCtxPopCurrent(out: Out<cu::CUcontext>) {
        driver()?;
        out.set_if_wanted(to_pointer(context::pop_current()?));
        Ok(())
    }

    fn cuCtxSetCurrent(handle: cu::CUcontext) {
        driver()?;
        if !handle.is_null() {
            context::check_known(to_handle(handle))?;
        }
        context::set_current(to_handle(handle));
        Ok(())
    }

    fn cuCtxGetCurrent(out: Out<cu::CUcontext>) {
        driver()?;
        out.set(to_pointer(context::current_handle()))
    }

    fn cuCtxGetDevice(device: Out<cu::CUdevice>) {
        device.set(current_device()?)
    }

    fn cuCtxGetDevice_v2(device: Out<cu::CUdevice>, handle: cu::CUcontext) {
        device.set(if handle.is_null() { current_device()? } else { any(handle)?.device.ordinal })
    }

    fn cuCtxGetFlags(flags: Out<c_uint>) {
        // With unified addressing every context maps host memory, and drivers say so whatever was asked for.
        let own = context::current_any().map(|context| context.flags.load(Ordering::Relaxed));
        let primary = || Primary::flags_of(driver().ok()?, context::current_handle());
        let all = own.or_else(|error| primary().ok_or(error))?;
        flags.set(all | cu::CU_CTX_MAP_HOST)
    }

    fn cuCtxSetFlags(flags: c_uint) {
        context::check_flags(flags)?;
        context::current()?.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    fn cuCtxGetId(handle: cu::CUcontext, id: Out<c_ulonglong>) {
        id.set(id_of(handle)?)
    }

    fn cuCtxSynchronize() {
        crate::capture::forbid_unsafe()?;
        let context = context::current()?;
        Green::current(driver()?).map_or_else(|| context.synchronize(), |green| green.synchronize())
    }

    fn cuCtxSynchronize_v2(handle: cu::CUcontext) {
        crate::capture::forbid_unsafe()?;
        let context = context::named(to_handle(handle))?;
        let green = match handle.is_null() {
            true => Green::current(driver()?),
            false => driver()?.greens().get(to_handle(handle)),
        };
        green.map_or_else(|| context.synchronize(), |green| green.synchronize())
    }

    fn cuCtxSetLimit(limit: cu::CUlimit, value: usize) {
        let context = context::current()?;
        default_limit(limit)?;
        context.limits.lock().insert(limit, value);
        Ok(())
    }

    fn cuCtxGetLimit(value: Out<usize>, limit: cu::CUlimit) {
        let set = context::current()?.limits.lock().get(&limit).copied();
        value.set(set.map_or_else(|| default_limit(limit), Ok)?)
    }

    fn cuCtxGetCacheConfig(config: Out<cu::CUfunc_cache>) {
        config.set(context::current()?.cache_config.load(Ordering::Relaxed))
    }

    fn cuCtxSetCacheConfig(config: cu::CUfunc_cache) {
        if config > cu::CU_FUNC_CACHE_PREFER_EQUAL {
            return Err(INVALID_VALUE);
        }
        context::current()?.cache_config.store(config, Ordering::Relaxed);
        Ok(())
    }

    fn cuCtxGetSharedMemConfig(config: Out<cu::CUsharedconfig>) {
        context::current()?;
        config.set(cu::CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE)
    }

    fn cuCtxSetSharedMemConfig(config: cu::CUsharedconfig) {
        let _ = config;
        context::current().map(drop)
    }

    fn cuCtxGetApiVersion(handle: cu::CUcontext, version: Out<c_uint>) {
        any(handle)?;
        version.set(API_VERSION)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        context::current()?;
        least.set_if_wanted(PRIORITIES.0);
        greatest.set_if_wanted(PRIORITIES.1);
        Ok(())
    }

    fn cuCtxResetPersistingL2Cache() {
        context::current().map(drop)
    }

    fn cuCtxGetExecAffinity(affinity: Out<cu::CUexecAffinityParam>, kind: cu::CUexecAffinityType) {
        let _ = (affinity, kind);
        Err(CuError(cu::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY))
    }

    fn cuCtxEnablePeerAccess(peer: cu::CUcontext, flags: c_uint) {
        let context = context::current()?;
        let peer = driver()?.contexts().get(to_handle(peer)).ok_or(INVALID_CONTEXT)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if !context.device.reaches(&peer.device) {
            return Err(CuError(cu::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED));
        }
        if !context.peers.lock().insert(peer.id) {
            return Err(CuError(cu::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED));
        }
        Ok(())
    }

    fn cuCtxDisablePeerAccess(peer: cu::CUcontext) {
        let context = context::current()?;
        let peer = driver()?.contexts().get(to_handle(peer)).ok_or(INVALID_CONTEXT)?;
        if !context.peers.lock().remove(&peer.id) {
            return Err(CuError(cu::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED));
        }
        Ok(())
    }
}

/// The device of the current context. A primary context that was reset still says where it is: runtimes ask before
/// they retain it again.
fn current_device() -> Result<cu::CUdevice> {
    match Primary::device_of(driver()?, context::current_handle()) {
        Some(ordinal) => Ok(ordinal),
        None => Ok(context::current_any()?.device.ordinal),
    }
}

/// The number of a context. Of a primary context that is not active there is none.
pub(super) fn id_of(handle: cu::CUcontext) -> Result<u64> {
    let driver = driver()?;
    let own = match to_handle(handle) {
        0 => context::current_handle(),
        handle => handle,
    };
    if let Some(green) = driver.greens().get(own) {
        return Ok(green.id);
    }
    match any(handle) {
        Ok(context) => Ok(context.id),
        Err(_) if Primary::device_of(driver, to_handle(handle)).is_some() => {
            Err(CuError(cu::CUDA_ERROR_CONTEXT_IS_DESTROYED))
        }
        Err(error) => Err(error),
    }
}

/// The context behind a handle, or the current one, whatever state it is in.
pub(super) fn any(handle: cu::CUcontext) -> Result<std::sync::Arc<Context>> {
    if handle.is_null() {
        return context::current_any();
    }
    driver()?
        .contexts()
        .get(to_handle(handle))
        .ok_or(INVALID_CONTEXT)
}
