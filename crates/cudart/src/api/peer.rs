//! Access and copies between devices.
use core::ffi::{c_int, c_uint, c_void};

use fermata_abi::sys::runtime::{cudaDeviceP2PAttr, cudaStream_t};

use crate::api::memory::address;
use crate::error::{Error, export, put};
use crate::{context, driver};

export! {
    /// Whether a device can access the memory of another.
    fn cudaDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) {
        if can.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let calls = driver::get()?;
        let device = context::device(calls, device)?;
        let peer = context::device(calls, peer)?;
        if device == peer {
            return put(can, 0);
        }
        calls.cuDeviceCanAccessPeer(can, device, peer)
    }

    /// Lets the thread's device access the memory of another.
    fn cudaDeviceEnablePeerAccess(peer: c_int, flags: c_uint) {
        let calls = context::ready()?;
        if peer == context::chosen()? {
            return Err(Error(fermata_abi::sys::runtime::cudaErrorPeerAccessUnsupported));
        }
        calls.cuCtxEnablePeerAccess(context::primary(calls, peer)?, flags)
    }

    /// Ends the thread's device's access to another.
    fn cudaDeviceDisablePeerAccess(peer: c_int) {
        let calls = context::ready()?;
        calls.cuCtxDisablePeerAccess(context::primary(calls, peer)?)
    }

    /// What the link between two devices can do.
    fn cudaDeviceGetP2PAttribute(
        value: *mut c_int,
        attribute: cudaDeviceP2PAttr,
        from: c_int,
        to: c_int,
    ) {
        if value.is_null() {
            return Err(Error::INVALID_VALUE);
        }
        let calls = driver::get()?;
        let from = context::device(calls, from)?;
        let to = context::device(calls, to)?;
        calls.cuDeviceGetP2PAttribute(value, attribute, from, to)
    }

    /// Copies from device to device.
    fn cudaMemcpyPeer(
        to: *mut c_void,
        to_device: c_int,
        from: *const c_void,
        from_device: c_int,
        count: usize,
    ) {
        let calls = context::ready()?;
        let to_context = context::primary(calls, to_device)?;
        let from_context = context::primary(calls, from_device)?;
        if count == 0 {
            return Ok(());
        }
        calls.cuMemcpyPeer(address(to), to_context, address(from), from_context, count)
    }

    /// Copies from device to device in stream order.
    fn cudaMemcpyPeerAsync(
        to: *mut c_void,
        to_device: c_int,
        from: *const c_void,
        from_device: c_int,
        count: usize,
        stream: cudaStream_t,
    ) {
        let calls = context::ready()?;
        let to_context = context::primary(calls, to_device)?;
        let from_context = context::primary(calls, from_device)?;
        if count == 0 {
            return Ok(());
        }
        let (to, from) = (address(to), address(from));
        calls.cuMemcpyPeerAsync(to, to_context, from, from_context, count, stream.cast())
    }
}
