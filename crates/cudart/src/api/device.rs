//! Devices: counting, choosing, attributes, limits, flags, synchronising, resetting.
use core::ffi::{c_char, c_int, c_uint};

use fermata_abi::sys::runtime::{
    cudaDeviceAttr, cudaErrorSetOnActiveProcess, cudaFlushGPUDirectRDMAWritesScope,
    cudaFlushGPUDirectRDMAWritesTarget, cudaFuncCache, cudaLimit, cudaSharedMemConfig,
};

use crate::error::{Error, export, put};
use crate::{context, driver};

/// The version of the runtime API this library has.
const VERSION: c_int = 13_000;

/// Flags that the runtime has and the driver does not know.
const MAP_HOST: c_uint = fermata_abi::sys::runtime::cudaDeviceMapHost;

export! {
    /// The number of devices; 0 with an error if there is none or no driver.
    fn cudaGetDeviceCount(count: *mut c_int) {
        put(count, 0)?;
        let devices = driver::devices()?;
        if devices == 0 {
            return Err(Error(fermata_abi::sys::runtime::cudaErrorNoDevice));
        }
        put(count, devices)
    }

    /// The device of the calling thread.
    fn cudaGetDevice(device: *mut c_int) {
        if device.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        put(device, context::chosen()?)
    }

    /// Makes a device that of the calling thread, and its primary context current.
    fn cudaSetDevice(device: c_int) {
        context::choose(device)
    }

    /// Creates the primary context of a device without making it current.
    fn cudaInitDevice(device: c_int, device_flags: c_uint, flags: c_uint) {
        const FLAGS_ARE_VALID: c_uint = fermata_abi::sys::runtime::cudaInitDeviceFlagsAreValid;
        let calls = driver::get()?;
        let handle = context::device(calls, device)?;
        if flags & FLAGS_ARE_VALID != 0 {
            calls.cuDevicePrimaryCtxSetFlags_v2(handle, device_flags & !MAP_HOST)?;
        }
        context::primary(calls, device).map(|_| ())
    }

    /// Restricts the devices a thread starts with; the first of the list becomes its device.
    fn cudaSetValidDevices(devices: *mut c_int, count: c_int) {
        if count < 0 || (count > 0 && devices.is_null()) {
            return Err(Error::INVALID_VALUE);
        }
        let calls = driver::get()?;
        for at in 0..count as usize {
            context::device(calls, devices.add(at).read())?;
        }
        if count == 0 { Ok(()) } else { context::choose(devices.read()) }
    }

    /// Sets how the thread's device waits, before or after its context is made.
    fn cudaSetDeviceFlags(flags: c_uint) {
        let calls = driver::get()?;
        let device = context::device(calls, context::chosen()?)?;
        match calls.cuDevicePrimaryCtxSetFlags_v2(device, flags & !MAP_HOST) {
            Err(Error(cudaErrorSetOnActiveProcess)) => Ok(()),
            result => result,
        }
    }

    /// The flags of the thread's device.
    fn cudaGetDeviceFlags(flags: *mut c_uint) {
        let calls = driver::get()?;
        let device = context::device(calls, context::chosen()?)?;
        let (mut set, mut active) = (0, 0);
        calls.cuDevicePrimaryCtxGetState(device, &mut set, &mut active)?;
        put(flags, set | MAP_HOST)
    }

    /// Waits for all work of the thread's device.
    fn cudaDeviceSynchronize() {
        context::ready()?.cuCtxSynchronize()
    }

    /// Destroys the primary context of the thread's device.
    fn cudaDeviceReset() {
        context::reset()
    }

    /// An attribute of a device; the numbers are the driver's.
    fn cudaDeviceGetAttribute(value: *mut c_int, attribute: cudaDeviceAttr, device: c_int) {
        if value.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let calls = driver::get()?;
        let device = context::device(calls, device)?;
        calls.cuDeviceGetAttribute(value, attribute, device)
    }

    /// The device with a bus number such as `0000:3b:00.0`.
    fn cudaDeviceGetByPCIBusId(device: *mut c_int, id: *const c_char) {
        if device.is_null() || id.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        driver::get()?.cuDeviceGetByPCIBusId(device, id)
    }

    /// The bus number of a device.
    fn cudaDeviceGetPCIBusId(id: *mut c_char, length: c_int, device: c_int) {
        if id.is_null() || length <= 0 {
            return Err(Error::INVALID_VALUE);
        }
        let calls = driver::get()?;
        let device = context::device(calls, device)?;
        calls.cuDeviceGetPCIBusId(id, length, device)
    }

    /// Sets a limit of the thread's device.
    fn cudaDeviceSetLimit(limit: cudaLimit, value: usize) {
        context::ready()?.cuCtxSetLimit(limit, value)
    }

    /// A limit of the thread's device.
    fn cudaDeviceGetLimit(value: *mut usize, limit: cudaLimit) {
        if value.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuCtxGetLimit(value, limit)
    }

    /// Sets the preferred split between cache and shared memory.
    fn cudaDeviceSetCacheConfig(config: cudaFuncCache) {
        context::ready()?.cuCtxSetCacheConfig(config)
    }

    /// The preferred split between cache and shared memory.
    fn cudaDeviceGetCacheConfig(config: *mut cudaFuncCache) {
        if config.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuCtxGetCacheConfig(config)
    }

    /// Sets the width of shared memory banks.
    fn cudaDeviceSetSharedMemConfig(config: cudaSharedMemConfig) {
        context::ready()?.cuCtxSetSharedMemConfig(config)
    }

    /// The width of shared memory banks.
    fn cudaDeviceGetSharedMemConfig(config: *mut cudaSharedMemConfig) {
        if config.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuCtxGetSharedMemConfig(config)
    }

    /// Ends the persistence of lines in the second-level cache.
    fn cudaCtxResetPersistingL2Cache() {
        context::ready()?.cuCtxResetPersistingL2Cache()
    }

    /// Makes writes of other devices visible.
    fn cudaDeviceFlushGPUDirectRDMAWrites(
        target: cudaFlushGPUDirectRDMAWritesTarget,
        scope: cudaFlushGPUDirectRDMAWritesScope,
    ) {
        context::ready()?.cuFlushGPUDirectRDMAWrites(target, scope)
    }

    /// The version of the driver, 0 without one.
    fn cudaDriverGetVersion(version: *mut c_int) {
        put(version, driver::version())
    }

    /// The version of this runtime.
    fn cudaRuntimeGetVersion(version: *mut c_int) {
        put(version, VERSION)
    }

    /// Starts profiling; profilers attach below the driver, so this succeeds without one.
    fn cudaProfilerStart() {
        driver::get().map(|_| ())
    }

    /// Stops profiling.
    fn cudaProfilerStop() {
        driver::get().map(|_| ())
    }
}
