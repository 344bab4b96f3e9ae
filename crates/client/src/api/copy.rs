//! Exported functions for one-dimensional copies.

use core::ffi::c_void;

use fermata_abi::op::{Address, StreamRef};
use fermata_abi::sys::driver as sys;
use fermata_graph::{Copy, NodeKind};

use crate::frame::entry::driver_api;
use crate::object::context::with_current;
use crate::object::copy::{End, linear};
use crate::object::session::{Session, session};
use crate::object::stream::legacy;
use crate::result::Result;
use crate::work::capture;

driver_api! {
    fn cuMemcpy(to: sys::CUdeviceptr, from: sys::CUdeviceptr, size: usize) {
        let session = session()?;
        let (to, from) = unified(session, to, from, size)?;
        let stream = synchronous(session)?;
        linear(to, from, size as u64, stream, is_host(session, to) || is_host(session, from))?;
        session.managed.after_wait()
    }

    fn cuMemcpyAsync(to: sys::CUdeviceptr, from: sys::CUdeviceptr, size: usize, stream: sys::CUstream) {
        let session = session()?;
        let (to, from) = unified(session, to, from, size)?;
        issue(session, to, from, size, stream)
    }

    fn cuMemcpyHtoD_v2(to: sys::CUdeviceptr, from: *const c_void, size: usize) {
        let session = session()?;
        let stream = synchronous(session)?;
        let to = End::device(&session.memory, Address::from_raw(to), size as u64)?;
        let from = End::host(&session.memory, from.cast_mut().cast(), size as u64)?;
        linear(to, from, size as u64, stream, true)
    }

    fn cuMemcpyHtoDAsync_v2(to: sys::CUdeviceptr, from: *const c_void, size: usize, stream: sys::CUstream) {
        let session = session()?;
        let to = End::device(&session.memory, Address::from_raw(to), size as u64)?;
        let from = End::host(&session.memory, from.cast_mut().cast(), size as u64)?;
        issue(session, to, from, size, stream)
    }

    fn cuMemcpyDtoH_v2(to: *mut c_void, from: sys::CUdeviceptr, size: usize) {
        let session = session()?;
        let stream = synchronous(session)?;
        let from = End::device(&session.memory, Address::from_raw(from), size as u64)?;
        let to = End::host(&session.memory, to.cast(), size as u64)?;
        linear(to, from, size as u64, stream, true)?;
        session.managed.after_wait()
    }

    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: sys::CUdeviceptr, size: usize, stream: sys::CUstream) {
        let session = session()?;
        let from = End::device(&session.memory, Address::from_raw(from), size as u64)?;
        let to = End::host(&session.memory, to.cast(), size as u64)?;
        issue(session, to, from, size, stream)
    }

    fn cuMemcpyDtoD_v2(to: sys::CUdeviceptr, from: sys::CUdeviceptr, size: usize) {
        let session = session()?;
        let stream = synchronous(session)?;
        let to = End::device(&session.memory, Address::from_raw(to), size as u64)?;
        linear(to, End::device(&session.memory, Address::from_raw(from), size as u64)?, size as u64, stream, false)
    }

    fn cuMemcpyDtoDAsync_v2(to: sys::CUdeviceptr, from: sys::CUdeviceptr, size: usize, stream: sys::CUstream) {
        let session = session()?;
        let to = End::device(&session.memory, Address::from_raw(to), size as u64)?;
        issue(session, to, End::device(&session.memory, Address::from_raw(from), size as u64)?, size, stream)
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
        let stream = synchronous(session)?;
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
        let (to, from) = unified(session, to, from, size)?;
        issue(session, to, from, size, stream)
    }
}

/// Issues an asynchronous copy, or captures it.
pub(super) fn issue(
    session: &Session,
    to: End,
    from: End,
    size: usize,
    stream: sys::CUstream,
) -> Result {
    let size = size as u64;
    let node = || {
        let context = session.streams.context_of(stream)?.handle;
        let (to, from) = (
            to.node_end(&session.memory, context),
            from.node_end(&session.memory, context),
        );
        Ok(NodeKind::Memcpy(Copy::linear(to, from, size)))
    };
    if capture::add(session, stream, node)? {
        return Ok(());
    }
    linear(to, from, size, session.streams.resolve(stream)?, false)
}

/// The stream of copies that are not asynchronous.
fn synchronous(session: &Session) -> Result<StreamRef> {
    capture::forbid_unsafe(session)?;
    with_current(|context| Ok(legacy(context)))
}

fn unified(session: &Session, to: u64, from: u64, size: usize) -> Result<(End, End)> {
    let size = size as u64;
    Ok((
        End::unified(&session.memory, Address::from_raw(to), size)?,
        End::unified(&session.memory, Address::from_raw(from), size)?,
    ))
}

/// Whether a copy to or from there has to be waited for when it is not asynchronous.
fn is_host(session: &Session, end: End) -> bool {
    match end {
        End::Private(_) => true,
        End::Address(address) => session
            .memory
            .find(address)
            .is_some_and(|block| block.is_host()),
    }
}
