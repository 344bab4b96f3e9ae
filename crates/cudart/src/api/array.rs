//! Arrays: allocation, description, and copies of rectangles in and out.
use core::ffi::{c_int, c_uint, c_void};

use fermata_abi::sys::driver as drv;
use fermata_abi::sys::runtime::{
    self as sys, cudaArray_const_t, cudaArray_t, cudaChannelFormatDesc, cudaChannelFormatKind,
    cudaExtent, cudaMemcpyKind, cudaMipmappedArray_const_t, cudaMipmappedArray_t, cudaStream_t,
};

use crate::api::memcpy::{self, Order};
use crate::api::memory::address;
use crate::context;
use crate::driver::Calls;
use crate::error::{Error, Result, export, get, put};

const INVALID_CHANNELS: Error = Error(sys::cudaErrorInvalidChannelDescriptor);

/// The driver's element format and number of channels.
fn format(of: &cudaChannelFormatDesc) -> Result<(drv::CUarray_format, c_uint)> {
    let bits = [of.x, of.y, of.z, of.w];
    let channels = bits.iter().take_while(|b| **b != 0).count();
    let alike = bits[..channels].iter().all(|b| *b == of.x);
    let rest_empty = bits[channels..].iter().all(|b| *b == 0);
    if !matches!(channels, 1 | 2 | 4) || !alike || !rest_empty {
        return Err(INVALID_CHANNELS);
    }
    let format = match (of.f, of.x) {
        (sys::cudaChannelFormatKindSigned, 8) => drv::CU_AD_FORMAT_SIGNED_INT8,
        (sys::cudaChannelFormatKindSigned, 16) => drv::CU_AD_FORMAT_SIGNED_INT16,
        (sys::cudaChannelFormatKindSigned, 32) => drv::CU_AD_FORMAT_SIGNED_INT32,
        (sys::cudaChannelFormatKindUnsigned, 8) => drv::CU_AD_FORMAT_UNSIGNED_INT8,
        (sys::cudaChannelFormatKindUnsigned, 16) => drv::CU_AD_FORMAT_UNSIGNED_INT16,
        (sys::cudaChannelFormatKindUnsigned, 32) => drv::CU_AD_FORMAT_UNSIGNED_INT32,
        (sys::cudaChannelFormatKindFloat, 16) => drv::CU_AD_FORMAT_HALF,
        (sys::cudaChannelFormatKindFloat, 32) => drv::CU_AD_FORMAT_FLOAT,
        _ => return Err(INVALID_CHANNELS),
    };
    Ok((format, channels as c_uint))
}

/// The runtime's form of an element format.
fn channels(of: &drv::CUDA_ARRAY3D_DESCRIPTOR) -> Result<cudaChannelFormatDesc> {
    let (kind, bits) = match of.Format {
        drv::CU_AD_FORMAT_SIGNED_INT8 => (sys::cudaChannelFormatKindSigned, 8),
        drv::CU_AD_FORMAT_SIGNED_INT16 => (sys::cudaChannelFormatKindSigned, 16),
        drv::CU_AD_FORMAT_SIGNED_INT32 => (sys::cudaChannelFormatKindSigned, 32),
        drv::CU_AD_FORMAT_UNSIGNED_INT8 => (sys::cudaChannelFormatKindUnsigned, 8),
        drv::CU_AD_FORMAT_UNSIGNED_INT16 => (sys::cudaChannelFormatKindUnsigned, 16),
        drv::CU_AD_FORMAT_UNSIGNED_INT32 => (sys::cudaChannelFormatKindUnsigned, 32),
        drv::CU_AD_FORMAT_HALF => (sys::cudaChannelFormatKindFloat, 16),
        drv::CU_AD_FORMAT_FLOAT => (sys::cudaChannelFormatKindFloat, 32),
        _ => return Err(INVALID_CHANNELS),
    };
    let has = |channel| if of.NumChannels > channel { bits } else { 0 };
    Ok(cudaChannelFormatDesc {
        x: has(0),
        y: has(1),
        z: has(2),
        w: has(3),
        f: kind,
    })
}

fn descriptor(calls: &Calls, array: cudaArray_const_t) -> Result<drv::CUDA_ARRAY3D_DESCRIPTOR> {
    let mut descriptor = drv::CUDA_ARRAY3D_DESCRIPTOR::default();
    // SAFETY: the program's handle and a place for the result.
    unsafe { calls.cuArray3DGetDescriptor_v2(&mut descriptor, array.cast_mut().cast()) }?;
    Ok(descriptor)
}

/// Bytes of one element of an array.
///
/// # Errors
/// What the driver says of the handle, or that the format is not one the runtime makes.
pub fn element_bytes(calls: &Calls, array: cudaArray_const_t) -> Result<usize> {
    let form = channels(&descriptor(calls, array)?)?;
    Ok(((form.x + form.y + form.z + form.w) / 8) as usize)
}

fn shape(
    of: *const cudaChannelFormatDesc,
    extent: cudaExtent,
    flags: c_uint,
) -> Result<drv::CUDA_ARRAY3D_DESCRIPTOR> {
    // SAFETY: null is looked for, anything else is the program's structure.
    let (format, channels) = format(unsafe { get(of) }?)?;
    Ok(drv::CUDA_ARRAY3D_DESCRIPTOR {
        Width: extent.width,
        Height: extent.height,
        Depth: extent.depth,
        Format: format,
        NumChannels: channels,
        Flags: flags,
    })
}

/// A rectangle in an array, as one side of a copy; offsets are bytes and rows.
struct Corner<A> {
    array: A,
    x: usize,
    y: usize,
}

/// # Safety
/// `from` has the rows where `kind` says.
unsafe fn into_array(
    to: Corner<cudaArray_t>,
    (from, pitch): (*const c_void, usize),
    (width, height): (usize, usize),
    kind: cudaMemcpyKind,
    order: Order,
) -> Result {
    let (side, _) = memcpy::sides(kind)?;
    let mut copy = drv::CUDA_MEMCPY2D {
        srcMemoryType: side,
        srcPitch: pitch,
        dstMemoryType: drv::CU_MEMORYTYPE_ARRAY,
        dstArray: to.array.cast(),
        dstXInBytes: to.x,
        dstY: to.y,
        WidthInBytes: width,
        Height: height,
        ..Default::default()
    };
    match side {
        drv::CU_MEMORYTYPE_HOST => copy.srcHost = from,
        _ => copy.srcDevice = address(from),
    }
    // SAFETY: the caller's promise.
    unsafe { memcpy::submit(&copy, order) }
}

/// # Safety
/// `to` has the rows where `kind` says.
unsafe fn out_of_array(
    (to, pitch): (*mut c_void, usize),
    from: Corner<cudaArray_const_t>,
    (width, height): (usize, usize),
    kind: cudaMemcpyKind,
    order: Order,
) -> Result {
    let (_, side) = memcpy::sides(kind)?;
    let mut copy = drv::CUDA_MEMCPY2D {
        srcMemoryType: drv::CU_MEMORYTYPE_ARRAY,
        srcArray: from.array.cast_mut().cast(),
        srcXInBytes: from.x,
        srcY: from.y,
        dstMemoryType: side,
        dstPitch: pitch,
        WidthInBytes: width,
        Height: height,
        ..Default::default()
    };
    match side {
        drv::CU_MEMORYTYPE_HOST => copy.dstHost = to,
        _ => copy.dstDevice = address(to),
    }
    // SAFETY: the caller's promise.
    unsafe { memcpy::submit(&copy, order) }
}

/// A channel format.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub extern "C" fn cudaCreateChannelDesc(
    x: c_int,
    y: c_int,
    z: c_int,
    w: c_int,
    f: cudaChannelFormatKind,
) -> cudaChannelFormatDesc {
    cudaChannelFormatDesc { x, y, z, w, f }
}

export! {
    /// Allocates an array of one or two dimensions.
    fn cudaMallocArray(
        array: *mut cudaArray_t,
        form: *const cudaChannelFormatDesc,
        width: usize,
        height: usize,
        flags: c_uint,
    ) {
        if array.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let shape = shape(form, cudaExtent { width, height, depth: 0 }, flags)?;
        context::ready()?.cuArray3DCreate_v2(array.cast(), &shape)
    }

    /// Allocates an array of up to three dimensions.
    fn cudaMalloc3DArray(
        array: *mut cudaArray_t,
        form: *const cudaChannelFormatDesc,
        extent: cudaExtent,
        flags: c_uint,
    ) {
        if array.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let shape = shape(form, extent, flags)?;
        context::ready()?.cuArray3DCreate_v2(array.cast(), &shape)
    }

    /// Frees an array; null is nothing.
    fn cudaFreeArray(array: cudaArray_t) {
        let calls = context::ready()?;
        if array.is_null() { Ok(()) } else { calls.cuArrayDestroy(array.cast()) }
    }

    /// Allocates an array with coarser levels.
    fn cudaMallocMipmappedArray(
        array: *mut cudaMipmappedArray_t,
        form: *const cudaChannelFormatDesc,
        extent: cudaExtent,
        levels: c_uint,
        flags: c_uint,
    ) {
        if array.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let shape = shape(form, extent, flags)?;
        context::ready()?.cuMipmappedArrayCreate(array.cast(), &shape, levels)
    }

    /// Frees an array with levels; null is nothing.
    fn cudaFreeMipmappedArray(array: cudaMipmappedArray_t) {
        let calls = context::ready()?;
        if array.is_null() { Ok(()) } else { calls.cuMipmappedArrayDestroy(array.cast()) }
    }

    /// One level of an array.
    fn cudaGetMipmappedArrayLevel(
        level: *mut cudaArray_t,
        array: cudaMipmappedArray_const_t,
        index: c_uint,
    ) {
        if level.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        context::ready()?.cuMipmappedArrayGetLevel(level.cast(), array.cast_mut().cast(), index)
    }

    /// Format, size and flags of an array; null where not wanted.
    fn cudaArrayGetInfo(
        form: *mut cudaChannelFormatDesc,
        extent: *mut cudaExtent,
        flags: *mut c_uint,
        array: cudaArray_t,
    ) {
        let of = descriptor(context::ready()?, array)?;
        if !form.is_null() {
            put(form, channels(&of)?)?;
        }
        if !extent.is_null() {
            put(extent, cudaExtent { width: of.Width, height: of.Height, depth: of.Depth })?;
        }
        if flags.is_null() { Ok(()) } else { put(flags, of.Flags) }
    }

    /// The format of an array.
    fn cudaGetChannelDesc(form: *mut cudaChannelFormatDesc, array: cudaArray_const_t) {
        put(form, channels(&descriptor(context::ready()?, array)?)?)
    }

    /// Copies a rectangle into an array.
    fn cudaMemcpy2DToArray(
        array: cudaArray_t,
        x: usize,
        y: usize,
        from: *const c_void,
        pitch: usize,
        width: usize,
        height: usize,
        kind: cudaMemcpyKind,
    ) {
        into_array(Corner { array, x, y }, (from, pitch), (width, height), kind, Order::Legacy)
    }

    /// Copies a rectangle into an array in stream order.
    fn cudaMemcpy2DToArrayAsync(
        array: cudaArray_t,
        x: usize,
        y: usize,
        from: *const c_void,
        pitch: usize,
        width: usize,
        height: usize,
        kind: cudaMemcpyKind,
        stream: cudaStream_t,
    ) {
        let order = Order::Stream(stream);
        into_array(Corner { array, x, y }, (from, pitch), (width, height), kind, order)
    }

    /// Copies a rectangle out of an array.
    fn cudaMemcpy2DFromArray(
        to: *mut c_void,
        pitch: usize,
        array: cudaArray_const_t,
        x: usize,
        y: usize,
        width: usize,
        height: usize,
        kind: cudaMemcpyKind,
    ) {
        out_of_array((to, pitch), Corner { array, x, y }, (width, height), kind, Order::Legacy)
    }

    /// Copies a rectangle out of an array in stream order.
    fn cudaMemcpy2DFromArrayAsync(
        to: *mut c_void,
        pitch: usize,
        array: cudaArray_const_t,
        x: usize,
        y: usize,
        width: usize,
        height: usize,
        kind: cudaMemcpyKind,
        stream: cudaStream_t,
    ) {
        let order = Order::Stream(stream);
        out_of_array((to, pitch), Corner { array, x, y }, (width, height), kind, order)
    }

    /// Copies a rectangle from array to array.
    fn cudaMemcpy2DArrayToArray(
        to: cudaArray_t,
        to_x: usize,
        to_y: usize,
        from: cudaArray_const_t,
        from_x: usize,
        from_y: usize,
        width: usize,
        height: usize,
        kind: cudaMemcpyKind,
    ) {
        memcpy::sides(kind)?;
        let copy = drv::CUDA_MEMCPY2D {
            srcMemoryType: drv::CU_MEMORYTYPE_ARRAY,
            srcArray: from.cast_mut().cast(),
            srcXInBytes: from_x,
            srcY: from_y,
            dstMemoryType: drv::CU_MEMORYTYPE_ARRAY,
            dstArray: to.cast(),
            dstXInBytes: to_x,
            dstY: to_y,
            WidthInBytes: width,
            Height: height,
            ..Default::default()
        };
        memcpy::submit(&copy, Order::Legacy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_go_there_and_back() {
        for (kind, bits) in [
            (0, 8),
            (0, 16),
            (0, 32),
            (1, 8),
            (1, 16),
            (1, 32),
            (2, 16),
            (2, 32),
        ] {
            for used in [1, 2, 4] {
                let has = |channel| if used > channel { bits } else { 0 };
                let form = cudaChannelFormatDesc {
                    x: has(0),
                    y: has(1),
                    z: has(2),
                    w: has(3),
                    f: kind,
                };
                let extent = cudaExtent {
                    width: 4,
                    height: 0,
                    depth: 0,
                };
                let made = shape(&form, extent, 0).expect("a format");
                let back = channels(&made).expect("a format");
                assert_eq!(
                    (back.x, back.y, back.z, back.w, back.f),
                    (form.x, form.y, form.z, form.w, kind)
                );
            }
        }
    }

    #[test]
    fn odd_formats_are_refused() {
        for (x, y, z, w) in [
            (0, 0, 0, 0),
            (8, 8, 8, 0),
            (8, 16, 0, 0),
            (8, 0, 8, 0),
            (7, 0, 0, 0),
        ] {
            assert_eq!(
                format(&cudaChannelFormatDesc { x, y, z, w, f: 1 }),
                Err(INVALID_CHANNELS)
            );
        }
    }
}
