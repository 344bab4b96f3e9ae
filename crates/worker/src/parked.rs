//! Operations that wait in the worker, so that the driver never makes the decode loop wait.
//!
//! A call of the driver that adds work to a stream whose queue is full waits until there is room. The loop
//! would wait with it, and with the loop every thread of the program: also the one whose launch would let that
//! stream go on. So the operations of a full stream wait here, in order, and the others pass them:
//!
//! ```text
//!   ring ─► execute ──┬─ stream full, or behind what is parked ─► parked, in order
//!                     └─ else ─► driver                              │ stream has room again
//!                          ▲                                         │
//!                          └─────────────────────────────────────────┘
//! ```
//! What is behind what is parked: work of the same stream; the default stream's and, behind it, that of the
//! context's other streams; whatever touches an event, a function or a graph that a parked operation changes;
//! calls that wait for a context, or that give something up which parked work may use. A query is not parked:
//! its answer is that the work is not done.
//!
//! At most [`MOST`] bytes are parked. When there are more, nothing is taken off the ring until some have gone.

use std::collections::{HashSet, VecDeque};

use fermata_abi::op::{Handle, Op, STREAM_LEGACY, StreamRef};
use fermata_abi::sys::driver as cu;
use fermata_state::Session;
use fermata_wire::Ticket;

use crate::errors::{OpError, reports, stream_changed};
use crate::serve::Server;

/// Bytes of encoded operations that may be parked: half a million launches and more.
const MOST: usize = 64 << 20;

/// An operation that waits.
struct Parked {
    bytes: Vec<u8>,
    ticket: Option<Ticket>,
    touches: Touches,
}

/// What an operation waits for, beside its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// Nothing.
    Own,
    /// All that is parked of a context.
    Context(Handle),
    /// All that is parked.
    All,
}

/// What an operation has to do with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Touches {
    stream: Option<StreamRef>,
    /// Whether that is a stream which the default stream does not wait for.
    apart: bool,
    events: [Option<Handle>; 2],
    /// Whether it adds to the stream's queue.
    adds: bool,
    /// A function or an executable graph that it uses.
    uses: Option<Handle>,
    /// A function or an executable graph that it changes.
    changes: Option<Handle>,
    scope: Scope,
}

impl Touches {
    fn of(op: &Op<'_>, session: &Session) -> Self {
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
            ),
            uses: None,
            changes: None,
            scope: Scope::Own,
        };
        match op {
            Op::Copy { stream, .. }
            | Op::Copy3d { stream, .. }
            | Op::Fill { stream, .. }
            | Op::HostCall { stream, .. }
            | Op::WriteValue { stream, .. }
            | Op::WaitValue { stream, .. }
            | Op::MemFreeAsync { stream, .. }
            | Op::StreamSync { stream }
            | Op::StreamQuery { stream } => touches.stream = Some(*stream),
            Op::StreamWait { stream, event, .. } | Op::EventRecord { stream, event, .. } => {
                touches.stream = Some(*stream);
                touches.events[0] = Some(*event);
            }
            Op::Launch { launch, stream } => {
                touches.stream = Some(*stream);
                touches.uses = Some(launch.function);
                let mut events = launch.attributes.iter().filter_map(|it| it.event());
                touches.events = [events.next(), events.next()];
            }
            Op::GraphLaunch { exec, stream } => {
                touches.stream = Some(*stream);
                touches.uses = Some(*exec);
            }
            Op::StreamDestroy { stream } => {
                let context = session.streams.get(*stream).map_or(0, |it| it.context);
                let stream = *stream;
                touches.stream = Some(StreamRef { context, stream });
            }
            Op::EventDestroy { event } | Op::EventSync { event } | Op::EventQuery { event } => {
                touches.events[0] = Some(*event)
            }
            Op::EventElapsed { start, end } => touches.events = [Some(*start), Some(*end)],
            Op::FunctionSetAttribute { function, .. } => touches.changes = Some(*function),
            Op::GraphUpdate { exec, .. } | Op::GraphDestroy { exec } => {
                touches.changes = Some(*exec);
            }
            Op::ContextSync { context } => touches.scope = Scope::Context(*context),
            Op::Drain
            | Op::ContextDestroy { .. }
            | Op::ModuleUnload { .. }
            | Op::MemFree { .. }
            | Op::HostUnmap { .. }
            | Op::ArrayDestroy { .. }
            | Op::TextureDestroy { .. } => touches.scope = Scope::All,
            // They make something, ask for something, or need the program's own synchronisation before.
            Op::Devices
            | Op::ContextCreate { .. }
            | Op::ContextSetLimit { .. }
            | Op::ContextGetLimit { .. }
            | Op::MemInfo { .. }
            | Op::Places { .. }
            | Op::PeerEnable { .. }
            | Op::PeerDisable { .. }
            | Op::ModuleLoad { .. }
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
            | Op::HostMap { .. }
            | Op::ArrayCreate { .. }
            | Op::TextureCreate { .. }
            | Op::StreamCreate { .. }
            | Op::EventCreate { .. }
            | Op::GraphInstantiate { .. } => {}
        }
        touches.apart = touches.stream.is_some_and(|it| {
            let known = session.streams.get(it.stream);
            known.is_ok_and(|known| known.flags & cu::CU_STREAM_NON_BLOCKING != 0)
        });
        touches
    }
}

/// What the operations that are parked touch, all together.
#[derive(Default)]
struct Together {
    streams: HashSet<StreamRef>,
    /// Contexts whose default stream has to wait.
    joined: HashSet<Handle>,
    /// Contexts whose default stream is waited for.
    legacy: HashSet<Handle>,
    contexts: HashSet<Handle>,
    events: HashSet<Handle>,
    uses: HashSet<Handle>,
    changes: HashSet<Handle>,
    any: bool,
}

impl Together {
    fn add(&mut self, touches: &Touches) {
        self.any = true;
        if let Some(stream) = touches.stream {
            self.streams.insert(stream);
            self.contexts.insert(stream.context);
            if stream.stream == STREAM_LEGACY {
                self.legacy.insert(stream.context);
            } else if !touches.apart {
                self.joined.insert(stream.context);
            }
        }
        self.events.extend(touches.events.iter().flatten());
        self.uses.extend(touches.uses);
        self.changes.extend(touches.changes);
    }

    /// Whether an operation has to stay behind one of them.
    fn holds(&self, touches: &Touches) -> bool {
        if !self.any {
            return false;
        }
        let by_stream = touches.stream.is_some_and(|stream| {
            let others = if stream.stream == STREAM_LEGACY {
                &self.joined
            } else {
                &self.legacy
            };
            self.streams.contains(&stream) || !touches.apart && others.contains(&stream.context)
        });
        let in_either = |it: &Handle| self.uses.contains(it) || self.changes.contains(it);
        by_stream
            || touches
                .events
                .iter()
                .flatten()
                .any(|it| self.events.contains(it))
            || touches.uses.is_some_and(|it| self.changes.contains(&it))
            || touches.changes.as_ref().is_some_and(in_either)
            || match touches.scope {
                Scope::Own => false,
                Scope::Context(context) => self.contexts.contains(&context),
                Scope::All => true,
            }
    }
}

/// All that is parked, oldest first.
#[derive(Default)]
pub(crate) struct Lot {
    parked: VecDeque<Parked>,
    together: Together,
    /// Full streams that something waits for.
    full: Vec<StreamRef>,
    bytes: usize,
}

impl Lot {
    /// Whether nothing is parked.
    pub fn is_empty(&self) -> bool {
        self.parked.is_empty()
    }

    /// Whether no more may be parked.
    pub fn is_full(&self) -> bool {
        self.bytes >= MOST
    }

    fn keep(&mut self, parked: Parked) {
        self.together.add(&parked.touches);
        self.bytes += parked.bytes.len();
        self.parked.push_back(parked);
    }
}

impl Server {
    /// Parks `op` if it has to wait for a stream's queue; whether that is so, or it has been answered.
    #[inline]
    pub(crate) fn holds_back(&mut self, op: &Op<'_>, ticket: Option<Ticket>) -> bool {
        let concerned = !self.lot.is_empty()
            || stream_changed(op, &self.site.session).is_some_and(|it| self.queues.is_deep(it));
        concerned && self.park_if_needed(op, ticket)
    }

    fn park_if_needed(&mut self, op: &Op<'_>, ticket: Option<Ticket>) -> bool {
        let touches = Touches::of(op, &self.site.session);
        if !self.has_to_wait(&touches) {
            return false;
        }
        if matches!(
            op,
            Op::StreamQuery { .. } | Op::EventQuery { .. } | Op::EventElapsed { .. }
        ) {
            let text = "what it asks for has not been issued to the device yet";
            let error = OpError::new(cu::CUDA_ERROR_NOT_READY, text);
            self.answer(ticket, None, reports(op), Err(error));
            return true;
        }
        // What can be decoded can be encoded.
        let Ok(bytes) = postcard::to_stdvec(op) else {
            return false;
        };
        self.lot.keep(Parked {
            bytes,
            ticket,
            touches,
        });
        true
    }

    /// Whether an operation has to stay behind what is parked, or its stream is full, which is noted.
    fn has_to_wait(&mut self, touches: &Touches) -> bool {
        if self.lot.together.holds(touches) {
            return true;
        }
        let Some(stream) = touches.stream.filter(|_| touches.adds) else {
            return false;
        };
        let full = self.is_full(stream);
        if full && !self.lot.full.contains(&stream) {
            self.lot.full.push(stream);
        }
        full
    }

    /// Whether a stream may hold no more, as the driver says now.
    fn is_full(&mut self, stream: StreamRef) -> bool {
        while self.queues.is_deep(stream) {
            let Some(pace) = self.queues.pace(stream) else {
                // No pace could be recorded: the context is dead, or nearly so.
                return false;
            };
            let live = &mut self.site.live;
            let asked = live
                .enter(stream.context)
                .and_then(|_| live.driver.query_event(pace));
            match asked {
                Err(error) if error.code == cu::CUDA_ERROR_NOT_READY => return true,
                // Of a failure the operation itself learns.
                _ => self.events.put(stream.context, pace),
            }
            self.queues.pass(stream);
        }
        false
    }

    /// Issues what does not have to wait any more; whether that was anything.
    pub(crate) fn unpark(&mut self) -> bool {
        if self.lot.is_empty() {
            return false;
        }
        let full = std::mem::take(&mut self.lot.full);
        let still: Vec<_> = full
            .iter()
            .copied()
            .filter(|stream| self.is_full(*stream))
            .collect();
        if !full.is_empty() && still.len() == full.len() {
            self.lot.full = still;
            return false;
        }
        let Lot { parked, .. } = std::mem::take(&mut self.lot);
        let mut progress = false;
        for it in parked {
            if self.has_to_wait(&it.touches) {
                self.lot.keep(it);
                continue;
            }
            progress = true;
            match postcard::from_bytes::<Op<'_>>(&it.bytes) {
                Ok(op) => self.perform(&op, it.ticket),
                // It was encoded here.
                Err(error) => self.answer(it.ticket, None, false, Err(error.into())),
            }
        }
        progress
    }

    /// Records how far a stream is, where it is time to.
    pub(crate) fn keep_pace(&mut self, stream: StreamRef, weight: u64) {
        if self.queues.issue(stream, weight) {
            let event = self.record_mark(stream).ok();
            self.queues.paced(stream, event);
        }
    }

    /// Drops what is parked: nobody waits for it any more.
    pub(crate) fn abandon_parked(&mut self) {
        self.lot = Lot::default();
    }
}
