//! What an operation touches, from which its dependencies on parked operations follow: its stream, events, functions,
//! and what else it waits for.

use fermata_abi::op::{ContextId, EventId, ExecId, FunctionId, Op, StreamRef};
use fermata_abi::sys::driver as cu;
use fermata_state::Session;

use crate::queues::Work;

/// What an operation waits for, beside its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Nothing.
    Own,
    /// All parked operations of a context.
    Context(ContextId),
    /// All parked operations.
    All,
    /// Parked operations that free memory.
    Frees,
}

/// What a launch launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Launched {
    /// A function.
    Function(FunctionId),
    /// An executable graph.
    Graph(ExecId),
}

/// What an operation touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Touches {
    /// The stream it is issued to, asks or destroys.
    pub stream: Option<StreamRef>,
    /// Whether that is a stream which the default stream does not wait for.
    pub apart: bool,
    /// Events that it records, waits for, asks or destroys.
    pub events: [Option<EventId>; 2],
    /// Whether it adds to the stream's queue.
    pub adds: bool,
    /// A function or an executable graph that it uses.
    pub uses: Option<Launched>,
    /// A function or an executable graph that it changes.
    pub changes: Option<Launched>,
    /// Whether it frees memory.
    pub frees: bool,
    /// What else it waits for.
    pub scope: Scope,
    /// What it is for its stream.
    pub work: Work,
}

impl Touches {
    /// What `op` touches in this session.
    pub fn of(op: &Op<'_>, session: &Session) -> Self {
        let mut touches = Self {
            stream: None,
            apart: false,
            events: [None; 2],
            adds: !matches!(
                op,
                Op::StreamSync { .. }
                    | Op::StreamQuery { .. }
                    | Op::StreamDestroy { .. }
                    | Op::MemFreeAsync { .. }
                    | Op::MemCloseAsync { .. }
            ),
            uses: None,
            changes: None,
            frees: matches!(op, Op::MemFree { .. } | Op::MemFreeAsync { .. }),
            scope: Scope::Own,
            work: Work::of(op),
        };
        match op {
            Op::Copy { stream, .. }
            | Op::Copy3d { stream, .. }
            | Op::Fill { stream, .. }
            | Op::HostCall { stream, .. }
            | Op::WriteValue { stream, .. }
            | Op::WaitValue { stream, .. }
            | Op::MemFreeAsync { stream, .. }
            | Op::MemCloseAsync { stream, .. }
            | Op::StreamSync { stream }
            | Op::StreamQuery { stream } => touches.stream = Some(*stream),
            Op::StreamWait { stream, event, .. } | Op::EventRecord { stream, event, .. } => {
                touches.stream = Some(*stream);
                touches.events[0] = Some(*event);
            }
            Op::Launch { launch, stream } => {
                touches.stream = Some(*stream);
                touches.uses = Some(Launched::Function(launch.function));
                let mut events = launch.attributes.iter().filter_map(|it| it.event());
                touches.events = [events.next(), events.next()];
            }
            Op::GraphLaunch { exec, stream } => {
                touches.stream = Some(*stream);
                touches.uses = Some(Launched::Graph(*exec));
            }
            Op::StreamDestroy { stream } => {
                let context = session.streams.get(*stream);
                let context = context.map_or(ContextId::NULL, |it| it.context);
                let stream = *stream;
                touches.stream = Some(StreamRef { context, stream });
            }
            Op::EventDestroy { event }
            | Op::EventSync { event }
            | Op::EventQuery { event }
            | Op::EventShare { event, .. } => touches.events[0] = Some(*event),
            Op::EventElapsed { start, end } => touches.events = [Some(*start), Some(*end)],
            Op::FunctionSetAttribute { function, .. } => touches.changes = Some(Launched::Function(*function)),
            // A graph that is made anew keeps its handle, and its launches may still be parked.
            Op::GraphInstantiate { exec, .. }
            | Op::GraphUpdate { exec, .. }
            | Op::GraphSetKernels { exec, .. }
            | Op::GraphDestroy { exec } => {
                touches.changes = Some(Launched::Graph(*exec));
            }
            Op::ContextSync { context } => touches.scope = Scope::Context(*context),
            Op::Drain
            | Op::ContextDestroy { .. }
            | Op::GreenDestroy { .. }
            | Op::ModuleUnload { .. }
            | Op::MemFree { .. }
            | Op::HostUnmap { .. }
            | Op::ArrayDestroy { .. }
            | Op::MipmapDestroy { .. }
            // Launches before it use what was bound before.
            | Op::ReferenceBind { .. }
            | Op::TextureDestroy { .. } => touches.scope = Scope::All,
            // These create or query something, or require that the program has synchronised before.
            Op::Devices
            | Op::ContextCreate { .. }
            | Op::ContextSetLimit { .. }
            | Op::ContextGetLimit { .. }
            | Op::MemInfo { .. }
            | Op::Places { .. }
            | Op::PeerEnable { .. }
            | Op::PeerDisable { .. }
            | Op::ImageHold { .. }
            | Op::ImageRelease { .. }
            | Op::ModuleLoad { .. }
            | Op::ModuleFunctions { .. }
            | Op::FunctionGet { .. }
            | Op::VariableGet { .. }
            | Op::Occupancy { .. }
            | Op::TensorMap { .. }
            | Op::TensorMapMove { .. }
            | Op::DeviceAsk { .. }
            | Op::Link { .. }
            | Op::MemAlloc { .. }
            | Op::MemAllocAsync { .. }
            | Op::AddressReserve { .. }
            | Op::AddressFree { .. }
            | Op::MemCreate { .. }
            | Op::MemRelease { .. }
            | Op::MemMap { .. }
            | Op::MemUnmap { .. }
            | Op::MemSetAccess { .. }
            | Op::MemShare { .. }
            | Op::MemFetch { .. }
            | Op::HostMap { .. }
            | Op::ArrayCreate { .. }
            | Op::TextureCreate { .. }
            | Op::ReferenceGet { .. }
            | Op::MipmapCreate { .. }
            | Op::StreamCreate { .. }
            | Op::SmAsk { .. }
            | Op::GreenCreate { .. }
            | Op::GreenStream { .. }
            | Op::EventCreate { .. }
            | Op::EventOpen { .. } => {}
        }
        touches.apart = touches.stream.is_some_and(|it| {
            let known = session.streams.get(it.stream);
            known.is_ok_and(|known| known.flags & cu::CU_STREAM_NON_BLOCKING != 0)
        });
        touches
    }
}
