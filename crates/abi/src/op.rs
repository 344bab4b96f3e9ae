//! The operations a program's library sends to the worker, and what comes back.
//!
//! The library folds the many shapes of the CUDA driver API into these few operations, so that the
//! worker, the engine's access sets and the saved state deal with one small vocabulary. Everything
//! is plain data encoded with postcard; a decoder must treat every byte as hostile.
//!
//! Two properties hold for every operation:
//! - Handles are numbers chosen by the program's library (never 0, 1 or 2), unique for the life of
//!   the session, so that creating an object needs no answer and handles stay valid over a restore. Each kind has a type of its
//!   own ([`crate::handle`]).
//! - An operation marked "answered" gets exactly one [`Reply`]; the others get none, and their
//!   failure is reported by the next answered operation on that context, as CUDA allows.

mod address;
mod launch;
mod multiprocessors;
mod question;
mod reference;
mod shared;
mod tensor;
mod texture;

use serde::{Deserialize, Serialize};

pub use self::address::{Address, DEVICE_BASE, DEVICE_END, HOST_BASE, HOST_END};
pub use self::launch::{Launch, LaunchAttribute, StreamRef};
pub use self::multiprocessors::{SM_GROUPS, SM_REST, SmCut, SmQuestion, SmResource, SmSplit};
pub use self::question::{DeviceQuestion, LinkInput, LinkJob, Occupancy, SharedOf};
pub use self::reference::{Mipmap, ReferenceSettings};
pub use self::shared::{SHARED, SharedEvent, SharedMemory, SharedPool, Sharer};
pub use self::tensor::{TENSOR_MAP, Tensor, TensorBox};
pub use self::texture::{Resource, ResourceView, Sampler, Texture};
pub use crate::handle::{
    ArrayId, CallbackId, ContextId, DescriptorId, EventId, ExecId, FileId, FunctionId, GraphId,
    GraphNodeId, GreenId, HeldImageId, KernelId, LibraryId, LinkerId, MemoryId, MipmapId, ModuleId,
    PoolId, Raw, ReferenceId, StreamId, TextureId, UserObjectId,
};
use crate::sys::driver as cu;

/// The stream handle meaning the legacy default stream of the operation's context.
pub const STREAM_LEGACY: StreamId = StreamId::from_raw(1);
/// The stream handle meaning the per-thread default stream; the library replaces it by a real
/// stream of its own per thread and context before sending, so the worker never sees it.
pub const STREAM_PER_THREAD: StreamId = StreamId::from_raw(2);
/// First handle that may be given to an object.
pub const FIRST_HANDLE: u64 = 0x100;

/// Bytes that travel with an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Blob<'a> {
    /// In the message itself.
    Inline(#[serde(with = "serde_bytes")] &'a [u8]),
    /// In the session's staging area, at this offset, until the operation has been answered.
    Staged {
        /// Byte offset in the staging area.
        offset: u64,
        /// Bytes.
        len: u64,
    },
}

/// One side of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place<'a> {
    /// Device, pinned or managed memory, by address (unified addressing).
    Address(Address),
    /// Ordinary host memory: the bytes are staged (source), or are to be put there (destination).
    Blob(#[serde(borrow)] Blob<'a>),
    /// A CUDA array, at byte x, row y, slice z.
    Array {
        /// The array.
        array: ArrayId,
        /// Byte within the row.
        x: u64,
        /// Row.
        y: u64,
        /// Slice.
        z: u64,
    },
}

/// Pitches of one side of a copy of two or three dimensions, in bytes and rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Pitch {
    /// Bytes from one row to the next.
    pub row: u64,
    /// Rows from one slice to the next.
    pub rows: u64,
}

/// Extent of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Bytes in a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
    /// Slices.
    pub depth: u64,
}

/// What a block of shared host memory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostKind {
    /// `cuMemAllocHost`, `cuMemHostAlloc`.
    Pinned,
    /// `cuMemHostRegister`: ordinary memory turned into a shared mapping at its own address.
    Registered,
    /// `cuMemAllocManaged`, `__managed__` variables.
    Managed,
    /// `cuMemHostRegister` of memory that other processes may share: it stays the file that it is, which belongs to the program
    /// and not to the session.
    Shared,
}

/// Where a module image is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageRef<'a> {
    /// With the operation.
    Blob(#[serde(borrow)] Blob<'a>),
    /// In a file, whose descriptor has gone over the side socket under this number before.
    File {
        /// The number.
        file: FileId,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// The worker holds it.
    Held {
        /// By this handle.
        image: HeldImageId,
    },
}

/// An operation. Fields are named as the driver API names its parameters; sizes are bytes.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Op<'a> {
    /// Not answered. First, because the library writes its bytes without the encoder that knows the others' places.
    Launch {
        #[serde(borrow)]
        launch: Launch<'a>,
        stream: StreamRef,
    },

    // --- session -------------------------------------------------------------------------------
    /// Answered with [`ReplyBody::Devices`]. First operation of a session.
    Devices,
    /// Answered with [`ReplyBody::None`] when everything issued before has been executed and every
    /// stream of every context is idle: the consistent point.
    Drain,

    /// Answered with [`ReplyBody::Bytes`]: 64-bit numbers, little-endian, as many as are asked for.
    DeviceAsk {
        device: u32,
        question: DeviceQuestion,
    },

    // --- contexts (the context handle of primary context d is chosen once by the library) --------
    /// Answered.
    ContextCreate {
        context: ContextId,
        device: u32,
        flags: u32,
        primary: bool,
    },
    /// Answered.
    ContextDestroy { context: ContextId },
    /// Answered. Waits for all streams of the context.
    ContextSync { context: ContextId },
    /// Answered.
    ContextSetLimit {
        context: ContextId,
        limit: u32,
        value: u64,
    },
    /// Answered with [`ReplyBody::U64`].
    ContextGetLimit { context: ContextId, limit: u32 },
    /// Answered with [`ReplyBody::Pair`]: free and total bytes.
    MemInfo { context: ContextId },
    /// Answered.
    PeerEnable { context: ContextId, peer: ContextId },
    /// Answered.
    PeerDisable { context: ContextId, peer: ContextId },

    // --- modules ----------------------------------------------------------------------------------
    /// Answered; a refusal carries the compiler's log in the reply's text. `CUDA_ERROR_FILE_NOT_FOUND` is as for
    /// [`Op::ImageHold`].
    ModuleLoad {
        module: ModuleId,
        context: ContextId,
        #[serde(borrow)]
        image: ImageRef<'a>,
        /// Whether other threads of the program must not be held up by a long load.
        beside: bool,
    },
    /// Links a [`LinkJob`]. Answered with [`ReplyBody::Bytes`], an image; a refusal carries the linker's log in the
    /// reply's text.
    Link {
        context: ContextId,
        #[serde(borrow)]
        job: Blob<'a>,
    },
    /// Answered.
    ModuleUnload { module: ModuleId },
    /// Answered with [`ReplyBody::Function`]; `CUDA_ERROR_NOT_FOUND` if there is none.
    FunctionGet {
        function: FunctionId,
        module: ModuleId,
        name: &'a str,
    },
    /// Answered.
    FunctionSetAttribute {
        function: FunctionId,
        attribute: i32,
        value: i32,
    },
    /// Answered with [`ReplyBody::Variable`]. The address is fixed from then on.
    VariableGet { module: ModuleId, name: &'a str },
    /// Answered as [`Occupancy`] says.
    Occupancy {
        function: FunctionId,
        #[serde(borrow)]
        question: Occupancy<'a>,
    },
    /// Answered with [`ReplyBody::Bytes`], a descriptor of [`TENSOR_MAP`] bytes.
    TensorMap { tensor: Tensor, of: TensorBox },
    /// The descriptor of the same tensor at another address. Answered as [`Op::TensorMap`].
    TensorMapMove {
        #[serde(with = "serde_bytes")]
        map: &'a [u8],
        address: Address,
    },

    // --- device memory ------------------------------------------------------------------------------
    /// Answered with [`ReplyBody::U64`], the address.
    MemAlloc { context: ContextId, size: u64 },
    /// Answered. Waits as `cuMemFree` does.
    MemFree { address: Address },
    /// Stream-ordered allocation: answered with [`ReplyBody::U64`].
    MemAllocAsync { stream: StreamRef, size: u64 },
    /// Stream-ordered free.
    MemFreeAsync { address: Address, stream: StreamRef },
    /// Answered with [`ReplyBody::U64`]; `address` 0 lets the worker choose.
    AddressReserve {
        size: u64,
        align: u64,
        address: Address,
    },
    /// Answered.
    AddressFree { address: Address, size: u64 },
    /// Physical memory. Answered.
    MemCreate {
        memory: MemoryId,
        device: u32,
        size: u64,
        flags: u64,
    },
    /// Answered.
    MemRelease { memory: MemoryId },
    /// Answered.
    MemMap {
        address: Address,
        size: u64,
        offset: u64,
        memory: MemoryId,
    },
    /// Answered.
    MemUnmap { address: Address, size: u64 },
    /// Answered. `access` is a `CUmemAccess_flags` value; `devices` those it is for.
    MemSetAccess {
        address: Address,
        size: u64,
        access: u32,
        devices: Vec<u32>,
    },

    // --- host memory shared by both processes; the descriptor goes over the side socket first -------
    /// Answered.
    HostMap {
        address: Address,
        size: u64,
        kind: HostKind,
        flags: u32,
        context: ContextId,
    },
    /// Answered. Waits as `cuMemFreeHost` does.
    HostUnmap { address: Address },

    // --- copies and fills ---------------------------------------------------------------------------
    /// One-dimensional copy. Answered with [`ReplyBody::None`] or, for a `Blob::Inline`
    /// destination (whose length says how much), [`ReplyBody::Bytes`], if `answered`; completion is
    /// what is answered, not acceptance. Unanswered copies never have a blob destination.
    Copy {
        #[serde(borrow)]
        to: Place<'a>,
        #[serde(borrow)]
        from: Place<'a>,
        len: u64,
        stream: StreamRef,
        answered: bool,
    },
    /// Two- or three-dimensional copy, same rules.
    Copy3d {
        #[serde(borrow)]
        to: Place<'a>,
        #[serde(borrow)]
        from: Place<'a>,
        to_pitch: Pitch,
        from_pitch: Pitch,
        extent: Extent,
        stream: StreamRef,
        answered: bool,
    },
    /// Fill `height` rows of `width` elements of `element` bytes (1, 2, 4) with `value`.
    /// Answered on completion if `answered`.
    Fill {
        address: Address,
        pitch: u64,
        element: u8,
        value: u32,
        width: u64,
        height: u64,
        stream: StreamRef,
        answered: bool,
    },
    /// Arrays. Answered. `format` is a `CUarray_format`.
    ArrayCreate {
        array: ArrayId,
        context: ContextId,
        width: u64,
        height: u64,
        depth: u64,
        format: u32,
        channels: u32,
        flags: u32,
    },
    /// Answered.
    ArrayDestroy { array: ArrayId },
    /// A texture or surface object. Answered with [`ReplyBody::U64`], the driver's own number for it: kernels get it
    /// among their parameters.
    TextureCreate {
        context: ContextId,
        texture: Box<Texture>,
    },
    /// Answered.
    TextureDestroy {
        context: ContextId,
        object: TextureId,
        surface: bool,
    },

    // --- streams and events -------------------------------------------------------------------------
    /// Not answered.
    StreamCreate {
        stream: StreamId,
        context: ContextId,
        flags: u32,
        priority: i32,
    },
    /// Not answered.
    StreamDestroy { stream: StreamId },
    /// Answered when all work issued to the stream before has completed.
    StreamSync { stream: StreamRef },
    /// Answered at once: `CUDA_SUCCESS` or `CUDA_ERROR_NOT_READY`.
    StreamQuery { stream: StreamRef },
    /// Not answered, except for an event of several processes: then when the driver has it.
    StreamWait {
        stream: StreamRef,
        event: EventId,
        flags: u32,
    },
    /// Not answered.
    EventCreate {
        event: EventId,
        context: ContextId,
        flags: u32,
    },
    /// Not answered.
    EventDestroy { event: EventId },
    /// Not answered, except for an event of several processes: then when the driver has it, so that the others find it there.
    EventRecord {
        event: EventId,
        stream: StreamRef,
        flags: u32,
    },
    /// Answered when the event has completed.
    EventSync { event: EventId },
    /// Answered at once.
    EventQuery { event: EventId },
    /// Answered with [`ReplyBody::F32`], milliseconds.
    EventElapsed { start: EventId, end: EventId },
    /// Not answered. The worker asks for the callback when the stream reaches it and goes
    /// on with the stream when the program has counted it as run; both beside the ring.
    HostCall { stream: StreamRef, id: u64 },
    /// `cuStreamWriteValue32/64` (`wide`). Not answered.
    WriteValue {
        stream: StreamRef,
        address: Address,
        value: u64,
        flags: u32,
        wide: bool,
    },
    /// `cuStreamWaitValue32/64`. Not answered.
    WaitValue {
        stream: StreamRef,
        address: Address,
        value: u64,
        flags: u32,
        wide: bool,
    },

    // --- kernels and graphs -------------------------------------------------------------------------
    /// A graph as data (crate `fermata-graph`, postcard), made executable. Answered.
    GraphInstantiate {
        exec: ExecId,
        context: ContextId,
        #[serde(borrow)]
        graph: Blob<'a>,
        flags: u64,
    },
    /// Replaces the executable graph's definition by one of the same shape. Answered, if it came with a request: where
    /// it did not and fails, the graph is none any more, and its launches fail.
    GraphUpdate {
        exec: ExecId,
        #[serde(borrow)]
        graph: Blob<'a>,
    },
    /// Not answered.
    GraphLaunch { exec: ExecId, stream: StreamRef },
    /// Not answered.
    GraphDestroy { exec: ExecId },

    // --- undocumented ---------------------------------------------------------------------------
    /// Where the multiprocessors of a context's device lie: answered with [`ReplyBody::Places`].
    Places { context: ContextId },

    // --- images ---------------------------------------------------------------------------------
    /// Keeps an image, of which modules may be made. Answered. `CUDA_ERROR_FILE_NOT_FOUND`: it cannot be read from
    /// its file.
    ImageHold {
        image: HeldImageId,
        #[serde(borrow)]
        from: ImageRef<'a>,
    },
    /// The program needs the image no more. Not answered.
    ImageRelease { image: HeldImageId },
    /// Answered with [`ReplyBody::Module`].
    ModuleFunctions { module: ModuleId },

    // --- memory of other processes of the session -------------------------------------------------
    /// Lets other processes have an allocation (by its address) or physical memory (by its handle; else 0). Answered with
    /// [`ReplyBody::Bytes`], a [`SharedMemory`].
    MemShare {
        sharer: Sharer,
        address: Address,
        memory: MemoryId,
    },
    /// Makes physical memory of what another process shares. Answered with [`ReplyBody::U64`], its device.
    MemFetch {
        memory: MemoryId,
        #[serde(with = "serde_bytes")]
        shared: &'a [u8],
    },

    // --- more of graphs: images hold operations by their number in this list, so new ones come last ---
    /// Gives single kernels of an executable graph other parameters: a list of `fermata-graph`'s `KernelChange`, postcard.
    /// Not answered; what fails is as with `GraphUpdate`.
    GraphSetKernels {
        exec: ExecId,
        #[serde(borrow)]
        kernels: Blob<'a>,
    },
    // --- texture and surface references, arrays with levels -----------------------------------------
    /// How a texture reference (or a surface reference, `surface`) of a module is read. Answered with
    /// [`ReplyBody::Bytes`], a [`ReferenceSettings`]; `CUDA_ERROR_NOT_FOUND` if there is none.
    ReferenceGet {
        module: ModuleId,
        name: &'a str,
        surface: bool,
    },
    /// Binds a reference, a surface reference if there is no sampler. Answered with [`ReplyBody::U64`]: bytes from
    /// where the texture begins to the address that was given.
    ReferenceBind {
        module: ModuleId,
        name: &'a str,
        texture: Box<Texture>,
    },
    /// An array with levels, and its levels as arrays. Answered.
    MipmapCreate {
        mipmap: MipmapId,
        context: ContextId,
        shape: Mipmap,
    },
    /// Answered.
    MipmapDestroy { mipmap: MipmapId },
    // --- events and memory pools of other processes of the session --------------------------------
    /// Lets other processes have an event. Answered with [`ReplyBody::Bytes`], a [`SharedEvent`].
    EventShare { sharer: Sharer, event: EventId },
    /// Makes an event of what another process shares. Answered.
    EventOpen {
        event: EventId,
        context: ContextId,
        #[serde(with = "serde_bytes")]
        shared: &'a [u8],
    },
    /// Takes memory of [`Op::MemFetch`] away that is mapped whole at a reservation's begin, and both with it, once the stream
    /// gets there. Not answered.
    MemCloseAsync { address: Address, stream: StreamRef },
    // --- green contexts -----------------------------------------------------------------------------
    /// Answered with [`ReplyBody::Bytes`], as [`SmQuestion`] says: 64-bit numbers, little-endian.
    SmAsk {
        of: SmResource,
        question: SmQuestion,
    },
    /// A green context with these multiprocessors: streams of `context`, the device's primary one, can be made in it. `green`
    /// names it where a graph names the context of a kernel. Answered.
    GreenCreate {
        green: ContextId,
        context: ContextId,
        resource: SmResource,
    },
    /// Answered. Waits for the context's streams; those that were made in it end.
    GreenDestroy { green: ContextId },
    /// A stream in a green context, which is one of that context's primary context. Not answered.
    GreenStream {
        stream: StreamId,
        green: ContextId,
        flags: u32,
        priority: i32,
    },
}

impl Op<'_> {
    /// The context that the operation names, itself or with its stream; not that of a module or an event.
    pub fn context(&self) -> Option<ContextId> {
        match self {
            Self::ContextSync { context }
            | Self::ContextSetLimit { context, .. }
            | Self::ContextGetLimit { context, .. }
            | Self::MemInfo { context }
            | Self::PeerEnable { context, .. }
            | Self::PeerDisable { context, .. }
            | Self::ModuleLoad { context, .. }
            | Self::Link { context, .. }
            | Self::MemAlloc { context, .. }
            | Self::HostMap { context, .. }
            | Self::ArrayCreate { context, .. }
            | Self::TextureCreate { context, .. }
            | Self::TextureDestroy { context, .. }
            | Self::MipmapCreate { context, .. }
            | Self::StreamCreate { context, .. }
            | Self::EventCreate { context, .. }
            | Self::EventOpen { context, .. }
            | Self::GreenCreate { context, .. }
            | Self::GraphInstantiate { context, .. } => Some(*context),
            Self::MemAllocAsync { stream, .. }
            | Self::MemFreeAsync { stream, .. }
            | Self::MemCloseAsync { stream, .. }
            | Self::Copy { stream, .. }
            | Self::Copy3d { stream, .. }
            | Self::Fill { stream, .. }
            | Self::StreamSync { stream }
            | Self::StreamQuery { stream }
            | Self::StreamWait { stream, .. }
            | Self::EventRecord { stream, .. }
            | Self::HostCall { stream, .. }
            | Self::WriteValue { stream, .. }
            | Self::WaitValue { stream, .. }
            | Self::Launch { stream, .. }
            | Self::GraphLaunch { stream, .. } => Some(stream.context),
            _ => None,
        }
    }
}

/// Whether a context that reports this is of no use any more.
pub fn ends_context(status: cu::CUresult) -> bool {
    matches!(
        status,
        cu::CUDA_ERROR_ILLEGAL_ADDRESS
            | cu::CUDA_ERROR_LAUNCH_TIMEOUT
            | cu::CUDA_ERROR_ASSERT
            | cu::CUDA_ERROR_HARDWARE_STACK_ERROR
            | cu::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | cu::CUDA_ERROR_MISALIGNED_ADDRESS
            | cu::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | cu::CUDA_ERROR_INVALID_PC
            | cu::CUDA_ERROR_LAUNCH_FAILED
            | cu::CUDA_ERROR_ECC_UNCORRECTABLE
            | cu::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | cu::CUDA_ERROR_DEVICE_UNAVAILABLE
            | cu::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | cu::CUDA_ERROR_EXTERNAL_DEVICE
            | cu::CUDA_ERROR_CONTAINED
            | cu::CUDA_ERROR_TENSOR_MEMORY_LEAK
            | cu::CUDA_ERROR_UNKNOWN
    )
}

/// Whether this says that the device itself is lost to a program: it cannot be used any more, or has lost data.
pub fn loses_device(status: cu::CUresult) -> bool {
    matches!(
        status,
        cu::CUDA_ERROR_DEVICE_UNAVAILABLE
            | cu::CUDA_ERROR_ECC_UNCORRECTABLE
            | cu::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | cu::CUDA_ERROR_CONTAINED
    )
}

/// The answer to an operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply<'a> {
    /// A `CUresult`.
    pub status: u32,
    /// The value, if the status is success.
    #[serde(borrow)]
    pub body: ReplyBody<'a>,
    /// A log or explanation (compiler log of a refused module); may be empty.
    pub text: &'a str,
}

/// The value of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ReplyBody<'a> {
    /// Nothing but the status.
    None,
    /// A number or address.
    U64(u64),
    /// Two numbers.
    Pair(u64, u64),
    /// Milliseconds.
    F32(f32),
    /// Bytes copied from the device.
    Bytes(#[serde(with = "serde_bytes")] &'a [u8]),
    /// The devices of this session.
    Devices(Vec<DeviceInfo>),
    /// Names in a module.
    Module(ModuleInfo),
    /// A function.
    Function(FunctionInfo),
    /// For each pair of a device's multiprocessors the cluster of processors it is in, and its index in there.
    Places(Vec<u8>, Vec<u8>),
    /// A device variable.
    Variable {
        /// Where the driver has put it.
        address: Address,
        /// Bytes.
        size: u64,
        /// Whether it is managed memory, which the program touches too.
        managed: bool,
    },
}

/// What the library answers device queries from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// As `cuDeviceGetName`.
    pub name: String,
    /// As `cuDeviceGetUuid`.
    pub uuid: [u8; 16],
    /// Bytes of memory.
    pub memory: u64,
    /// As `cuDeviceGetPCIBusId`.
    pub bus_id: String,
    /// `CUdevice_attribute` values by id; the index is the id, `i32::MIN` where not supported.
    pub attributes: Vec<i32>,
    /// `cuDeviceCanAccessPeer` for each device.
    pub peers: Vec<bool>,
    /// The driver's version, as `cuDriverGetVersion`.
    pub driver_version: i32,
}

/// What `ModuleFunctions` answers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ModuleInfo {
    /// Names of its kernels, if the driver tells them.
    pub functions: Vec<String>,
}

/// What `FunctionGet` answers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FunctionInfo {
    /// Offset and size of each parameter in the parameter block, in bytes.
    pub params: Vec<(u32, u32)>,
    /// `CUfunction_attribute` values by id.
    pub attributes: Vec<i32>,
}

/// What the worker sends on its own account, over the side socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToProgram {
    /// A shared host memory region that exists in this session; its descriptor comes along.
    /// Sent for every region after a (re)attachment, then [`ToProgram::RegionsEnd`].
    Region {
        /// Where it must be mapped.
        address: Address,
        /// Bytes, a multiple of the page size.
        size: u64,
    },
    /// All regions have been sent.
    RegionsEnd,
    /// The worker has no mapping of a region of [`HostKind::Shared`]: the program is to send its file. Sent before
    /// [`ToProgram::RegionsEnd`].
    Missing {
        /// Where it is mapped in the program.
        address: Address,
        /// Bytes.
        size: u64,
    },
}
