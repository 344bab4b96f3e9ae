//! Variables that a program has protected: number, type, count, memory.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::memory::Memory;
use crate::{AppError, Result};

/// Number by which the program knows a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VariableId(pub u32);

/// What a variable's elements are: a class and a size. Recovery refuses another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ElementType(pub u32);

impl ElementType {
    /// Elements of `bytes` bytes (1 to 16,777,215) without a meaning of their own.
    pub fn opaque(bytes: u32) -> Self {
        Self(bytes & 0x00ff_ffff)
    }

    /// A floating-point number of `bytes` bytes.
    pub fn float(bytes: u32) -> Self {
        Self(3 << 24 | bytes)
    }

    /// Bytes of an element.
    pub fn bytes(self) -> u64 {
        u64::from(self.0 & 0x00ff_ffff)
    }

    fn class(self) -> u32 {
        self.0 >> 24
    }

    /// Bytes of `count` elements.
    ///
    /// # Errors
    /// `Variable` when the type is none, or they are more than an address space holds.
    pub fn total(self, id: VariableId, count: u64) -> Result<u64> {
        let wrong = |what: String| AppError::Variable { id: id.0, what };
        if self.bytes() == 0 || self.class() > 4 {
            return Err(wrong(format!("{:#x} is not an element type", self.0)));
        }
        self.bytes()
            .checked_mul(count)
            .filter(|bytes| *bytes <= isize::MAX as u64)
            .ok_or_else(|| wrong(format!("{count} elements of {self} do not fit into memory")))
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = match self.class() {
            0 => "bytes",
            1 => "int",
            2 => "unsigned",
            3 => "float",
            4 => "complex",
            _ => "unknown",
        };
        match self.class() {
            0 => write!(f, "{} {class}", self.bytes()),
            _ => write!(f, "{class}{}", self.bytes() * 8),
        }
    }
}

/// A protected variable.
#[derive(Debug, Clone)]
pub(crate) struct Variable {
    pub(crate) id: VariableId,
    pub(crate) element: ElementType,
    pub(crate) memory: Memory,
    /// What it was when it was protected.
    pub(crate) on_device: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_checked() {
        let id = VariableId(1);
        assert_eq!(ElementType::float(8).total(id, 1 << 40).unwrap(), 8 << 40);
        assert!(ElementType::float(8).total(id, u64::MAX / 4).is_err());
        assert!(ElementType(0).total(id, 1).is_err());
        assert!(ElementType(9 << 24 | 4).total(id, 1).is_err());
        assert_eq!(ElementType::float(8).to_string(), "float64");
        assert_eq!(ElementType::opaque(12).to_string(), "12 bytes");
    }
}
