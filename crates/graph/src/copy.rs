//! One description for every copy CUDA has: linear, 2D, 3D, peer, arrays.
//!
//! ```text
//!   address ──► slice 0: ┌─ pitch ─────────────┐
//!                        │ row 0               │
//!                        │ y ►   x_bytes ►████ │  width_bytes x rows of the box
//!                        └─────────────────────┘  `height` rows make one slice
//!               slice 1: ...
//! ```

use fermata_abi::op::{ArrayId, ContextId};
use serde::{Deserialize, Serialize};

/// What kind of memory one end of a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Place {
    /// Host memory, by address.
    Host,
    /// Device memory, by address.
    Device,
    /// A CUDA array, by handle; its pitch and height come from the array.
    Array,
    /// Unified addressing: the address tells.
    Unified,
}

/// One end of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyEnd {
    /// What `address` is.
    pub place: Place,
    /// Address, or handle of an array.
    pub address: u64,
    /// The context it belongs to in peer copies; 0 means the current one.
    pub context: ContextId,
    /// First byte within a row.
    pub x_bytes: u64,
    /// First row.
    pub y: u64,
    /// First slice.
    pub z: u64,
    /// Bytes from one row to the next.
    pub pitch: u64,
    /// Rows from one slice to the next.
    pub height: u64,
}

impl CopyEnd {
    /// The start of plain memory at `address`.
    pub fn linear(place: Place, address: u64) -> Self {
        Self {
            place,
            address,
            context: ContextId::NULL,
            x_bytes: 0,
            y: 0,
            z: 0,
            pitch: 0,
            height: 0,
        }
    }

    /// The start of an array, whose pitch and height come from the array.
    pub fn of_array(array: ArrayId) -> Self {
        Self::linear(Place::Array, array.raw())
    }

    /// The array, if the end is in one.
    pub fn array(&self) -> Option<ArrayId> {
        (self.place == Place::Array).then(|| ArrayId::from_raw(self.address))
    }

    /// Byte offset from `address` of row `row` in slice `slice` of the box, or `None` on overflow.
    pub fn offset(&self, row: u64, slice: u64) -> Option<u64> {
        let rows = self.z.checked_add(slice)?.checked_mul(self.height)?;
        let rows = rows.checked_add(self.y.checked_add(row)?)?;
        rows.checked_mul(self.pitch)?.checked_add(self.x_bytes)
    }
}

/// A box of bytes copied from one place to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copy {
    /// Where the bytes come from.
    pub src: CopyEnd,
    /// Where they go.
    pub dst: CopyEnd,
    /// Bytes per row.
    pub width_bytes: u64,
    /// Rows per slice.
    pub height: u64,
    /// Slices.
    pub depth: u64,
}

impl Copy {
    /// `bytes` from one address to another.
    pub fn linear(dst: CopyEnd, src: CopyEnd, bytes: u64) -> Self {
        Self {
            src,
            dst,
            width_bytes: bytes,
            height: 1,
            depth: 1,
        }
    }

    /// Bytes moved altogether, or `None` on overflow.
    pub fn bytes(&self) -> Option<u64> {
        self.width_bytes
            .checked_mul(self.height)?
            .checked_mul(self.depth)
    }

    /// Whether it is a single run of bytes.
    pub fn is_linear(&self) -> bool {
        self.height == 1 && self.depth == 1
    }

    /// Whether pitches and heights leave room for the box and nothing overflows. Ends that are arrays
    /// must have had their pitch and height filled in.
    pub fn is_well_formed(&self) -> bool {
        let Some(bytes) = self.bytes() else {
            return false;
        };
        if bytes == 0 {
            return true;
        }
        [&self.src, &self.dst].into_iter().all(|end| {
            let row_fits = end
                .x_bytes
                .checked_add(self.width_bytes)
                .is_some_and(|w| w <= end.pitch);
            let slice_fits = end
                .y
                .checked_add(self.height)
                .is_some_and(|h| h <= end.height);
            (self.height == 1 && self.depth == 1 || row_fits)
                && (self.depth == 1 || slice_fits)
                && self.span(end).is_some()
        })
    }

    /// First byte and one past the last byte, relative to the end's address, that the box touches.
    pub fn span(&self, end: &CopyEnd) -> Option<(u64, u64)> {
        let first = end.offset(0, 0)?;
        let last = end.offset(self.height.checked_sub(1)?, self.depth.checked_sub(1)?)?;
        let past = last.checked_add(self.width_bytes)?;
        end.address.checked_add(past)?;
        Some((first, past))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(pitch: u64, height: u64) -> CopyEnd {
        CopyEnd {
            pitch,
            height,
            ..CopyEnd::linear(Place::Device, 0x1000)
        }
    }

    #[test]
    fn a_row_wider_than_the_pitch_is_refused() {
        let copy = Copy {
            src: end(16, 4),
            dst: end(8, 4),
            width_bytes: 12,
            height: 2,
            depth: 1,
        };
        assert!(!copy.is_well_formed());
        assert!(
            Copy {
                dst: end(12, 4),
                ..copy
            }
            .is_well_formed()
        );
    }

    #[test]
    fn span_covers_the_last_row_only_to_its_width() {
        let copy = Copy {
            src: end(16, 4),
            dst: end(16, 4),
            width_bytes: 4,
            height: 2,
            depth: 2,
        };
        let src = CopyEnd {
            x_bytes: 8,
            y: 1,
            z: 1,
            ..copy.src
        };
        assert_eq!(
            copy.span(&src),
            Some(((4 + 1) * 16 + 8, (2 * 4 + 2) * 16 + 8 + 4))
        );
    }

    #[test]
    fn overflow_is_not_well_formed() {
        let far = CopyEnd {
            z: u64::MAX,
            ..end(16, 4)
        };
        assert!(
            !Copy {
                src: far,
                dst: end(16, 4),
                width_bytes: 4,
                height: 1,
                depth: 2
            }
            .is_well_formed()
        );
    }
}
