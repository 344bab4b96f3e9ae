//! Addresses, and the ranges in which they lie.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

use super::Raw;

/// An address in the device range or in shared host memory, equal in both processes.
///
/// Sizes, offsets and pitches are plain numbers of bytes: an address plus bytes is an address, and what lies between two addresses
/// are bytes, but two addresses cannot be added, and neither can stand where the other belongs. As [`crate::handle`]'s types do, it
/// travels as the plain number, which becomes an address only by [`Address::from_raw`].
///
/// ```compile_fail,E0308
/// use fermata_abi::op::{DEVICE_BASE, Op};
///
/// let wrong = Op::AddressFree { address: DEVICE_BASE, size: DEVICE_BASE };
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Address(u64);

impl Address {
    /// 0, where nothing is.
    pub const NULL: Self = Self(0);

    /// The number as an address. The caller knows that it is one.
    #[inline]
    pub const fn from_raw(number: u64) -> Self {
        Self(number)
    }

    /// Where `pointer` points to.
    #[inline]
    pub fn of<T>(pointer: *const T) -> Self {
        Self(pointer.addr() as u64)
    }

    /// The plain number.
    #[inline]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Whether it is 0.
    #[inline]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// The address that many bytes further, unless there is none.
    #[inline]
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// The address that many bytes further, or the last one.
    #[inline]
    pub const fn saturating_add(self, bytes: u64) -> Self {
        Self(self.0.saturating_add(bytes))
    }

    /// The address that many bytes before, or 0.
    #[inline]
    pub const fn saturating_sub(self, bytes: u64) -> Self {
        Self(self.0.saturating_sub(bytes))
    }

    /// Bytes from `start` to here, unless `start` lies further.
    #[inline]
    pub const fn checked_since(self, start: Self) -> Option<u64> {
        self.0.checked_sub(start.0)
    }

    /// The first multiple of `align`, which is not 0, from here on.
    #[inline]
    pub const fn next_multiple_of(self, align: u64) -> Self {
        Self(self.0.next_multiple_of(align))
    }

    /// The last multiple of `align`, which is not 0, up to here.
    #[inline]
    pub const fn align_down(self, align: u64) -> Self {
        Self(self.0 - self.0 % align)
    }

    /// Whether it lies in the device range.
    #[inline]
    pub const fn is_on_device(self) -> bool {
        DEVICE_BASE.0 <= self.0 && self.0 < DEVICE_END.0
    }

    /// Whether it lies where all addresses lie that a session gives out: in the device range or in the host range.
    #[inline]
    pub const fn is_of_sessions(self) -> bool {
        self.is_on_device() || (HOST_BASE.0 <= self.0 && self.0 < HOST_END.0)
    }

    /// Whether it is a multiple of `align`, which is not 0.
    #[inline]
    pub const fn is_multiple_of(self, align: u64) -> bool {
        self.0.is_multiple_of(align)
    }
}

impl Raw for Address {
    #[inline]
    fn from_raw(number: u64) -> Self {
        Self(number)
    }

    #[inline]
    fn raw(self) -> u64 {
        self.0
    }
}

impl Add<u64> for Address {
    type Output = Self;

    #[inline]
    fn add(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

impl AddAssign<u64> for Address {
    #[inline]
    fn add_assign(&mut self, bytes: u64) {
        self.0 += bytes;
    }
}

impl Sub<u64> for Address {
    type Output = Self;

    #[inline]
    fn sub(self, bytes: u64) -> Self {
        Self(self.0 - bytes)
    }
}

impl Sub for Address {
    type Output = u64;

    #[inline]
    fn sub(self, start: Self) -> u64 {
        self.0 - start.0
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::LowerHex for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

/// Device addresses lie in `DEVICE_BASE .. DEVICE_END`, reserved in the worker.
pub const DEVICE_BASE: Address = Address(0x3000_0000_0000);
/// One past the device range (4 TiB).
pub const DEVICE_END: Address = Address(0x3400_0000_0000);
/// Pinned and managed host memory made by the library lies in `HOST_BASE .. HOST_END`,
/// mapped at the same address in program and worker.
pub const HOST_BASE: Address = Address(0x2000_0000_0000);
/// One past the host range (4 TiB).
pub const HOST_END: Address = Address(0x2400_0000_0000);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_travels_as_the_plain_number() {
        let plain = postcard::to_stdvec(&0x3000_0000_1000u64).unwrap();
        let address = DEVICE_BASE + 0x1000;
        assert_eq!(postcard::to_stdvec(&address).unwrap(), plain);
        assert_eq!(
            format!("{address:#x} {address:?}"),
            "0x300000001000 0x300000001000"
        );
        assert_eq!(address - DEVICE_BASE, 0x1000);
        assert_eq!(DEVICE_BASE.checked_since(address), None);
    }
}
