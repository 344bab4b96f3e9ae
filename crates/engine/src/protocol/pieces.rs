//! Cuts a session's content into pieces of at most a chunk, each with its place in the driver.

use std::collections::HashMap;

use fermata_abi::op::{Address, ArrayId, MemoryId, ModuleId};
use fermata_state::{BufferOwner, Session};

use crate::{CHUNK, EngineError};

/// Where a piece lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// At a device address, of a device.
    Device { device: u32, address: Address },
    /// In a host region, at an offset.
    Host { region: Address, offset: u64 },
    /// In an array: rows of `width` bytes from row `y` of slice `z`.
    Array {
        array: ArrayId,
        y: u64,
        z: u64,
        width: u64,
        rows: u64,
    },
}

/// At most [`CHUNK`] bytes of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub buffer: u64,
    pub offset: u64,
    pub len: usize,
    pub source: Source,
}

impl Piece {
    /// Whether it lies on a device where another one of its buffer ends there. Only within a buffer the driver copies both with one
    /// call: neighbouring buffers may be allocations of their own.
    pub(crate) fn is_behind(&self, other: &Self) -> bool {
        let place = |source| match source {
            Source::Device { device, address } => Some((device, address.raw())),
            Source::Host { .. } | Source::Array { .. } => None,
        };
        let end = place(other.source).map(|(device, from)| (device, from + other.len as u64));
        self.buffer == other.buffer && end.is_some() && end == place(self.source)
    }

    /// Whether it is plain device memory.
    pub(crate) fn is_on_device(&self) -> bool {
        matches!(self.source, Source::Device { .. })
    }

    /// Its device address.
    ///
    /// # Errors
    /// It is no plain device memory.
    pub(crate) fn device_address(&self) -> Result<u64, EngineError> {
        match self.source {
            Source::Device { address, .. } => Ok(address.raw()),
            Source::Host { .. } | Source::Array { .. } => Err(EngineError::Internal(format!(
                "buffer {} is no plain device memory",
                self.buffer
            ))),
        }
    }
}

fn linear(pieces: &mut Vec<Piece>, buffer: u64, bytes: u64, source: impl Fn(u64) -> Source) {
    let mut offset = 0;
    while offset < bytes {
        let len = (bytes - offset).min(CHUNK);
        pieces.push(Piece {
            buffer,
            offset,
            len: len as usize,
            source: source(offset),
        });
        offset += len;
    }
}

/// All pieces of a session, by buffer number and offset. `memories` says where physical memory can be reached.
///
/// # Errors
/// An array whose rows do not fit a chunk.
pub(crate) fn pieces(
    session: &Session,
    memories: &HashMap<MemoryId, Address>,
) -> Result<Vec<Piece>, EngineError> {
    let mut pieces = Vec::new();
    for buffer in session.buffers() {
        let (number, bytes) = (buffer.number, buffer.bytes);
        match &buffer.owner {
            BufferOwner::Allocation(address) => {
                let device = session.allocations.get(*address)?.device;
                linear(&mut pieces, number, bytes, |offset| Source::Device {
                    device,
                    address: *address + offset,
                });
            }
            BufferOwner::Memory(handle) => {
                let device = session.memories.get(*handle)?.device;
                let Some(address) = memories.get(handle) else {
                    return Err(EngineError::Internal(format!(
                        "physical memory {handle:#x} cannot be reached"
                    )));
                };
                linear(&mut pieces, number, bytes, |offset| Source::Device {
                    device,
                    address: *address + offset,
                });
            }
            BufferOwner::Variable { module, name } => {
                variable(&mut pieces, session, (*module, name), (number, bytes))?;
            }
            BufferOwner::Host(region) => {
                linear(&mut pieces, number, bytes, |offset| Source::Host {
                    region: *region,
                    offset,
                });
            }
            BufferOwner::Array(handle) => array_pieces(&mut pieces, session, *handle, number)?,
        }
    }
    Ok(pieces)
}

/// The pieces of the variables of all modules, which need no memory but that of the modules.
///
/// # Errors
/// The session is not whole.
pub(crate) fn variable_pieces(session: &Session) -> Result<Vec<Piece>, EngineError> {
    let mut pieces = Vec::new();
    for buffer in session.buffers() {
        if let BufferOwner::Variable { module, name } = &buffer.owner {
            let of = (buffer.number, buffer.bytes);
            variable(&mut pieces, session, (*module, name), of)?;
        }
    }
    Ok(pieces)
}

fn variable(
    pieces: &mut Vec<Piece>,
    session: &Session,
    (module, name): (ModuleId, &str),
    (number, bytes): (u64, u64),
) -> Result<(), EngineError> {
    let module = session.modules.get(module)?;
    let device = session.contexts.get(module.context)?.device;
    let Some(variable) = module.variables.get(name) else {
        return Ok(());
    };
    let address = variable.address;
    linear(pieces, number, bytes, |offset| Source::Device {
        device,
        address: address + offset,
    });
    Ok(())
}

fn array_pieces(
    pieces: &mut Vec<Piece>,
    session: &Session,
    handle: ArrayId,
    buffer: u64,
) -> Result<(), EngineError> {
    let array = session.arrays.get(handle)?;
    let (height, depth) = (array.height.max(1), array.depth.max(1));
    let width = array.bytes / (height * depth).max(1);
    if width == 0 || width > CHUNK {
        let why = format!("array {handle:#x} has rows of {width} bytes");
        return Err(EngineError::NotCheckpointable(why));
    }
    let at_once = (CHUNK / width).min(height);
    for z in 0..depth {
        let mut y = 0;
        while y < height {
            let rows = at_once.min(height - y);
            let source = Source::Array {
                array: handle,
                y,
                z,
                width,
                rows,
            };
            pieces.push(Piece {
                buffer,
                offset: (z * height + y) * width,
                len: (width * rows) as usize,
                source,
            });
            y += rows;
        }
    }
    Ok(())
}
