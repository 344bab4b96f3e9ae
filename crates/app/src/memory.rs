//! The program's memory, and the only code here that touches it.
//!
//! A protected range belongs to the program; it promises ([`Memory::new`]) that the range is there and that
//! it is not written while it is captured or recovered. Bytes are only ever copied in and out.
#![allow(unsafe_code)]

use std::ffi::c_void;

/// A range of the program's memory, host or device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    address: u64,
    bytes: u64,
}

impl Memory {
    /// `bytes` bytes at `address`, an address of the host or of a device.
    ///
    /// # Safety
    /// While the range is protected, every call that captures or recovers it must find it allocated, and
    /// nothing else may write it from that call until its data is captured or recovered.
    pub unsafe fn new(address: *mut c_void, bytes: u64) -> Self {
        Self {
            address: address as u64,
            bytes,
        }
    }

    /// Its first byte's address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What lies `offset` bytes behind its start, as an address to ask about; it has no bytes.
    pub(crate) fn after(&self, offset: u64) -> Self {
        Self {
            address: self.address.saturating_add(offset),
            bytes: 0,
        }
    }

    /// Copies host memory out: `into.len()` bytes from `offset`. Panics if they are not in the range.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        let end = offset.checked_add(into.len() as u64);
        assert!(end.is_some_and(|end| end <= self.bytes), "within the range");
        let from = (self.address + offset) as *const u8;
        // SAFETY: the range was promised to `new`, and checked against the process's mappings by the
        // caller; `into` is memory of ours, which does not overlap the program's.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    /// Copies into host memory: all of `from` at `offset`. Panics if it does not fit.
    pub(crate) fn write(&self, offset: u64, from: &[u8]) {
        let end = offset.checked_add(from.len() as u64);
        assert!(end.is_some_and(|end| end <= self.bytes), "within the range");
        let to = (self.address + offset) as *mut u8;
        // SAFETY: as for `read`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }
}
