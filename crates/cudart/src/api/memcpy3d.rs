//! Copies of boxes, and their form in the driver (which graph nodes use as well).
use core::ffi::c_void;

use fermata_abi::sys::driver as drv;
use fermata_abi::sys::runtime::{
    cudaArray_t, cudaExtent, cudaMemcpy3DParms, cudaMemcpy3DPeerParms, cudaMemcpyDefault,
    cudaMemcpyDeviceToDevice, cudaMemcpyDeviceToHost, cudaMemcpyHostToDevice, cudaMemcpyHostToHost,
    cudaMemcpyKind, cudaPitchedPtr, cudaPos, cudaStream_t,
};

use crate::api::array::element_bytes;
use crate::api::memcpy::sides;
use crate::api::memory::{address, pointer};
use crate::context;
use crate::driver::Calls;
use crate::error::{Error, Result, export, get};

/// One side of a copy as the runtime describes it.
struct Side {
    array: cudaArray_t,
    position: cudaPos,
    memory: cudaPitchedPtr,
}

impl Side {
    /// Exactly one of array and memory must be given.
    fn check(&self) -> Result {
        if self.array.is_null() == self.memory.ptr.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        Ok(())
    }

    /// Bytes of an element, if this is an array.
    fn element(&self, calls: &Calls) -> Result<Option<usize>> {
        if self.array.is_null() {
            return Ok(None);
        }
        element_bytes(calls, self.array).map(Some)
    }
}

fn widen(value: usize, element: usize) -> Result<usize> {
    value.checked_mul(element).ok_or(Error::INVALID_VALUE)
}

/// The driver's form of a copy.
///
/// Widths count elements where an array takes part, bytes else; positions count elements in arrays.
fn build(
    calls: &Calls,
    from: &Side,
    to: &Side,
    extent: cudaExtent,
    kind: cudaMemcpyKind,
) -> Result<drv::CUDA_MEMCPY3D> {
    let (from_side, to_side) = sides(kind)?;
    from.check()?;
    to.check()?;
    let from_element = from.element(calls)?;
    let to_element = to.element(calls)?;
    let unit = from_element.or(to_element).unwrap_or(1);
    let mut copy = drv::CUDA_MEMCPY3D {
        srcXInBytes: widen(from.position.x, from_element.unwrap_or(1))?,
        srcY: from.position.y,
        srcZ: from.position.z,
        dstXInBytes: widen(to.position.x, to_element.unwrap_or(1))?,
        dstY: to.position.y,
        dstZ: to.position.z,
        WidthInBytes: widen(extent.width, unit)?,
        Height: extent.height,
        Depth: extent.depth,
        ..Default::default()
    };
    if from_element.is_some() {
        copy.srcMemoryType = drv::CU_MEMORYTYPE_ARRAY;
        copy.srcArray = from.array.cast();
    } else {
        copy.srcMemoryType = from_side;
        copy.srcPitch = from.memory.pitch;
        copy.srcHeight = from.memory.ysize;
        match from_side {
            drv::CU_MEMORYTYPE_HOST => copy.srcHost = from.memory.ptr,
            _ => copy.srcDevice = address(from.memory.ptr),
        }
    }
    if to_element.is_some() {
        copy.dstMemoryType = drv::CU_MEMORYTYPE_ARRAY;
        copy.dstArray = to.array.cast();
    } else {
        copy.dstMemoryType = to_side;
        copy.dstPitch = to.memory.pitch;
        copy.dstHeight = to.memory.ysize;
        match to_side {
            drv::CU_MEMORYTYPE_HOST => copy.dstHost = to.memory.ptr,
            _ => copy.dstDevice = address(to.memory.ptr),
        }
    }
    Ok(copy)
}

/// The driver's form of a copy of the program.
///
/// # Errors
/// `cudaErrorInvalidValue` or `cudaErrorInvalidMemcpyDirection`
pub fn to_driver(calls: &Calls, from: &cudaMemcpy3DParms) -> Result<drv::CUDA_MEMCPY3D> {
    let source = Side {
        array: from.srcArray,
        position: from.srcPos,
        memory: from.srcPtr,
    };
    let target = Side {
        array: from.dstArray,
        position: from.dstPos,
        memory: from.dstPtr,
    };
    build(calls, &source, &target, from.extent, from.kind)
}

/// A copy of `count` bytes as a box of one row.
///
/// # Errors
/// `cudaErrorInvalidMemcpyDirection`
pub fn line(
    to: *mut c_void,
    from: *const c_void,
    count: usize,
    kind: cudaMemcpyKind,
) -> Result<drv::CUDA_MEMCPY3D> {
    let (from_side, to_side) = sides(kind)?;
    let mut copy = drv::CUDA_MEMCPY3D {
        srcMemoryType: from_side,
        srcPitch: count,
        srcHeight: 1,
        dstMemoryType: to_side,
        dstPitch: count,
        dstHeight: 1,
        WidthInBytes: count,
        Height: 1,
        Depth: 1,
        ..Default::default()
    };
    match from_side {
        drv::CU_MEMORYTYPE_HOST => copy.srcHost = from,
        _ => copy.srcDevice = address(from),
    }
    match to_side {
        drv::CU_MEMORYTYPE_HOST => copy.dstHost = to,
        _ => copy.dstDevice = address(to),
    }
    Ok(copy)
}

/// The runtime's form of a copy that the driver describes.
///
/// # Errors
/// What the driver says of an array.
pub fn to_runtime(calls: &Calls, from: &drv::CUDA_MEMCPY3D) -> Result<cudaMemcpy3DParms> {
    let element = |kind, array: drv::CUarray| match kind {
        drv::CU_MEMORYTYPE_ARRAY => element_bytes(calls, array.cast()).map(Some),
        _ => Ok(None),
    };
    let memory = |kind, host: *mut c_void, device, pitch, ysize| match kind {
        drv::CU_MEMORYTYPE_ARRAY => cudaPitchedPtr::default(),
        drv::CU_MEMORYTYPE_HOST => cudaPitchedPtr {
            ptr: host,
            pitch,
            xsize: pitch,
            ysize,
        },
        _ => cudaPitchedPtr {
            ptr: pointer(device),
            pitch,
            xsize: pitch,
            ysize,
        },
    };
    let from_element = element(from.srcMemoryType, from.srcArray)?;
    let to_element = element(from.dstMemoryType, from.dstArray)?;
    let unit = from_element.or(to_element).unwrap_or(1);
    Ok(cudaMemcpy3DParms {
        srcArray: if from_element.is_some() {
            from.srcArray.cast()
        } else {
            core::ptr::null_mut()
        },
        srcPos: cudaPos {
            x: from.srcXInBytes / from_element.unwrap_or(1),
            y: from.srcY,
            z: from.srcZ,
        },
        srcPtr: memory(
            from.srcMemoryType,
            from.srcHost.cast_mut(),
            from.srcDevice,
            from.srcPitch,
            from.srcHeight,
        ),
        dstArray: if to_element.is_some() {
            from.dstArray.cast()
        } else {
            core::ptr::null_mut()
        },
        dstPos: cudaPos {
            x: from.dstXInBytes / to_element.unwrap_or(1),
            y: from.dstY,
            z: from.dstZ,
        },
        dstPtr: memory(
            from.dstMemoryType,
            from.dstHost,
            from.dstDevice,
            from.dstPitch,
            from.dstHeight,
        ),
        extent: cudaExtent {
            width: from.WidthInBytes / unit,
            height: from.Height,
            depth: from.Depth,
        },
        kind: kind(from.srcMemoryType, from.dstMemoryType),
    })
}

fn kind(from: drv::CUmemorytype, to: drv::CUmemorytype) -> cudaMemcpyKind {
    match (from, to) {
        (drv::CU_MEMORYTYPE_UNIFIED, _) | (_, drv::CU_MEMORYTYPE_UNIFIED) => cudaMemcpyDefault,
        (drv::CU_MEMORYTYPE_HOST, drv::CU_MEMORYTYPE_HOST) => cudaMemcpyHostToHost,
        (drv::CU_MEMORYTYPE_HOST, _) => cudaMemcpyHostToDevice,
        (_, drv::CU_MEMORYTYPE_HOST) => cudaMemcpyDeviceToHost,
        _ => cudaMemcpyDeviceToDevice,
    }
}

fn is_empty(extent: cudaExtent) -> bool {
    extent.width == 0 || extent.height == 0 || extent.depth == 0
}

fn between_devices(calls: &Calls, from: &cudaMemcpy3DPeerParms) -> Result<drv::CUDA_MEMCPY3D_PEER> {
    let source = Side {
        array: from.srcArray,
        position: from.srcPos,
        memory: from.srcPtr,
    };
    let target = Side {
        array: from.dstArray,
        position: from.dstPos,
        memory: from.dstPtr,
    };
    let copy = build(
        calls,
        &source,
        &target,
        from.extent,
        cudaMemcpyDeviceToDevice,
    )?;
    Ok(drv::CUDA_MEMCPY3D_PEER {
        srcXInBytes: copy.srcXInBytes,
        srcY: copy.srcY,
        srcZ: copy.srcZ,
        srcMemoryType: copy.srcMemoryType,
        srcDevice: copy.srcDevice,
        srcArray: copy.srcArray,
        srcContext: context::primary(calls, from.srcDevice)?,
        srcPitch: copy.srcPitch,
        srcHeight: copy.srcHeight,
        dstXInBytes: copy.dstXInBytes,
        dstY: copy.dstY,
        dstZ: copy.dstZ,
        dstMemoryType: copy.dstMemoryType,
        dstDevice: copy.dstDevice,
        dstArray: copy.dstArray,
        dstContext: context::primary(calls, from.dstDevice)?,
        dstPitch: copy.dstPitch,
        dstHeight: copy.dstHeight,
        WidthInBytes: copy.WidthInBytes,
        Height: copy.Height,
        Depth: copy.Depth,
        ..Default::default()
    })
}

export! {
    /// Copies a box.
    fn cudaMemcpy3D(copy: *const cudaMemcpy3DParms) {
        let copy = get(copy)?;
        let calls = context::ready()?;
        if is_empty(copy.extent) {
            return Ok(());
        }
        calls.cuMemcpy3D_v2(&to_driver(calls, copy)?)
    }

    /// Copies a box in stream order.
    fn cudaMemcpy3DAsync(copy: *const cudaMemcpy3DParms, stream: cudaStream_t) {
        let copy = get(copy)?;
        let calls = context::ready()?;
        if is_empty(copy.extent) {
            return Ok(());
        }
        calls.cuMemcpy3DAsync_v2(&to_driver(calls, copy)?, stream.cast())
    }

    /// Copies a box between devices.
    fn cudaMemcpy3DPeer(copy: *const cudaMemcpy3DPeerParms) {
        let copy = get(copy)?;
        let calls = context::ready()?;
        if is_empty(copy.extent) {
            return Ok(());
        }
        calls.cuMemcpy3DPeer(&between_devices(calls, copy)?)
    }

    /// Copies a box between devices in stream order.
    fn cudaMemcpy3DPeerAsync(copy: *const cudaMemcpy3DPeerParms, stream: cudaStream_t) {
        let copy = get(copy)?;
        let calls = context::ready()?;
        if is_empty(copy.extent) {
            return Ok(());
        }
        calls.cuMemcpy3DPeerAsync(&between_devices(calls, copy)?, stream.cast())
    }
}
