//! Device variables by their host shadow.
use core::ffi::c_void;

use fermata_abi::sys::runtime::{
    cudaMemcpyDeviceToHost, cudaMemcpyHostToDevice, cudaMemcpyHostToHost, cudaMemcpyKind,
    cudaStream_t,
};

use crate::api::memcpy::{self, Order};
use crate::api::memory::pointer;
use crate::context;
use crate::driver::Calls;
use crate::error::{Error, Result, export, put};
use crate::registry;

/// The device address `offset` bytes into a variable that has room for `count` more.
pub fn inside(
    calls: &Calls,
    symbol: *const c_void,
    offset: usize,
    count: usize,
) -> Result<*mut c_void> {
    let (address, size) = registry::symbol(calls, symbol)?;
    let end = offset.checked_add(count).ok_or(Error::INVALID_VALUE)?;
    if end > size {
        return Err(Error::INVALID_VALUE);
    }
    Ok(pointer(address + offset as u64))
}

/// # Safety
/// `from` is readable for `count` bytes where `kind` says.
unsafe fn to_symbol(
    symbol: *const c_void,
    from: *const c_void,
    count: usize,
    offset: usize,
    kind: cudaMemcpyKind,
    order: Order,
) -> Result {
    if kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost {
        return Err(Error::INVALID_DIRECTION);
    }
    let to = inside(context::ready()?, symbol, offset, count)?;
    // SAFETY: inside the variable, and the caller's promise.
    unsafe { memcpy::copy(to, from, count, kind, order) }
}

/// # Safety
/// `to` is writable for `count` bytes where `kind` says.
unsafe fn from_symbol(
    to: *mut c_void,
    symbol: *const c_void,
    count: usize,
    offset: usize,
    kind: cudaMemcpyKind,
    order: Order,
) -> Result {
    if kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost {
        return Err(Error::INVALID_DIRECTION);
    }
    let from = inside(context::ready()?, symbol, offset, count)?;
    // SAFETY: inside the variable, and the caller's promise.
    unsafe { memcpy::copy(to, from, count, kind, order) }
}

export! {
    /// The device address of a variable.
    fn cudaGetSymbolAddress(place: *mut *mut c_void, symbol: *const c_void) {
        let (address, _) = registry::symbol(context::ready()?, symbol)?;
        put(place, pointer(address))
    }

    /// The size of a variable in bytes.
    fn cudaGetSymbolSize(place: *mut usize, symbol: *const c_void) {
        let (_, size) = registry::symbol(context::ready()?, symbol)?;
        put(place, size)
    }

    /// Copies into a variable.
    fn cudaMemcpyToSymbol(
        symbol: *const c_void,
        from: *const c_void,
        count: usize,
        offset: usize,
        kind: cudaMemcpyKind,
    ) {
        to_symbol(symbol, from, count, offset, kind, Order::Legacy)
    }

    /// Copies into a variable in stream order.
    fn cudaMemcpyToSymbolAsync(
        symbol: *const c_void,
        from: *const c_void,
        count: usize,
        offset: usize,
        kind: cudaMemcpyKind,
        stream: cudaStream_t,
    ) {
        to_symbol(symbol, from, count, offset, kind, Order::Stream(stream))
    }

    /// Copies out of a variable.
    fn cudaMemcpyFromSymbol(
        to: *mut c_void,
        symbol: *const c_void,
        count: usize,
        offset: usize,
        kind: cudaMemcpyKind,
    ) {
        from_symbol(to, symbol, count, offset, kind, Order::Legacy)
    }

    /// Copies out of a variable in stream order.
    fn cudaMemcpyFromSymbolAsync(
        to: *mut c_void,
        symbol: *const c_void,
        count: usize,
        offset: usize,
        kind: cudaMemcpyKind,
        stream: cudaStream_t,
    ) {
        from_symbol(to, symbol, count, offset, kind, Order::Stream(stream))
    }
}
