//! Exported functions for copies in two and three dimensions.

use core::ffi::c_void;

use fermata_abi::op::{Address, Extent, StreamRef};
use fermata_abi::sys::driver as sys;
use fermata_graph::{Copy, NodeKind};

use crate::args::In;
use crate::frame::entry::driver_api;
use crate::object::context::with_current;
use crate::object::session::{Session, session};
use crate::object::stream::legacy;
use crate::result::Result;
use crate::work::boxes::{Corner, Memory, Origin, copy};
use crate::work::capture;

driver_api! {
    fn cuMemcpy2D_v2(copy: In<sys::CUDA_MEMCPY2D>) {
        flat(&copy.get()?, None)
    }

    fn cuMemcpy2DUnaligned_v2(copy: In<sys::CUDA_MEMCPY2D>) {
        flat(&copy.get()?, None)
    }

    fn cuMemcpy2DAsync_v2(copy: In<sys::CUDA_MEMCPY2D>, stream: sys::CUstream) {
        flat(&copy.get()?, Some(stream))
    }

    fn cuMemcpy3D_v2(copy: In<sys::CUDA_MEMCPY3D>) {
        solid(&copy.get()?, None)
    }

    fn cuMemcpy3DAsync_v2(copy: In<sys::CUDA_MEMCPY3D>, stream: sys::CUstream) {
        solid(&copy.get()?, Some(stream))
    }

    fn cuMemcpy3DPeer(copy: In<sys::CUDA_MEMCPY3D_PEER>) {
        peer(&copy.get()?, None)
    }

    fn cuMemcpy3DPeerAsync(copy: In<sys::CUDA_MEMCPY3D_PEER>, stream: sys::CUstream) {
        peer(&copy.get()?, Some(stream))
    }
}

/// One side of a copy as the API's structures describe it.
pub(super) struct Side {
    kind: sys::CUmemorytype,
    host: *mut c_void,
    device: sys::CUdeviceptr,
    array: sys::CUarray,
    origin: Origin,
}

impl Side {
    /// Memory from an address, with bytes from row to row and rows from slice to slice.
    pub(super) fn of_memory(address: sys::CUdeviceptr, (pitch, rows): (u64, u64)) -> Self {
        let (x, y, z) = (0, 0, 0);
        Self {
            kind: sys::CU_MEMORYTYPE_UNIFIED,
            host: core::ptr::null_mut(),
            device: address,
            array: core::ptr::null_mut(),
            origin: Origin {
                x,
                y,
                z,
                pitch,
                rows,
            },
        }
    }

    /// An array from byte x, row y, slice z.
    pub(super) fn of_array(array: sys::CUarray, (x, y, z): (u64, u64, u64)) -> Self {
        let (pitch, rows) = (0, 0);
        Self {
            kind: sys::CU_MEMORYTYPE_ARRAY,
            host: core::ptr::null_mut(),
            device: 0,
            array,
            origin: Origin {
                x,
                y,
                z,
                pitch,
                rows,
            },
        }
    }

    fn corner(&self, session: &Session, extent: &Extent) -> Result<Corner> {
        let memory = match self.kind {
            sys::CU_MEMORYTYPE_HOST => Memory::Host(self.host.cast()),
            sys::CU_MEMORYTYPE_DEVICE => Memory::Device(Address::from_raw(self.device)),
            sys::CU_MEMORYTYPE_UNIFIED => Memory::Unified(Address::from_raw(self.device)),
            sys::CU_MEMORYTYPE_ARRAY => {
                let array = session.arrays.get(self.array)?.handle;
                let Origin { x, y, z, .. } = self.origin;
                return Ok(Corner::Array { array, x, y, z });
            }
            _ => return Err(sys::CUDA_ERROR_INVALID_VALUE),
        };
        Corner::memory(&session.memory, memory, self.origin, extent)
    }

    fn is_host(&self, session: &Session) -> bool {
        match self.kind {
            sys::CU_MEMORYTYPE_HOST => true,
            sys::CU_MEMORYTYPE_UNIFIED => session
                .memory
                .find(Address::from_raw(self.device))
                .is_none_or(|block| block.is_host()),
            _ => false,
        }
    }
}

fn flat(copy: &sys::CUDA_MEMCPY2D, stream: Option<sys::CUstream>) -> Result {
    let origin = |x: usize, y: usize, pitch: usize| Origin {
        x: x as u64,
        y: y as u64,
        z: 0,
        pitch: pitch as u64,
        rows: 0,
    };
    let to = Side {
        kind: copy.dstMemoryType,
        host: copy.dstHost,
        device: copy.dstDevice,
        array: copy.dstArray,
        origin: origin(copy.dstXInBytes, copy.dstY, copy.dstPitch),
    };
    let from = Side {
        kind: copy.srcMemoryType,
        host: copy.srcHost.cast_mut(),
        device: copy.srcDevice,
        array: copy.srcArray,
        origin: origin(copy.srcXInBytes, copy.srcY, copy.srcPitch),
    };
    run(&to, &from, [copy.WidthInBytes, copy.Height, 1], stream)
}

/// Both structures for three dimensions have these fields.
macro_rules! sides {
    ($copy:expr) => {{
        let copy = $copy;
        let origin = |x: usize, y: usize, z: usize, pitch: usize, rows: usize| Origin {
            x: x as u64,
            y: y as u64,
            z: z as u64,
            pitch: pitch as u64,
            rows: rows as u64,
        };
        let to = Side {
            kind: copy.dstMemoryType,
            host: copy.dstHost,
            device: copy.dstDevice,
            array: copy.dstArray,
            origin: origin(
                copy.dstXInBytes,
                copy.dstY,
                copy.dstZ,
                copy.dstPitch,
                copy.dstHeight,
            ),
        };
        let from = Side {
            kind: copy.srcMemoryType,
            host: copy.srcHost.cast_mut(),
            device: copy.srcDevice,
            array: copy.srcArray,
            origin: origin(
                copy.srcXInBytes,
                copy.srcY,
                copy.srcZ,
                copy.srcPitch,
                copy.srcHeight,
            ),
        };
        (to, from, [copy.WidthInBytes, copy.Height, copy.Depth])
    }};
}

fn solid(copy: &sys::CUDA_MEMCPY3D, stream: Option<sys::CUstream>) -> Result {
    if copy.srcLOD != 0 || copy.dstLOD != 0 {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    let (to, from, size) = sides!(copy);
    run(&to, &from, size, stream)
}

fn peer(copy: &sys::CUDA_MEMCPY3D_PEER, stream: Option<sys::CUstream>) -> Result {
    let contexts = &session()?.contexts;
    contexts.get(copy.dstContext)?;
    contexts.get(copy.srcContext)?;
    let (to, from, size) = sides!(copy);
    run(&to, &from, size, stream)
}

/// Without a stream, the copy goes to the legacy one and is waited for where CUDA does so.
pub(super) fn run(
    to: &Side,
    from: &Side,
    [width, height, depth]: [usize; 3],
    stream: Option<sys::CUstream>,
) -> Result {
    let session = session()?;
    let wait = stream.is_none() && (to.is_host(session) || from.is_host(session));
    if width == 0 || height == 0 || depth == 0 {
        return Ok(());
    }
    let extent = Extent {
        width: width as u64,
        height: height as u64,
        depth: depth as u64,
    };
    let (to, from) = (to.corner(session, &extent)?, from.corner(session, &extent)?);
    let Some(stream) = issue(session, to, from, extent, stream)? else {
        return Ok(());
    };
    copy(to, from, extent, stream, wait)
}

/// The stream that a copy goes to; `None` if it has been captured.
pub(super) fn issue(
    session: &Session,
    to: Corner,
    from: Corner,
    extent: Extent,
    stream: Option<sys::CUstream>,
) -> Result<Option<StreamRef>> {
    let Some(stream) = stream else {
        capture::forbid_unsafe(session)?;
        return with_current(|context| Ok(Some(legacy(context))));
    };
    let node = || {
        let context = session.streams.context_of(stream)?.handle;
        let end = |corner: Corner| corner.node_end(&session.memory, context);
        let (src, dst) = (end(from), end(to));
        let Extent {
            width,
            height,
            depth,
        } = extent;
        Ok(NodeKind::Memcpy(Copy {
            src,
            dst,
            width_bytes: width,
            height,
            depth,
        }))
    };
    if capture::add(session, stream, node)? {
        return Ok(None);
    }
    session.streams.resolve(stream).map(Some)
}
