//! Exported functions for copies.

use fermata_abi::op::ContextId;
use std::ffi::c_void;
use std::sync::Arc;

use fermata_abi::sys::driver as cu;
use fermata_graph::{Copy, CopyEnd, NodeKind, Place};

use super::args::{In, Out};
use super::init::driver;
use super::to_handle;
use crate::capture;
use crate::copy::Plan;
use crate::error::{INVALID_VALUE, Result};
use crate::stream::Stream;
use crate::work::Work;

/// A linear copy.
fn linear(dst: (Place, u64), src: (Place, u64), bytes: usize) -> Copy {
    Copy::linear(
        CopyEnd::linear(dst.0, dst.1),
        CopyEnd::linear(src.0, src.1),
        bytes as u64,
    )
}

fn host<T>(pointer: In<T>) -> (Place, u64) {
    (Place::Host, pointer.address())
}

fn array(handle: cu::CUarray, offset: usize, bytes: usize) -> (CopyEnd, u64) {
    let end = CopyEnd {
        x_bytes: offset as u64,
        ..CopyEnd::linear(Place::Array, to_handle(handle))
    };
    (end, bytes as u64)
}

/// A copy on the legacy default stream that returns when host memory may be used again.
fn copy_sync(copy: Copy) -> Result {
    let stream = Stream::resolve(std::ptr::null_mut())?;
    capture::forbid_on(&stream)?;
    let plan = Plan::new(driver()?, copy)?;
    if !plan.touches_host {
        return stream.submit(Work::Copy(plan)).map(drop);
    }
    let done = match plan.is_slowed() {
        true => stream.submit(Work::Copy(plan)).map(|point| point.wait()),
        false => stream.execute(Work::Copy(plan)),
    };
    stream.context.flush_output();
    done.and_then(|()| stream.context.check())
}

/// A copy in a stream. Pageable memory is read at once, and written before this returns.
pub fn copy_async(copy: Copy, stream: &Arc<Stream>) -> Result {
    if capture::is_capturing(stream) {
        return capture::submit(stream, NodeKind::Memcpy(copy));
    }
    let driver = driver()?;
    let mut plan = Plan::new(driver, copy)?;
    let waits = plan.pageable.dst || plan.pageable.src && !plan.stage(driver)?;
    capture::forbid_on(stream)?;
    let point = stream.submit(Work::Copy(plan))?;
    if waits {
        point.wait();
        stream.context.check()?;
    }
    Ok(())
}

fn copy_on(copy: Copy, stream: cu::CUstream) -> Result {
    copy_async(copy, &Stream::resolve(stream)?)
}

/// One end of a structured copy as C describes it.
struct CEnd {
    kind: cu::CUmemorytype,
    host: *const c_void,
    device: cu::CUdeviceptr,
    array: cu::CUarray,
    x_bytes: usize,
    y: usize,
    z: usize,
    pitch: usize,
    height: usize,
    context: cu::CUcontext,
}

impl CEnd {
    fn end(self, width: usize, rows: usize) -> Result<CopyEnd> {
        let (place, address) = match self.kind {
            cu::CU_MEMORYTYPE_HOST => (Place::Host, self.host.expose_provenance() as u64),
            cu::CU_MEMORYTYPE_DEVICE => (Place::Device, self.device),
            cu::CU_MEMORYTYPE_UNIFIED => (Place::Unified, self.device),
            cu::CU_MEMORYTYPE_ARRAY => (Place::Array, to_handle(self.array)),
            _ => return Err(INVALID_VALUE),
        };
        // A pitch or height of 0 means that rows or slices follow one another without a gap.
        let or = |value: usize, tight: usize| {
            if value == 0 {
                tight as u64
            } else {
                value as u64
            }
        };
        Ok(CopyEnd {
            place,
            address,
            context: context_of(self.context),
            x_bytes: self.x_bytes as u64,
            y: self.y as u64,
            z: self.z as u64,
            pitch: or(self.pitch, self.x_bytes.saturating_add(width)),
            height: or(self.height, self.y.saturating_add(rows)),
        })
    }
}

/// Reads a 2D copy.
pub fn from_2d(c: &cu::CUDA_MEMCPY2D) -> Result<Copy> {
    let src = CEnd {
        kind: c.srcMemoryType,
        host: c.srcHost,
        device: c.srcDevice,
        array: c.srcArray,
        x_bytes: c.srcXInBytes,
        y: c.srcY,
        z: 0,
        pitch: c.srcPitch,
        height: 0,
        context: std::ptr::null_mut(),
    };
    let dst = CEnd {
        kind: c.dstMemoryType,
        host: c.dstHost,
        device: c.dstDevice,
        array: c.dstArray,
        x_bytes: c.dstXInBytes,
        y: c.dstY,
        z: 0,
        pitch: c.dstPitch,
        height: 0,
        context: std::ptr::null_mut(),
    };
    let (width, rows) = (c.WidthInBytes, c.Height);
    let (src, dst) = (src.end(width, rows)?, dst.end(width, rows)?);
    Ok(Copy {
        src,
        dst,
        width_bytes: width as u64,
        height: rows as u64,
        depth: 1,
    })
}

/// Reads a 3D copy.
pub fn from_3d(c: &cu::CUDA_MEMCPY3D) -> Result<Copy> {
    let src = CEnd {
        kind: c.srcMemoryType,
        host: c.srcHost,
        device: c.srcDevice,
        array: c.srcArray,
        x_bytes: c.srcXInBytes,
        y: c.srcY,
        z: c.srcZ,
        pitch: c.srcPitch,
        height: c.srcHeight,
        context: std::ptr::null_mut(),
    };
    let dst = CEnd {
        kind: c.dstMemoryType,
        host: c.dstHost,
        device: c.dstDevice,
        array: c.dstArray,
        x_bytes: c.dstXInBytes,
        y: c.dstY,
        z: c.dstZ,
        pitch: c.dstPitch,
        height: c.dstHeight,
        context: std::ptr::null_mut(),
    };
    let (width, rows) = (c.WidthInBytes, c.Height);
    let (src, dst) = (src.end(width, rows)?, dst.end(width, rows)?);
    Ok(Copy {
        src,
        dst,
        width_bytes: width as u64,
        height: rows as u64,
        depth: c.Depth as u64,
    })
}

/// Reads a 3D copy between contexts.
fn from_3d_peer(c: &cu::CUDA_MEMCPY3D_PEER) -> Result<Copy> {
    let mut copy = from_3d(&cu::CUDA_MEMCPY3D {
        srcXInBytes: c.srcXInBytes,
        srcY: c.srcY,
        srcZ: c.srcZ,
        srcLOD: c.srcLOD,
        srcMemoryType: c.srcMemoryType,
        srcHost: c.srcHost,
        srcDevice: c.srcDevice,
        srcArray: c.srcArray,
        srcPitch: c.srcPitch,
        srcHeight: c.srcHeight,
        dstXInBytes: c.dstXInBytes,
        dstY: c.dstY,
        dstZ: c.dstZ,
        dstLOD: c.dstLOD,
        dstMemoryType: c.dstMemoryType,
        dstHost: c.dstHost,
        dstDevice: c.dstDevice,
        dstArray: c.dstArray,
        dstPitch: c.dstPitch,
        dstHeight: c.dstHeight,
        WidthInBytes: c.WidthInBytes,
        Height: c.Height,
        Depth: c.Depth,
        ..Default::default()
    })?;
    (copy.src.context, copy.dst.context) = (context_of(c.srcContext), context_of(c.dstContext));
    Ok(copy)
}

/// Turns a 3D copy back into what C calls it.
pub fn to_3d(copy: &Copy) -> cu::CUDA_MEMCPY3D {
    let kind = |end: &CopyEnd| match end.place {
        Place::Host => cu::CU_MEMORYTYPE_HOST,
        Place::Device => cu::CU_MEMORYTYPE_DEVICE,
        Place::Array => cu::CU_MEMORYTYPE_ARRAY,
        Place::Unified => cu::CU_MEMORYTYPE_UNIFIED,
    };
    let host = |end: &CopyEnd| match end.place {
        Place::Host => end.address as usize,
        _ => 0,
    };
    let device = |end: &CopyEnd| match end.place {
        Place::Device | Place::Unified => end.address,
        _ => 0,
    };
    let array = |end: &CopyEnd| match end.place {
        Place::Array => super::to_pointer(end.address),
        _ => std::ptr::null_mut(),
    };
    let (src, dst) = (&copy.src, &copy.dst);
    cu::CUDA_MEMCPY3D {
        srcXInBytes: src.x_bytes as usize,
        srcY: src.y as usize,
        srcZ: src.z as usize,
        srcMemoryType: kind(src),
        srcHost: std::ptr::with_exposed_provenance(host(src)),
        srcDevice: device(src),
        srcArray: array(src),
        srcPitch: src.pitch as usize,
        srcHeight: src.height as usize,
        dstXInBytes: dst.x_bytes as usize,
        dstY: dst.y as usize,
        dstZ: dst.z as usize,
        dstMemoryType: kind(dst),
        dstHost: std::ptr::with_exposed_provenance_mut(host(dst)),
        dstDevice: device(dst),
        dstArray: array(dst),
        dstPitch: dst.pitch as usize,
        dstHeight: dst.height as usize,
        WidthInBytes: copy.width_bytes as usize,
        Height: copy.height as usize,
        Depth: copy.depth as usize,
        ..Default::default()
    }
}

fn device_to_array(dst: cu::CUarray, offset: usize, src: (Place, u64), bytes: usize) -> Copy {
    let (dst, bytes) = array(dst, offset, bytes);
    Copy::linear(dst, CopyEnd::linear(src.0, src.1), bytes)
}

fn array_to(dst: (Place, u64), src: cu::CUarray, offset: usize, bytes: usize) -> Copy {
    let (src, bytes) = array(src, offset, bytes);
    Copy::linear(CopyEnd::linear(dst.0, dst.1), src, bytes)
}

api! {
    fn cuMemcpy(dst: cu::CUdeviceptr, src: cu::CUdeviceptr, bytes: usize) {
        copy_sync(linear((Place::Unified, dst), (Place::Unified, src), bytes))
    }

    fn cuMemcpyAsync(dst: cu::CUdeviceptr, src: cu::CUdeviceptr, bytes: usize, stream: cu::CUstream) {
        copy_on(linear((Place::Unified, dst), (Place::Unified, src), bytes), stream)
    }

    fn cuMemcpyHtoD_v2(dst: cu::CUdeviceptr, src: In<c_void>, bytes: usize) {
        copy_sync(linear((Place::Device, dst), host(src), bytes))
    }

    fn cuMemcpyHtoDAsync_v2(
        dst: cu::CUdeviceptr,
        src: In<c_void>,
        bytes: usize,
        stream: cu::CUstream,
    ) {
        copy_on(linear((Place::Device, dst), host(src), bytes), stream)
    }

    fn cuMemcpyDtoH_v2(dst: Out<c_void>, src: cu::CUdeviceptr, bytes: usize) {
        copy_sync(linear(host(dst.to_in()), (Place::Device, src), bytes))
    }

    fn cuMemcpyDtoHAsync_v2(
        dst: Out<c_void>,
        src: cu::CUdeviceptr,
        bytes: usize,
        stream: cu::CUstream,
    ) {
        copy_on(linear(host(dst.to_in()), (Place::Device, src), bytes), stream)
    }

    fn cuMemcpyDtoD_v2(dst: cu::CUdeviceptr, src: cu::CUdeviceptr, bytes: usize) {
        copy_sync(linear((Place::Device, dst), (Place::Device, src), bytes))
    }

    fn cuMemcpyDtoDAsync_v2(
        dst: cu::CUdeviceptr,
        src: cu::CUdeviceptr,
        bytes: usize,
        stream: cu::CUstream,
    ) {
        copy_on(linear((Place::Device, dst), (Place::Device, src), bytes), stream)
    }

    fn cuMemcpyPeer(
        dst: cu::CUdeviceptr,
        dst_context: cu::CUcontext,
        src: cu::CUdeviceptr,
        src_context: cu::CUcontext,
        bytes: usize,
    ) {
        copy_sync(peer(dst, dst_context, src, src_context, bytes)?)
    }

    fn cuMemcpyPeerAsync(
        dst: cu::CUdeviceptr,
        dst_context: cu::CUcontext,
        src: cu::CUdeviceptr,
        src_context: cu::CUcontext,
        bytes: usize,
        stream: cu::CUstream,
    ) {
        copy_on(peer(dst, dst_context, src, src_context, bytes)?, stream)
    }

    fn cuMemcpyDtoA_v2(dst: cu::CUarray, offset: usize, src: cu::CUdeviceptr, bytes: usize) {
        copy_sync(device_to_array(dst, offset, (Place::Device, src), bytes))
    }

    fn cuMemcpyHtoA_v2(dst: cu::CUarray, offset: usize, src: In<c_void>, bytes: usize) {
        copy_sync(device_to_array(dst, offset, host(src), bytes))
    }

    fn cuMemcpyHtoAAsync_v2(
        dst: cu::CUarray,
        offset: usize,
        src: In<c_void>,
        bytes: usize,
        stream: cu::CUstream,
    ) {
        copy_on(device_to_array(dst, offset, host(src), bytes), stream)
    }

    fn cuMemcpyAtoD_v2(dst: cu::CUdeviceptr, src: cu::CUarray, offset: usize, bytes: usize) {
        copy_sync(array_to((Place::Device, dst), src, offset, bytes))
    }

    fn cuMemcpyAtoH_v2(dst: Out<c_void>, src: cu::CUarray, offset: usize, bytes: usize) {
        copy_sync(array_to(host(dst.to_in()), src, offset, bytes))
    }

    fn cuMemcpyAtoHAsync_v2(
        dst: Out<c_void>,
        src: cu::CUarray,
        offset: usize,
        bytes: usize,
        stream: cu::CUstream,
    ) {
        copy_on(array_to(host(dst.to_in()), src, offset, bytes), stream)
    }

    fn cuMemcpyAtoA_v2(
        dst: cu::CUarray,
        dst_offset: usize,
        src: cu::CUarray,
        src_offset: usize,
        bytes: usize,
    ) {
        let ((dst, bytes), (src, _)) = (array(dst, dst_offset, bytes), array(src, src_offset, bytes));
        copy_sync(Copy::linear(dst, src, bytes))
    }

    fn cuMemcpy2D_v2 | fn cuMemcpy2DUnaligned_v2(copy: In<cu::CUDA_MEMCPY2D>) {
        copy_sync(from_2d(&copy.get()?)?)
    }

    fn cuMemcpy2DAsync_v2(copy: In<cu::CUDA_MEMCPY2D>, stream: cu::CUstream) {
        copy_on(from_2d(&copy.get()?)?, stream)
    }

    fn cuMemcpy3D_v2(copy: In<cu::CUDA_MEMCPY3D>) {
        copy_sync(from_3d(&copy.get()?)?)
    }

    fn cuMemcpy3DAsync_v2(copy: In<cu::CUDA_MEMCPY3D>, stream: cu::CUstream) {
        copy_on(from_3d(&copy.get()?)?, stream)
    }

    fn cuMemcpy3DPeer(copy: In<cu::CUDA_MEMCPY3D_PEER>) {
        copy_sync(from_3d_peer(&copy.get()?)?)
    }

    fn cuMemcpy3DPeerAsync(copy: In<cu::CUDA_MEMCPY3D_PEER>, stream: cu::CUstream) {
        copy_on(from_3d_peer(&copy.get()?)?, stream)
    }

    fn cuMemcpyBatchAsync(
        dsts: In<cu::CUdeviceptr>,
        srcs: In<cu::CUdeviceptr>,
        sizes: In<usize>,
        count: usize,
        attributes: In<cu::CUmemcpyAttributes>,
        indices: In<usize>,
        attribute_count: usize,
        failed: Out<usize>,
        stream: cu::CUstream,
    ) {
        failed.set_if_wanted(usize::MAX);
        let attributes = (attributes, indices, attribute_count);
        batch((dsts, srcs, sizes, count), attributes, failed, stream)
    }

    /// The copies of a batch are done in order; attributes only tune them.
    fn cuMemcpyBatchAsync_v2(
        dsts: In<cu::CUdeviceptr>,
        srcs: In<cu::CUdeviceptr>,
        sizes: In<usize>,
        count: usize,
        attributes: In<cu::CUmemcpyAttributes>,
        indices: In<usize>,
        attribute_count: usize,
        stream: cu::CUstream,
    ) {
        let attributes = (attributes, indices, attribute_count);
        batch((dsts, srcs, sizes, count), attributes, Out::null(), stream)
    }
}

/// Destinations, sources, sizes, and how many there are.
type Lists = (In<cu::CUdeviceptr>, In<cu::CUdeviceptr>, In<usize>, usize);

fn batch(
    (dsts, srcs, sizes, count): Lists,
    (attributes, indices, attribute_count): (In<cu::CUmemcpyAttributes>, In<usize>, usize),
    failed: Out<usize>,
    stream: cu::CUstream,
) -> Result {
    if count == 0 || attribute_count > count || attribute_count > 0 && attributes.is_null() {
        return Err(INVALID_VALUE);
    }
    if indices
        .list(attribute_count)?
        .first()
        .is_some_and(|first| *first != 0)
    {
        return Err(INVALID_VALUE);
    }
    // The default streams take no batches.
    if stream.is_null() || stream.addr() == 1 {
        return Err(INVALID_VALUE);
    }
    let stream = Stream::resolve(stream)?;
    for index in 0..count {
        let (dst, src) = (dsts.get_at(index)?, srcs.get_at(index)?);
        let copy = linear(
            (Place::Unified, dst),
            (Place::Unified, src),
            sizes.get_at(index)?,
        );
        copy_async(copy, &stream).inspect_err(|_| failed.set_if_wanted(index))?;
    }
    Ok(())
}

fn context_of(context: cu::CUcontext) -> ContextId {
    ContextId::from_raw(to_handle(context))
}

fn peer(
    dst: cu::CUdeviceptr,
    dst_context: cu::CUcontext,
    src: cu::CUdeviceptr,
    src_context: cu::CUcontext,
    bytes: usize,
) -> Result<Copy> {
    for handle in [dst_context, src_context] {
        crate::context::named(to_handle(handle))?;
    }
    let mut copy = linear((Place::Device, dst), (Place::Device, src), bytes);
    (copy.dst.context, copy.src.context) = (context_of(dst_context), context_of(src_context));
    Ok(copy)
}
