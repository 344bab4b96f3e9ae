//! Access sets: which memory an operation reads and writes, known before it runs.
//!
//! Exact for copies and fills. What a kernel touches is not known here yet: it may touch anything.

use fermata_abi::op::{Address, Op, Place};

/// A range of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub start: Address,
    /// Bytes.
    pub len: u64,
}

/// What an operation touches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessSet {
    /// Exactly these ranges.
    Exact {
        /// Read.
        reads: Vec<Range>,
        /// Written.
        writes: Vec<Range>,
    },
    /// Any memory of the session.
    Anything,
}

fn range(place: &Place<'_>, len: u64) -> Vec<Range> {
    match place {
        Place::Address(start) => vec![Range { start: *start, len }],
        Place::Blob(_) | Place::Array { .. } => Vec::new(),
    }
}

/// Bytes that rows of `width` at distance `pitch` span.
fn span(pitch: u64, width: u64, rows: u64) -> u64 {
    if rows == 0 {
        0
    } else {
        pitch.saturating_mul(rows - 1).saturating_add(width)
    }
}

impl AccessSet {
    /// What `op` touches in device and shared host memory.
    pub fn of(op: &Op<'_>) -> Self {
        match op {
            Op::Copy { to, from, len, .. } => Self::Exact {
                reads: range(from, *len),
                writes: range(to, *len),
            },
            Op::Copy3d {
                to,
                from,
                to_pitch,
                from_pitch,
                extent,
                ..
            } => {
                let bytes = |pitch: &fermata_abi::op::Pitch| {
                    let slices = extent.depth.saturating_sub(1).saturating_mul(pitch.rows);
                    span(
                        pitch.row,
                        extent.width,
                        slices.saturating_add(extent.height),
                    )
                };
                Self::Exact {
                    reads: range(from, bytes(from_pitch)),
                    writes: range(to, bytes(to_pitch)),
                }
            }
            Op::Fill {
                address,
                pitch,
                element,
                width,
                height,
                ..
            } => {
                let row = width.saturating_mul(u64::from(*element));
                let len = span(*pitch, row, *height);
                Self::Exact {
                    reads: Vec::new(),
                    writes: vec![Range {
                        start: *address,
                        len,
                    }],
                }
            }
            Op::Launch { .. }
            | Op::GraphLaunch { .. }
            | Op::WriteValue { .. }
            | Op::WaitValue { .. } => Self::Anything,
            _ => Self::Exact {
                reads: Vec::new(),
                writes: Vec::new(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermata_abi::op::{Extent, Pitch, StreamRef};

    const STREAM: StreamRef = StreamRef {
        context: 0x100,
        stream: 1,
    };

    #[test]
    fn a_pitched_copy_ends_with_the_last_row() {
        let op = Op::Copy3d {
            to: Place::Address(0x1000),
            from: Place::Address(0x9000),
            to_pitch: Pitch { row: 64, rows: 10 },
            from_pitch: Pitch { row: 32, rows: 4 },
            extent: Extent {
                width: 16,
                height: 4,
                depth: 2,
            },
            stream: STREAM,
            answered: false,
        };
        let AccessSet::Exact { reads, writes } = AccessSet::of(&op) else {
            panic!("copies are exact")
        };
        assert_eq!(
            reads,
            [Range {
                start: 0x9000,
                len: 32 * 7 + 16
            }]
        );
        assert_eq!(
            writes,
            [Range {
                start: 0x1000,
                len: 64 * 13 + 16
            }]
        );
    }

    #[test]
    fn a_fill_writes_its_rows_only() {
        let op = Op::Fill {
            address: 8,
            pitch: 100,
            element: 4,
            value: 0,
            width: 5,
            height: 3,
            stream: STREAM,
            answered: true,
        };
        let expected = vec![Range { start: 8, len: 220 }];
        assert_eq!(
            AccessSet::of(&op),
            AccessSet::Exact {
                reads: vec![],
                writes: expected
            }
        );
    }
}
