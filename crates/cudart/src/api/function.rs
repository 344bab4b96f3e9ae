//! Kernels as objects: attributes, names, parameters, and their handles in the driver.
use core::ffi::{c_char, c_int, c_void};

use fermata_abi::sys::driver as drv;
use fermata_abi::sys::runtime::{
    cudaFuncAttribute, cudaFuncAttributes, cudaFuncCache, cudaFunction_t, cudaKernel_t,
};

use crate::context;
use crate::driver::Calls;
use crate::error::{Error, Result, export, put};
use crate::registry::{self, Handle};

fn attribute(
    calls: &Calls,
    function: drv::CUfunction,
    attribute: drv::CUfunction_attribute,
) -> Result<c_int> {
    let mut value = 0;
    // SAFETY: a live function and a place for the result.
    unsafe { calls.cuFuncGetAttribute(&mut value, attribute, function) }?;
    Ok(value)
}

fn attributes(calls: &Calls, function: drv::CUfunction) -> Result<cudaFuncAttributes> {
    let int = |which| attribute(calls, function, which);
    // Attributes younger than the driver are 0.
    let maybe = |which| attribute(calls, function, which).unwrap_or(0);
    let size = |which| int(which).map(|value| usize::try_from(value).unwrap_or(0));
    Ok(cudaFuncAttributes {
        sharedSizeBytes: size(drv::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
        constSizeBytes: size(drv::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES)?,
        localSizeBytes: size(drv::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
        maxThreadsPerBlock: int(drv::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        numRegs: int(drv::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
        ptxVersion: int(drv::CU_FUNC_ATTRIBUTE_PTX_VERSION)?,
        binaryVersion: int(drv::CU_FUNC_ATTRIBUTE_BINARY_VERSION)?,
        cacheModeCA: int(drv::CU_FUNC_ATTRIBUTE_CACHE_MODE_CA)?,
        maxDynamicSharedSizeBytes: maybe(drv::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES),
        preferredShmemCarveout: maybe(drv::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT),
        clusterDimMustBeSet: maybe(drv::CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET),
        requiredClusterWidth: maybe(drv::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH),
        requiredClusterHeight: maybe(drv::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT),
        requiredClusterDepth: maybe(drv::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH),
        clusterSchedulingPolicyPreference: maybe(
            drv::CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
        ),
        nonPortableClusterSizeAllowed: maybe(
            drv::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
        ),
        ..Default::default()
    })
}

export! {
    /// What a kernel needs and may have.
    fn cudaFuncGetAttributes(to: *mut cudaFuncAttributes, func: *const c_void) {
        let calls = context::ready()?;
        let function = registry::in_context(calls, func)?;
        put(to, attributes(calls, function)?)
    }

    /// Sets an attribute of a kernel; the numbers are the driver's.
    fn cudaFuncSetAttribute(func: *const c_void, attribute: cudaFuncAttribute, value: c_int) {
        let calls = context::ready()?;
        let function = registry::in_context(calls, func)?;
        calls.cuFuncSetAttribute(function, attribute, value)
    }

    /// Sets the preferred split between cache and shared memory.
    fn cudaFuncSetCacheConfig(func: *const c_void, config: cudaFuncCache) {
        let calls = context::ready()?;
        let function = registry::in_context(calls, func)?;
        calls.cuFuncSetCacheConfig(function, config)
    }

    /// Sets the width of shared memory banks for a kernel.
    fn cudaFuncSetSharedMemConfig(func: *const c_void, config: u32) {
        let calls = context::ready()?;
        let function = registry::in_context(calls, func)?;
        calls.cuFuncSetSharedMemConfig(function, config)
    }

    /// The mangled name of a kernel.
    fn cudaFuncGetName(name: *mut *const c_char, func: *const c_void) {
        if name.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let calls = context::ready()?;
        let function = registry::in_context(calls, func)?;
        calls.cuFuncGetName(name, function)
    }

    /// Place and size of one parameter of a kernel.
    fn cudaFuncGetParamInfo(func: *const c_void, index: usize, offset: *mut usize, size: *mut usize) {
        if offset.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let calls = context::ready()?;
        let function = registry::in_context(calls, func)?;
        calls.cuFuncGetParamInfo(function, index, offset, size)
    }

    /// The driver's function for a host stub, in the current context.
    fn cudaGetFuncBySymbol(function: *mut cudaFunction_t, symbol: *const c_void) {
        let calls = context::ready()?;
        put(function, registry::in_context(calls, symbol)?.cast())
    }

    /// The driver's kernel for a host stub.
    fn cudaGetKernel(kernel: *mut cudaKernel_t, stub: *const c_void) {
        let calls = context::ready()?;
        let handle = registry::kernel(calls, stub)?;
        registry::remember(handle.cast(), Handle::Kernel);
        put(kernel, handle.cast())
    }

    /// Sets an attribute of a kernel on one device.
    fn cudaKernelSetAttributeForDevice(
        kernel: cudaKernel_t,
        attribute: cudaFuncAttribute,
        value: c_int,
        device: c_int,
    ) {
        let calls = context::ready()?;
        let device = context::device(calls, device)?;
        calls.cuKernelSetAttribute(attribute, value, kernel.cast(), device)
    }
}
