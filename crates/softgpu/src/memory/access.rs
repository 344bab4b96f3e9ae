//! Reading and writing memory on behalf of copies and memsets.
//!
//! A side that is checked must lie in known memory that allows the access; it stays mapped while bytes
//! are moved because the map is locked meanwhile. A side that is not checked is plain host memory,
//! whose validity is the program's business, as with a real driver.

use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use crate::error::{CuError, INVALID_VALUE, Result};

use super::{Memory, Protection};
use fermata_abi::sys::driver as cu;

/// Most bytes moved while the map is locked.
const PIECE: u64 = 4 << 20;

/// One side of a move of bytes.
#[derive(Debug, Clone, Copy)]
pub struct Side {
    /// First address.
    pub address: u64,
    /// Whether it must be memory the driver knows.
    pub checked: bool,
}

impl Side {
    /// The side `bytes` further on.
    pub fn add(self, bytes: u64) -> Self {
        Self {
            address: self.address.wrapping_add(bytes),
            ..self
        }
    }
}

impl Memory {
    /// Copies `len` bytes; the sides may overlap within one piece.
    ///
    /// # Errors
    /// A checked side is not, or no longer, accessible.
    pub fn copy(&self, dst: Side, src: Side, len: u64) -> Result {
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(PIECE);
            let (to, from) = (dst.add(done), src.add(done));
            let inner = self.inner.read();
            if to.checked && !inner.map.covers(to.address, piece, Protection::ReadWrite)
                || from.checked && !inner.map.covers(from.address, piece, Protection::Read)
            {
                return Err(CuError(cu::CUDA_ERROR_ILLEGAL_ADDRESS));
            }
            // SAFETY: checked sides are mapped with this access while the map is locked; unchecked ones
            // are host memory that the caller of the driver vouched for. Memory in the window is never
            // behind a Rust reference.
            unsafe {
                std::ptr::copy(
                    with_exposed_provenance::<u8>(from.address as usize),
                    with_exposed_provenance_mut::<u8>(to.address as usize),
                    piece as usize,
                );
            }
            done += piece;
        }
        Ok(())
    }

    /// Copies bytes into known memory.
    ///
    /// # Errors
    /// It is not accessible.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result {
        self.write_side(
            Side {
                address,
                checked: true,
            },
            bytes,
        )
    }

    /// Copies bytes to either kind of side.
    ///
    /// # Errors
    /// It is not accessible.
    pub fn write_side(&self, dst: Side, bytes: &[u8]) -> Result {
        let from = Side {
            address: bytes.as_ptr().expose_provenance() as u64,
            checked: false,
        };
        self.copy(dst, from, bytes.len() as u64)
    }

    /// Fills `count` elements of `size` (1, 2 or 4) bytes with `value`.
    ///
    /// # Errors
    /// `size` is something else, or the memory is not accessible.
    pub fn fill(&self, address: u64, value: u32, size: u32, count: u64) -> Result {
        let pattern = match size {
            1 => [value as u8; 4],
            2 => {
                let [a, b] = (value as u16).to_le_bytes();
                [a, b, a, b]
            }
            4 => value.to_le_bytes(),
            _ => return Err(INVALID_VALUE),
        };
        let len = count.checked_mul(u64::from(size)).ok_or(INVALID_VALUE)?;
        let stamp: Vec<u8> = pattern
            .iter()
            .copied()
            .cycle()
            .take(len.min(1 << 16) as usize)
            .collect();
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(stamp.len() as u64);
            self.write(address + done, &stamp[..piece as usize])?;
            done += piece;
        }
        Ok(())
    }

    /// The 32- or 64-bit word at `address`, read atomically, if it is known memory and aligned.
    pub fn load(&self, address: u64, wide: bool) -> Result<u64> {
        use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
        let size = if wide { 8 } else { 4 };
        let inner = self.inner.read();
        if !address.is_multiple_of(size) || !inner.map.covers(address, size, Protection::Read) {
            return Err(INVALID_VALUE);
        }
        // SAFETY: mapped and readable while the map is locked, aligned, and shared only through atomics
        // or plain accesses of the program.
        Ok(unsafe {
            if wide {
                (*with_exposed_provenance::<AtomicU64>(address as usize)).load(Ordering::SeqCst)
            } else {
                u64::from(
                    (*with_exposed_provenance::<AtomicU32>(address as usize))
                        .load(Ordering::SeqCst),
                )
            }
        })
    }

    /// Writes the 32- or 64-bit word at `address` atomically.
    ///
    /// # Errors
    /// Unknown, write-protected or misaligned.
    pub fn store(&self, address: u64, wide: bool, value: u64) -> Result {
        use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
        let size = if wide { 8 } else { 4 };
        let inner = self.inner.read();
        if !address.is_multiple_of(size) || !inner.map.covers(address, size, Protection::ReadWrite)
        {
            return Err(INVALID_VALUE);
        }
        // SAFETY: mapped and writable while the map is locked, aligned, and shared only through atomics
        // or plain accesses of the program.
        unsafe {
            if wide {
                (*with_exposed_provenance::<AtomicU64>(address as usize))
                    .store(value, Ordering::SeqCst);
            } else {
                let word = with_exposed_provenance::<AtomicU32>(address as usize);
                (*word).store(value as u32, Ordering::SeqCst);
            }
        }
        Ok(())
    }
}
