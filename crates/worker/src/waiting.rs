//! An answer that waits for the device: for which work, and what is done then.

use fermata_abi::op::{Address, ArrayId, ContextId, MipmapId, ModuleId, StreamRef};
use fermata_device::{DriverError, EventHandle, PhysicalHandle, PinnedBuffer};
use fermata_state::MipmappedArray;
use fermata_wire::Ticket;

use crate::load::Load;

/// The end of a stream's work up to a count.
///
/// While nothing more is issued to the stream, the stream itself is asked; before something is, an event
/// is recorded, which costs as much as a launch does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    pub stream: StreamRef,
    pub count: u64,
    pub event: Option<EventHandle>,
}

/// Memory of another process that is mapped whole at a reservation's begin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unmapping {
    pub address: Address,
    /// Bytes.
    pub size: u64,
    /// In the driver.
    pub memory: Option<PhysicalHandle>,
}

/// What is done when the wait is over.
pub(crate) enum Then {
    /// Nothing more.
    Answer,
    /// Nothing: the rest of a destroyed stream's work.
    Orphan {
        /// Whether it was a stream which the default stream does not wait for.
        apart: bool,
    },
    /// Everything is idle: the consistent point.
    Drained,
    /// What the device was given before all streams were held, for this time, is done.
    Settled(u64),
    /// The bytes are answered; if `told`, the device sets the word at [`crate::scratch::DONE_AT`] when they are there.
    Bytes {
        /// Holds them.
        buffer: PinnedBuffer,
        /// How many.
        len: usize,
        /// See above.
        told: bool,
    },
    /// Nothing more; the buffer has been read by now.
    Hold(PinnedBuffer),
    /// Device memory is freed.
    Free(Address),
    /// Memory of another process is taken away.
    Unmap(Unmapping),
    /// Device memory is allocated, once what is being freed is free.
    Allocate {
        /// The context.
        context: ContextId,
        /// Bytes.
        size: u64,
    },
    /// Shared host memory is given up.
    HostUnmap(Address),
    /// A module is recorded, once the driver has it.
    ModuleLoad(Load),
    /// A module is unloaded.
    ModuleUnload(ModuleId),
    /// A context is destroyed.
    ContextDestroy(ContextId),
    /// An array is destroyed.
    ArrayDestroy(ArrayId),
    /// An array with levels is destroyed.
    MipmapDestroy(MipmapId, MipmappedArray),
}

/// Destroyed streams whose remaining work is waited for, too.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Orphans {
    /// None.
    Ignored,
    /// Those that the default stream of this context waits for.
    Joined(ContextId),
    /// All.
    All,
}

/// An answer that waits.
pub(crate) struct Waiting {
    pub ticket: Option<Ticket>,
    pub context: Option<ContextId>,
    pub orphans: Orphans,
    /// Whether the answer reports errors of earlier work.
    pub reports: bool,
    pub marks: Vec<Mark>,
    /// An event of the program's that must have completed too, with its context.
    pub event: Option<(EventHandle, ContextId)>,
    pub then: Then,
    /// What has ended its context meanwhile.
    pub failed: Option<DriverError>,
    /// How often it was looked at without asking the driver.
    pub looks: u32,
}
