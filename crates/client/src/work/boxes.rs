//! Copies in two and three dimensions, between memory and arrays.
//!
//! ```text
//!   rows of ordinary memory          packed in a piece           the other side
//!   ┌───────── pitch ─────┐          ┌────────┐
//!   │ ████████            │  ──────► │████████│  ─────────────► address or array
//!   │ ████████            │          │████████│
//! ```
//! A box with a side in ordinary memory is copied in pieces of whole rows of one slice.

use fermata_abi::op::{Address, ArrayId, Blob, ContextId, Extent, Op, Pitch, Place, StreamRef};
use fermata_abi::sys::driver::CUDA_ERROR_INVALID_VALUE;
use fermata_graph::CopyEnd;

use crate::link;
use crate::object::copy::{End, PIECE, Window, linear};
use crate::object::mirror::Mirror;
use crate::result::Result;

/// One side of a copy: where the box begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Corner {
    /// Memory.
    Memory {
        /// Its first byte that is copied.
        end: End,
        /// Bytes from row to row.
        pitch: u64,
        /// Rows from slice to slice.
        rows: u64,
    },
    /// An array.
    Array {
        /// The array.
        array: ArrayId,
        /// First byte in a row.
        x: u64,
        /// First row.
        y: u64,
        /// First slice.
        z: u64,
    },
}

/// The kind of memory that the API names for a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Host memory.
    Host(*mut u8),
    /// Device memory.
    Device(Address),
    /// The address decides.
    Unified(Address),
}

/// Offsets and pitches of a side in memory, as the API gives them.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// First byte in a row.
    pub x: u64,
    /// First row.
    pub y: u64,
    /// First slice.
    pub z: u64,
    /// Bytes from row to row; 0 if the rows touch.
    pub pitch: u64,
    /// Rows from slice to slice; 0 if the slices touch.
    pub rows: u64,
}

impl Corner {
    /// A side in memory, checked against the known blocks.
    pub fn memory(known: &Mirror, memory: Memory, origin: Origin, extent: &Extent) -> Result<Self> {
        let Origin {
            x,
            y,
            z,
            pitch,
            rows,
        } = origin;
        let width = x
            .checked_add(extent.width)
            .ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let pitch = if pitch == 0 { width } else { pitch };
        let rows = if rows == 0 { y + extent.height } else { rows };
        let overlapping =
            (extent.height > 1 && pitch < width) || (extent.depth > 1 && rows < extent.height);
        if overlapping {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let at = |y: u64, z: u64| z.checked_mul(rows)?.checked_add(y)?.checked_mul(pitch);
        let start = at(y, z)
            .and_then(|bytes| bytes.checked_add(x))
            .ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let span = at(extent.height - 1, extent.depth - 1)
            .and_then(|bytes| bytes.checked_add(extent.width));
        let span = span.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let add = |address: Address| address.checked_add(start).ok_or(CUDA_ERROR_INVALID_VALUE);
        let end = match memory {
            Memory::Host(pointer) => End::host(known, pointer.wrapping_add(start as usize), span)?,
            Memory::Device(address) => End::device(known, add(address)?, span)?,
            Memory::Unified(address) => End::unified(known, add(address)?, span)?,
        };
        Ok(Self::Memory { end, pitch, rows })
    }

    /// The end of a copy in a graph, in the context of the stream that is captured.
    pub fn node_end(&self, known: &Mirror, context: ContextId) -> CopyEnd {
        match *self {
            Self::Memory { end, pitch, rows } => CopyEnd {
                pitch,
                height: rows,
                ..end.node_end(known, context)
            },
            Self::Array { array, x, y, z } => CopyEnd {
                context,
                x_bytes: x,
                y,
                z,
                ..CopyEnd::of_array(array)
            },
        }
    }

    fn private(&self) -> Option<(*mut u8, u64, u64)> {
        match *self {
            Self::Memory {
                end: End::Private(start),
                pitch,
                rows,
            } => Some((start, pitch, rows)),
            _ => None,
        }
    }

    /// The place of row `y` in slice `z` of the box; only for what the worker can address.
    fn place(&self, y: u64, z: u64) -> Place<'static> {
        match *self {
            Self::Memory {
                end: End::Address(start),
                pitch,
                rows,
            } => Place::Address(start + (z * rows + y) * pitch),
            Self::Memory {
                end: End::Private(_),
                ..
            } => Place::Blob(Blob::Inline(&[])),
            Self::Array {
                array,
                x,
                y: y0,
                z: z0,
            } => Place::Array {
                array,
                x,
                y: y0 + y,
                z: z0 + z,
            },
        }
    }

    fn pitch(&self) -> Pitch {
        match *self {
            Self::Memory { pitch, rows, .. } => Pitch { row: pitch, rows },
            Self::Array { .. } => Pitch::default(),
        }
    }
}

/// Copies a box; on return it is complete if `wait` or if a side is ordinary memory.
pub fn copy(to: Corner, from: Corner, extent: Extent, stream: StreamRef, wait: bool) -> Result {
    if extent.width == 0 || extent.height == 0 || extent.depth == 0 {
        return Ok(());
    }
    if let (Corner::Memory { end: to, .. }, Corner::Memory { end: from, .. }) = (to, from)
        && extent.height * extent.depth == 1
    {
        return linear(to, from, extent.width, stream, wait);
    }
    match (to.private(), from.private()) {
        (None, None) => {
            let (to_pitch, from_pitch) = (to.pitch(), from.pitch());
            let (to, from) = (to.place(0, 0), from.place(0, 0));
            let op = Op::Copy3d {
                to,
                from,
                to_pitch,
                from_pitch,
                extent,
                stream,
                answered: wait,
            };
            link::issue(&op, wait)
        }
        (None, Some(from)) => upload(to, from, extent, stream),
        (Some(to), None) => download(to, from, extent, stream),
        (Some(to), Some(from)) => {
            link::ask(&Op::StreamSync { stream }, link::nothing)?;
            for (y, z) in (0..extent.depth).flat_map(|z| (0..extent.height).map(move |y| (y, z))) {
                // SAFETY: both rows lie in the box, which the private ends cover (see [`End`]).
                unsafe { std::ptr::copy(row(from, y, z), row(to, y, z), extent.width as usize) };
            }
            Ok(())
        }
    }
}

fn row((start, pitch, rows): (*mut u8, u64, u64), y: u64, z: u64) -> *mut u8 {
    start.wrapping_add(((z * rows + y) * pitch) as usize)
}

/// Rows of the box that make a piece: slice, first row, count.
fn pieces(extent: Extent) -> impl Iterator<Item = (u64, u64, u64)> {
    let most = (PIECE / extent.width).max(1);
    (0..extent.depth).flat_map(move |z| {
        let starts = (0..extent.height).step_by(most as usize);
        starts.map(move |y| (z, y, most.min(extent.height - y)))
    })
}

fn packed(extent: Extent, height: u64) -> (Pitch, Extent) {
    (
        Pitch {
            row: extent.width,
            rows: height,
        },
        Extent {
            width: extent.width,
            height,
            depth: 1,
        },
    )
}

fn upload(to: Corner, from: (*mut u8, u64, u64), extent: Extent, stream: StreamRef) -> Result {
    let mut window = Window::default();
    let width = extent.width as usize;
    for (z, y, height) in pieces(extent) {
        let range = window.stage(height * extent.width, |_, _| ())?;
        for n in 0..height {
            let room = range.address().wrapping_add(n as usize * width);
            // SAFETY: the row lies in the box (see [`End`]), and the range has room for `height` of them.
            unsafe { std::ptr::copy_nonoverlapping(row(from, y + n, z), room, width) };
        }
        let blob = Place::Blob(Blob::Staged {
            offset: range.offset(),
            len: range.len(),
        });
        let (from_pitch, piece) = packed(extent, height);
        let (to_pitch, to) = (to.pitch(), to.place(y, z));
        let op = Op::Copy3d {
            to,
            from: blob,
            to_pitch,
            from_pitch,
            extent: piece,
            stream,
            answered: true,
        };
        window.send(&op, range, 0)?;
    }
    window.finish(|_, _| ())
}

fn download(to: (*mut u8, u64, u64), from: Corner, extent: Extent, stream: StreamRef) -> Result {
    let mut window = Window::default();
    let width = extent.width as usize;
    let store = |range: &fermata_wire::Staged<'_>, first: u64| {
        let (z, y) = (first / extent.height, first % extent.height);
        for n in 0..range.len() / extent.width {
            let bytes = range.address().wrapping_add(n as usize * width);
            // SAFETY: the row lies in the box (see [`End`]), and the range holds a whole number of rows.
            unsafe { std::ptr::copy_nonoverlapping(bytes, row(to, y + n, z), width) };
        }
    };
    for (z, y, height) in pieces(extent) {
        let range = window.stage(height * extent.width, store)?;
        let blob = Place::Blob(Blob::Staged {
            offset: range.offset(),
            len: range.len(),
        });
        let (to_pitch, piece) = packed(extent, height);
        let (from_pitch, from) = (from.pitch(), from.place(y, z));
        let op = Op::Copy3d {
            to: blob,
            from,
            to_pitch,
            from_pitch,
            extent: piece,
            stream,
            answered: true,
        };
        window.send(&op, range, z * extent.height + y)?;
    }
    window.finish(store)
}
