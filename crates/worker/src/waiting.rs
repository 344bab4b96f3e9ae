//! An answer that waits for the device: for which work it waits, and what is done when that work is done.

use fermata_abi::op::{Address, ArrayId, ContextId, MipmapId, ModuleId, StreamRef};
use fermata_device::{DriverError, EventHandle, PhysicalHandle, PinnedBuffer};
use fermata_state::MipmappedArray;
use fermata_wire::Ticket;

use crate::load::Load;
use crate::reading::Reading;

/// The end of a stream's work up to a count.
///
/// While nothing more is issued to the stream, the stream's own state is queried. An event is recorded only before more
/// is issued, because that costs as much as a launch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    pub stream: StreamRef,
    pub count: u64,
    pub event: Option<EventHandle>,
}

/// Memory of another process, mapped whole at the begin of a reservation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unmapping {
    pub address: Address,
    /// Bytes.
    pub size: u64,
    /// The driver's handle of the memory.
    pub memory: Option<PhysicalHandle>,
}

/// What is done when the wait is over.
pub(crate) enum Then {
    /// Nothing more.
    Answer,
    /// Nothing: this waits for the remaining work of a destroyed stream.
    Orphan {
        /// Whether it was a stream which the default stream does not wait for.
        apart: bool,
    },
    /// Everything is idle: the consistent point.
    Drained,
    /// The device has finished the work it had when all streams were held; the number is that of the hold.
    Settled(u64),
    /// The answer carries bytes. If `told`, the device sets the word at [`crate::scratch::DONE_AT`] when they have arrived.
    Bytes {
        /// The buffer with the bytes.
        buffer: PinnedBuffer,
        /// How many.
        len: usize,
        /// Whether the device sets the word.
        told: bool,
    },
    /// The buffer is released: the copy has read it.
    Hold(PinnedBuffer),
    /// Device memory is freed.
    Free(Address),
    /// Memory of another process is unmapped.
    Unmap(Unmapping),
    /// Device memory is allocated, after pending frees.
    Allocate {
        /// The context.
        context: ContextId,
        /// Bytes.
        size: u64,
    },
    /// Shared host memory is unmapped.
    HostUnmap(Address),
    /// A library's image is recorded, once it has been read.
    ImageHold(Reading),
    /// A module is recorded, once the driver has it.
    ModuleLoad(Load),
    /// A module is unloaded.
    ModuleUnload(ModuleId),
    /// A context is destroyed.
    ContextDestroy(ContextId),
    /// A green context is destroyed.
    GreenDestroy(ContextId),
    /// An array is destroyed.
    ArrayDestroy(ArrayId),
    /// An array with levels is destroyed.
    MipmapDestroy(MipmapId, MipmappedArray),
}

/// Which destroyed streams' remaining work is waited for.
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
    /// The error that has killed its context meanwhile.
    pub failed: Option<DriverError>,
    /// Polls since the driver was last asked.
    pub looks: u32,
}
