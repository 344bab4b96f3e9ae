//! Copies in one dimension.

use core::ffi::c_void;

use fermata_abi::sys::driver as sys;

use crate::context::with_current;
use crate::copy::{End, linear};
use crate::entry::{Result, driver_api};
use crate::session::{Session, session};
use crate::stream::legacy;

driver_api! {
    fn cuMemcpy(to: sys::CUdeviceptr, from: sys::CUdeviceptr, size: usize) {
        let session = session()?;
        let (to, from) = unified(session, to, from, size)?;
        let stream = with_current(|context| Ok(legacy(context)))?;
        linear(to, from, size as u64, stream, is_host(session, to) || is_host(session, from))
    }

    fn cuMemcpyAsync(to: sys::CUdeviceptr, from: sys::CUdeviceptr, size: usize, stream: sys::CUstream) {
        let session = session()?;
        let (to, from) = unified(session, to, from, size)?;
        linear(to, from, size as u64, session.streams.resolve(stream)?, false)
    }

    fn cuMemcpyHtoD_v2(to: sys::CUdeviceptr, from: *const c_void, size: usize) {
        let session = session()?;
        let stream = with_current(|context| Ok(legacy(context)))?;
        let to = End::device(session, to, size as u64)?;
        let from = End::host(session, from.cast_mut().cast(), size as u64)?;
        linear(to, from, size as u64, stream, true)
    }

    fn cuMemcpyHtoDAsync_v2(to: sys::CUdeviceptr, from: *const c_void, size: usize, stream: sys::CUstream) {
        let session = session()?;
        let stream = session.streams.resolve(stream)?;
        let to = End::device(session, to, size as u64)?;
        let from = End::host(session, from.cast_mut().cast(), size as u64)?;
        linear(to, from, size as u64, stream, false)
    }

    fn cuMemcpyDtoH_v2(to: *mut c_void, from: sys::CUdeviceptr, size: usize) {
        let session = session()?;
        let stream = with_current(|context| Ok(legacy(context)))?;
        let from = End::device(session, from, size as u64)?;
        let to = End::host(session, to.cast(), size as u64)?;
        linear(to, from, size as u64, stream, true)
    }

    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: sys::CUdeviceptr, size: usize, stream: sys::CUstream) {
        let session = session()?;
        let stream = session.streams.resolve(stream)?;
        let from = End::device(session, from, size as u64)?;
        let to = End::host(session, to.cast(), size as u64)?;
        linear(to, from, size as u64, stream, false)
    }

    fn cuMemcpyDtoD_v2(to: sys::CUdeviceptr, from: sys::CUdeviceptr, size: usize) {
        let session = session()?;
        let stream = with_current(|context| Ok(legacy(context)))?;
        let to = End::device(session, to, size as u64)?;
        linear(to, End::device(session, from, size as u64)?, size as u64, stream, false)
    }

    fn cuMemcpyDtoDAsync_v2(to: sys::CUdeviceptr, from: sys::CUdeviceptr, size: usize, stream: sys::CUstream) {
        let session = session()?;
        let stream = session.streams.resolve(stream)?;
        let to = End::device(session, to, size as u64)?;
        linear(to, End::device(session, from, size as u64)?, size as u64, stream, false)
    }

    fn cuMemcpyPeer(
        to: sys::CUdeviceptr,
        to_context: sys::CUcontext,
        from: sys::CUdeviceptr,
        from_context: sys::CUcontext,
        size: usize,
    ) {
        let session = session()?;
        session.contexts.get(to_context)?;
        session.contexts.get(from_context)?;
        let stream = with_current(|context| Ok(legacy(context)))?;
        let (to, from) = unified(session, to, from, size)?;
        linear(to, from, size as u64, stream, false)
    }

    fn cuMemcpyPeerAsync(
        to: sys::CUdeviceptr,
        to_context: sys::CUcontext,
        from: sys::CUdeviceptr,
        from_context: sys::CUcontext,
        size: usize,
        stream: sys::CUstream,
    ) {
        let session = session()?;
        session.contexts.get(to_context)?;
        session.contexts.get(from_context)?;
        let stream = session.streams.resolve(stream)?;
        let (to, from) = unified(session, to, from, size)?;
        linear(to, from, size as u64, stream, false)
    }
}

fn unified(session: &Session, to: u64, from: u64, size: usize) -> Result<(End, End)> {
    let size = size as u64;
    Ok((End::unified(session, to, size)?, End::unified(session, from, size)?))
}

/// Whether a copy to or from there has to be waited for when it is not asynchronous.
fn is_host(session: &Session, end: End) -> bool {
    match end {
        End::Private(_) => true,
        End::Address(address) => session.memory.find(address).is_some_and(|block| block.is_host()),
    }
}
