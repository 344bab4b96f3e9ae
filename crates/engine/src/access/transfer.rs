//! The access sets of copies, fills and operations on single words, which are known exactly.

use fermata_abi::op::{Address, Extent, Op, Pitch, Place};
use fermata_graph::{Copy, CopyEnd, MemOp, MemOpKind, MemsetNode};

use super::{AccessSet, Range, Target};

/// Bytes that rows of `width` at distance `pitch` span.
fn span(pitch: u64, width: u64, rows: u64) -> u64 {
    if rows == 0 {
        0
    } else {
        pitch.saturating_mul(rows - 1).saturating_add(width)
    }
}

/// Bytes that a box spans.
fn box_span(pitch: &Pitch, extent: &Extent) -> u64 {
    let slices = extent.depth.saturating_sub(1).saturating_mul(pitch.rows);
    span(
        pitch.row,
        extent.width,
        slices.saturating_add(extent.height),
    )
}

fn target(place: &Place<'_>, len: u64) -> Option<Target> {
    match place {
        Place::Address(start) => bytes(*start, len),
        Place::Array { array, .. } => Some(Target::Array(*array)),
        Place::Blob(_) => None,
    }
}

fn bytes(start: Address, len: u64) -> Option<Target> {
    (len > 0).then_some(Target::Exactly(Range { start, len }))
}

fn set(reads: Option<Target>, writes: Option<Target>) -> AccessSet {
    AccessSet {
        reads: reads.into_iter().collect(),
        writes: writes.into_iter().collect(),
        complete: true,
    }
}

fn word(address: Address, wide: bool) -> Option<Target> {
    bytes(address, if wide { 8 } else { 4 })
}

/// What `op`, which is no launch, touches.
pub(super) fn of(op: &Op<'_>) -> AccessSet {
    match op {
        Op::Copy { to, from, len, .. } => set(target(from, *len), target(to, *len)),
        Op::Copy3d {
            to,
            from,
            to_pitch,
            from_pitch,
            extent,
            ..
        } => set(
            target(from, box_span(from_pitch, extent)),
            target(to, box_span(to_pitch, extent)),
        ),
        Op::Fill {
            address,
            pitch,
            element,
            width,
            height,
            ..
        } => {
            let row = width.saturating_mul(u64::from(*element));
            set(None, bytes(*address, span(*pitch, row, *height)))
        }
        Op::WriteValue { address, wide, .. } => set(None, word(*address, *wide)),
        Op::WaitValue { address, wide, .. } => set(word(*address, *wide), None),
        _ => AccessSet::nothing(),
    }
}

/// What a copy node touches.
pub(super) fn copy_node(copy: &Copy) -> AccessSet {
    set(end(copy, &copy.src), end(copy, &copy.dst))
}

fn end(copy: &Copy, end: &CopyEnd) -> Option<Target> {
    if let Some(array) = end.array() {
        return Some(Target::Array(array));
    }
    if copy.bytes() == Some(0) {
        return None;
    }
    // A single row has no pitch, and a single slice no height.
    let (first, past) = match copy.span(end) {
        Some(span) => span,
        None => (end.x_bytes, end.x_bytes.saturating_add(copy.width_bytes)),
    };
    bytes(
        Address::from_raw(end.address.wrapping_add(first)),
        past - first,
    )
}

/// What a fill node touches.
pub(super) fn fill_node(node: &MemsetNode) -> AccessSet {
    let row = node.width.saturating_mul(u64::from(node.element_size));
    set(
        None,
        bytes(
            Address::from_raw(node.dst),
            span(node.pitch, row, node.height),
        ),
    )
}

/// What one operation of a batch node touches.
pub(super) fn word_node(op: &MemOp) -> AccessSet {
    match op.kind {
        MemOpKind::Wait => set(word(Address::from_raw(op.address), op.wide), None),
        MemOpKind::Write => set(None, word(Address::from_raw(op.address), op.wide)),
        MemOpKind::Barrier => AccessSet::nothing(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermata_abi::op::{ArrayId, ContextId, StreamId, StreamRef};

    const STREAM: StreamRef = StreamRef {
        context: ContextId::from_raw(0x100),
        stream: StreamId::from_raw(1),
    };

    fn exactly(start: u64, len: u64) -> [Target; 1] {
        let start = Address::from_raw(start);
        [Target::Exactly(Range { start, len })]
    }

    #[test]
    fn a_pitched_copy_ends_with_the_last_row() {
        let op = Op::Copy3d {
            to: Place::Address(Address::from_raw(0x1000)),
            from: Place::Address(Address::from_raw(0x9000)),
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
        let found = of(&op);
        assert_eq!(found.reads, exactly(0x9000, 32 * 7 + 16));
        assert_eq!(found.writes, exactly(0x1000, 64 * 13 + 16));
        assert!(found.complete);
    }

    #[test]
    fn a_fill_writes_its_rows_only() {
        let op = Op::Fill {
            address: Address::from_raw(8),
            pitch: 100,
            element: 4,
            value: 0,
            width: 5,
            height: 3,
            stream: STREAM,
            answered: true,
        };
        let found = of(&op);
        assert_eq!(found.writes, exactly(8, 220));
        assert!(found.reads.is_empty());
    }

    #[test]
    fn arrays_are_targets_of_their_own() {
        let op = Op::Copy {
            to: Place::Array {
                array: ArrayId::from_raw(0x105),
                x: 0,
                y: 0,
                z: 0,
            },
            from: Place::Address(Address::from_raw(0x4000)),
            len: 64,
            stream: STREAM,
            answered: false,
        };
        let found = of(&op);
        assert_eq!(found.writes, [Target::Array(ArrayId::from_raw(0x105))]);
        assert_eq!(found.reads, exactly(0x4000, 64));
    }
}
