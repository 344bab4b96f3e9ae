//! One-dimensional copies and fills.
//!
//! Memory that the worker can address (device, pinned, registered, managed) is copied there by address. Ordinary memory of
//! the program is sent in pieces: small ones inside the message, larger ones through the staging area, a few at a time.

use std::collections::VecDeque;

use fermata_abi::op::{Address, Blob, ContextId, Op, Place, ReplyBody, StreamRef};
use fermata_abi::sys::driver::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_UNKNOWN};
use fermata_graph::CopyEnd;
use fermata_wire::{Pending, Staged};

use crate::link;
use crate::object::mirror::{Block, Mirror};
use crate::result::Result;

/// Sources up to this size travel inside the message.
const INLINE_UP: u64 = 16 << 10;
/// Destinations up to this size come back inside the reply.
const INLINE_DOWN: u64 = 2048;
/// Size of the pieces of a larger copy.
pub const PIECE: u64 = 4 << 20;
/// Pieces under way at a time.
const WINDOW: usize = 4;

/// One end of a copy. A private end is valid for as many bytes as are copied, until the copy is complete: the program
/// promises this by its call, and the library for ends that it makes itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The worker can address it.
    Address(Address),
    /// Ordinary memory of the program.
    Private(*mut u8),
}

impl End {
    /// An end that the API says is device memory.
    pub fn device(memory: &Mirror, address: Address, len: u64) -> Result<Self> {
        if len > 0 && !memory.holds(address, len, |_| true) && !spans(memory, address, len) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok(Self::Address(address))
    }

    /// An end that the API says is host memory.
    pub fn host(memory: &Mirror, address: *mut u8, len: u64) -> Result<Self> {
        if address.is_null() && len > 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let at = Address::of(address);
        let shared = memory.holds(at, len, Block::is_host);
        Ok(if shared {
            Self::Address(at)
        } else {
            Self::Private(address)
        })
    }

    /// An end whose address decides which memory it is.
    pub fn unified(memory: &Mirror, address: Address, len: u64) -> Result<Self> {
        match memory.find(address) {
            Some(block) if !block.is_host() => Self::device(memory, address, len),
            _ => Self::host(
                memory,
                std::ptr::with_exposed_provenance_mut(address.raw() as usize),
                len,
            ),
        }
    }

    /// The end of a copy in a graph, in the context of the stream that is captured.
    pub fn node_end(self, memory: &Mirror, context: ContextId) -> CopyEnd {
        let end = match self {
            Self::Address(address) => CopyEnd::linear(place_of(memory, address), address.raw()),
            Self::Private(pointer) => CopyEnd::linear(
                fermata_graph::Place::Host,
                pointer.expose_provenance() as u64,
            ),
        };
        CopyEnd { context, ..end }
    }

    fn forward(self, by: u64) -> Place<'static> {
        match self {
            Self::Address(address) => Place::Address(address + by),
            Self::Private(_) => Place::Blob(Blob::Inline(&[])),
        }
    }
}

/// The kind of memory at an address whose kind the program does not name. Nodes of graphs have it from the beginning, because
/// it must stay when their parameters change.
pub fn place_of(memory: &Mirror, address: Address) -> fermata_graph::Place {
    match memory.find(address) {
        Some(block) if !block.is_host() => fermata_graph::Place::Device,
        _ => fermata_graph::Place::Host,
    }
}

/// Whether a range is covered by adjacent blocks (of mapped physical memory).
fn spans(memory: &Mirror, address: Address, len: u64) -> bool {
    let Some(end) = address.checked_add(len) else {
        return false;
    };
    let mut at = address;
    while at < end {
        match memory.find(at) {
            Some(block) => at = block.start + block.size,
            None => return false,
        }
    }
    true
}

/// Copies `len` bytes. With `wait`, or if an end is ordinary memory that must be written or is large,
/// the copy is complete on return; else it has been issued.
pub fn linear(to: End, from: End, len: u64, stream: StreamRef, wait: bool) -> Result {
    if len == 0 {
        return Ok(());
    }
    match (to, from) {
        (End::Address(_), End::Address(_)) => {
            let (to, from) = (to.forward(0), from.forward(0));
            let op = Op::Copy {
                to,
                from,
                len,
                stream,
                answered: wait,
            };
            link::issue(&op, wait)
        }
        (End::Address(_), End::Private(from)) if len <= INLINE_UP => {
            // SAFETY: `len` readable bytes as every private end promises.
            let bytes = unsafe { std::slice::from_raw_parts(from, len as usize) };
            let from = Place::Blob(Blob::Inline(bytes));
            let op = Op::Copy {
                to: to.forward(0),
                from,
                len,
                stream,
                answered: wait,
            };
            link::issue(&op, wait)
        }
        (End::Address(_), End::Private(from)) => upload(to, from, len, stream),
        (End::Private(to), End::Address(_)) => download(to, from, len, stream),
        (End::Private(to), End::Private(from)) => {
            link::ask(&Op::StreamSync { stream }, link::nothing)?;
            // SAFETY: both point to `len` bytes as every private end promises; they may overlap.
            unsafe { std::ptr::copy(from, to, len as usize) };
            Ok(())
        }
    }
}

fn upload(to: End, from: *const u8, len: u64, stream: StreamRef) -> Result {
    let mut window = Window::default();
    for (at, size) in pieces(len) {
        let range = window.stage(size, |_, _| ())?;
        // SAFETY: `size` bytes at `at` lie in the source, and the range has as many.
        unsafe {
            std::ptr::copy_nonoverlapping(from.add(at as usize), range.address(), size as usize)
        };
        let from = Place::Blob(Blob::Staged {
            offset: range.offset(),
            len: size,
        });
        let op = Op::Copy {
            to: to.forward(at),
            from,
            len: size,
            stream,
            answered: true,
        };
        window.send(&op, range, at)?;
    }
    window.finish(|_, _| ())
}

fn download(to: *mut u8, from: End, len: u64, stream: StreamRef) -> Result {
    if len <= INLINE_DOWN {
        return download_small(to, from, len, stream);
    }
    let mut window = Window::default();
    let store = |range: &Staged<'_>, at: u64| {
        // SAFETY: piece `at` was made with as many bytes as the range has, inside the destination.
        unsafe {
            std::ptr::copy_nonoverlapping(
                range.address(),
                to.add(at as usize),
                range.len() as usize,
            )
        };
    };
    for (at, size) in pieces(len) {
        let range = window.stage(size, store)?;
        let to = Place::Blob(Blob::Staged {
            offset: range.offset(),
            len: size,
        });
        let op = Op::Copy {
            to,
            from: from.forward(at),
            len: size,
            stream,
            answered: true,
        };
        window.send(&op, range, at)?;
    }
    window.finish(store)
}

fn download_small(to: *mut u8, from: End, len: u64, stream: StreamRef) -> Result {
    const ROOM: [u8; INLINE_DOWN as usize] = [0; INLINE_DOWN as usize];
    let blob = Place::Blob(Blob::Inline(&ROOM[..len as usize]));
    let op = Op::Copy {
        to: blob,
        from: from.forward(0),
        len,
        stream,
        answered: true,
    };
    link::ask(&op, |body| match body {
        ReplyBody::Bytes(bytes) if bytes.len() as u64 == len => {
            // SAFETY: `len` writable bytes as every private end promises.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
            Ok(())
        }
        _ => Err(CUDA_ERROR_UNKNOWN),
    })
}

fn pieces(len: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..len.div_ceil(PIECE)).map(move |n| (n * PIECE, PIECE.min(len - n * PIECE)))
}

/// Pieces of a copy that are under way, oldest first.
#[derive(Default)]
pub struct Window {
    under_way: VecDeque<(Pending<'static>, Staged<'static>, u64)>,
    context: Option<ContextId>,
}

impl Window {
    /// Room for another piece; `done` gets each piece that has arrived meanwhile. Pieces under way are finished before this
    /// waits for room, because otherwise threads that copy at the same time could deadlock.
    pub fn stage(
        &mut self,
        len: u64,
        mut done: impl FnMut(&Staged<'_>, u64),
    ) -> Result<Staged<'static>> {
        while self.under_way.len() >= WINDOW {
            self.take(&mut done)?;
        }
        while !self.under_way.is_empty() {
            if let Some(range) = link::try_stage(len)? {
                return Ok(range);
            }
            self.take(&mut done)?;
        }
        link::stage(len)
    }

    /// Sends a piece; `done` gets `at` when it has arrived.
    pub fn send(&mut self, op: &Op<'_>, range: Staged<'static>, at: u64) -> Result {
        let pending = link::current()?
            .producer
            .request(op, None)
            .map_err(|error| link::lost(&error))?;
        self.under_way.push_back((pending, range, at));
        self.context = op.context();
        Ok(())
    }

    /// Waits for all pieces.
    pub fn finish(mut self, mut done: impl FnMut(&Staged<'_>, u64)) -> Result {
        while !self.under_way.is_empty() {
            self.take(&mut done)?;
        }
        Ok(())
    }

    fn take(&mut self, done: &mut impl FnMut(&Staged<'_>, u64)) -> Result {
        let Some((pending, range, at)) = self.under_way.pop_front() else {
            return Ok(());
        };
        let mut buffer = Vec::new();
        let reply = pending
            .wait(&mut buffer)
            .map_err(|error| link::lost(&error))?;
        link::success(self.context, reply)?;
        done(&range, at);
        Ok(())
    }
}

impl Drop for Window {
    /// Waits for all pieces after a failure: staged ranges must not be reused while the worker may still use them.
    fn drop(&mut self) {
        while !self.under_way.is_empty()
            && self.take(&mut |_, _| ())
                != Err(fermata_abi::sys::driver::CUDA_ERROR_DEVICE_UNAVAILABLE)
        {}
    }
}

/// Fills `height` rows of `width` elements.
#[derive(Debug, Clone, Copy)]
pub struct Fill {
    /// First byte.
    pub address: Address,
    /// Bytes between rows.
    pub pitch: u64,
    /// Bytes of an element.
    pub element: u8,
    /// The element.
    pub value: u32,
    /// Elements in a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
}

/// Issues a fill; waits for it if it is of host memory and `wait`.
pub fn fill(memory: &Mirror, fill: Fill, stream: StreamRef, wait: bool) -> Result {
    let Fill {
        address,
        pitch,
        element,
        value,
        width,
        height,
    } = fill;
    let row = width
        .checked_mul(u64::from(element))
        .ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if row == 0 || height == 0 {
        return Ok(());
    }
    let whole = pitch
        .checked_mul(height - 1)
        .and_then(|bytes| bytes.checked_add(row));
    let whole = whole.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if !address.is_multiple_of(u64::from(element)) || (height > 1 && pitch < row) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    End::unified(memory, address, whole).and_then(|end| match end {
        End::Address(_) => Ok(()),
        End::Private(_) => Err(CUDA_ERROR_INVALID_VALUE),
    })?;
    let answered = wait && memory.find(address).is_some_and(|block| block.is_host());
    let op = Op::Fill {
        address,
        pitch,
        element,
        value,
        width,
        height,
        stream,
        answered,
    };
    if answered {
        link::ask(&op, link::nothing)
    } else {
        link::post(&op)
    }
}
