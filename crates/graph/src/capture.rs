//! Stream capture as a state machine over numbers: which streams are being captured into which graph,
//! and on which nodes their next work depends.
//!
//! ```text
//!            begin                    end (from the origin, everything joined)
//!   none ─────────────► active ─────────────────────────────────────────► none
//!             joined by waiting │ forbidden call, merge, isolation
//!             for an event      ▼
//!                          invalidated ── end ──► none, and no graph
//! ```
//!
//! What must be joined when a capture ends, as the driver 580 has it (`bench/programs/captures.c`, run natively and under Fermata:
//! `2026-11-25-h100x2-captures.json`):
//!
//! | a stream that is not the origin | the end |
//! | --- | --- |
//! | has work, and nothing after it leads to the origin | refused |
//! | has only waited for work of others | works |
//! | its dependencies were set to nodes of the program (`cuStreamUpdateCaptureDependencies`) | works |
//! | the same, and then work | refused |
//! | had work, and then its dependencies were set to others, or to none | works |
//! | had work, and then dependencies were added | refused |
//!
//! The graph itself is the caller's: it asks for the dependencies, adds the node, and says so with
//! [`Captures::advance`].

use std::collections::BTreeMap;

use fermata_abi::op::{ContextId, EventId, GraphId, StreamId};
use fermata_abi::sys::driver as cu;
use serde::{Deserialize, Serialize};

use crate::{Graph, NodeId};

/// What calls a capture forbids to threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum CaptureMode {
    /// Unsafe calls in any thread.
    #[default]
    Global,
    /// Unsafe calls in the thread that captures.
    ThreadLocal,
    /// None.
    Relaxed,
}

/// How a stream stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CaptureStatus {
    /// It executes what it is given.
    None,
    /// It is being captured.
    Active,
    /// It is part of a capture that has failed and has yet to be ended.
    Invalidated,
}

/// Why a call was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    /// The stream is being captured already.
    #[error("the stream is being captured already")]
    AlreadyCapturing,
    /// The stream is not being captured.
    #[error("the stream is not being captured")]
    NotCapturing,
    /// The call is not possible while capturing; the capture is invalid now.
    #[error("the call is not permitted while a stream is being captured")]
    Unsupported,
    /// The capture failed before.
    #[error("the capture was invalidated by an earlier error")]
    Invalidated,
    /// Two captures would become one.
    #[error("two independent captures cannot be merged")]
    Merge,
    /// Ended in another stream than begun.
    #[error("the capture was not begun in this stream")]
    Unmatched,
    /// A stream that took part was not joined.
    #[error("a stream forked from the captured one was not joined to it again")]
    Unjoined,
    /// Work inside would depend on work outside.
    #[error("captured work cannot depend on work outside of the capture")]
    Isolation,
    /// The legacy default stream would have to be ordered with a captured stream.
    #[error("the legacy default stream cannot be used while a blocking stream is being captured")]
    Implicit,
    /// The event stands for a place in a graph.
    #[error("the event was last recorded in a captured stream")]
    CapturedEvent,
    /// The event stands for a place in a graph whose capture is over.
    #[error("the capture in which the event was last recorded is over")]
    Ended,
    /// Ended by another thread than begun.
    #[error("the capture was begun by another thread")]
    WrongThread,
    /// A node that is not in the graph captured into.
    #[error("no such node in the graph captured into")]
    UnknownNode,
}

impl CaptureError {
    /// CUDA's result code.
    pub fn code(self) -> u32 {
        match self {
            Self::AlreadyCapturing | Self::NotCapturing => cu::CUDA_ERROR_ILLEGAL_STATE,
            Self::Unsupported => cu::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            Self::Invalidated => cu::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            Self::Merge => cu::CUDA_ERROR_STREAM_CAPTURE_MERGE,
            Self::Unmatched => cu::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
            Self::Unjoined => cu::CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
            Self::Isolation => cu::CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
            Self::Implicit => cu::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
            Self::CapturedEvent => cu::CUDA_ERROR_CAPTURED_EVENT,
            Self::WrongThread => cu::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
            Self::UnknownNode | Self::Ended => cu::CUDA_ERROR_INVALID_VALUE,
        }
    }
}

/// A stream as captures see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamKey {
    /// The stream, whose handle is never used twice.
    pub id: StreamId,
    /// Its context.
    pub context: ContextId,
    /// It synchronises with the legacy default stream.
    pub blocking: bool,
}

/// A capture in progress, as seen from one of its streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureInfo {
    /// Number of the capture, never used twice.
    pub id: u64,
    /// The caller's name for the graph captured into.
    pub graph: GraphId,
    /// Nodes the stream's next node depends on.
    pub dependencies: Vec<NodeId>,
}

/// What waiting for an event means for a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// Nothing here is captured: wait as usual.
    Outside,
    /// The stream's next node depends on the event's nodes.
    Captured,
}

/// A node that a stream's next node depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Tail {
    node: NodeId,
    /// Whether it is the stream's own work, which must have been joined at the end: not what the stream has only waited for, nor what
    /// the program has set as a dependency itself (`cuStreamUpdateCaptureDependencies`).
    must_join: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Capture {
    graph: GraphId,
    origin: StreamId,
    mode: CaptureMode,
    thread: u64,
    valid: bool,
    /// Streams taking part and where each stands.
    streams: BTreeMap<StreamId, (StreamKey, Vec<Tail>)>,
}

/// All captures of a process.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Captures {
    captures: BTreeMap<u64, Capture>,
    /// Events last recorded in a captured stream: capture and nodes.
    events: BTreeMap<EventId, (u64, Vec<NodeId>)>,
    last: u64,
}

impl Captures {
    /// Whether nothing is being captured and no event was recorded in a capture.
    pub fn is_idle(&self) -> bool {
        self.captures.is_empty() && self.events.is_empty()
    }

    /// Begins to capture a stream into `graph`, the first node depending on `dependencies`.
    ///
    /// # Errors
    /// The stream is being captured already.
    pub fn begin(
        &mut self,
        stream: StreamKey,
        mode: CaptureMode,
        thread: u64,
        graph: GraphId,
        dependencies: &[NodeId],
    ) -> Result<u64, CaptureError> {
        if self.of(stream.id).is_some() {
            return Err(CaptureError::AlreadyCapturing);
        }
        self.last += 1;
        let streams = BTreeMap::from([(stream.id, (stream, others(dependencies)))]);
        let origin = stream.id;
        self.captures.insert(
            self.last,
            Capture {
                graph,
                origin,
                mode,
                thread,
                valid: true,
                streams,
            },
        );
        Ok(self.last)
    }

    /// How a stream stands.
    pub fn status(&self, stream: StreamId) -> CaptureStatus {
        match self.of(stream) {
            None => CaptureStatus::None,
            Some((_, capture)) if capture.valid => CaptureStatus::Active,
            Some(_) => CaptureStatus::Invalidated,
        }
    }

    /// The capture a stream takes part in, and the nodes its next node depends on.
    ///
    /// # Errors
    /// It takes part in none, or in one that has failed.
    pub fn info(&self, stream: StreamId) -> Result<CaptureInfo, CaptureError> {
        let (id, capture) = self.of(stream).ok_or(CaptureError::NotCapturing)?;
        if !capture.valid {
            return Err(CaptureError::Invalidated);
        }
        let tails = capture.streams.get(&stream).map(|(_, tails)| nodes(tails));
        Ok(CaptureInfo {
            id,
            graph: capture.graph,
            dependencies: tails.unwrap_or_default(),
        })
    }

    /// A node was added for the stream: what follows depends on it alone.
    pub fn advance(&mut self, stream: StreamId, node: NodeId) {
        if let Some((_, tails)) = self.of_mut(stream).and_then(|c| c.streams.get_mut(&stream)) {
            let must_join = true;
            *tails = vec![Tail { node, must_join }];
        }
    }

    /// Replaces or extends the nodes the stream's next node depends on.
    ///
    /// # Errors
    /// The stream is not being captured.
    pub fn set_dependencies(
        &mut self,
        stream: StreamId,
        nodes: &[NodeId],
        replace: bool,
    ) -> Result<(), CaptureError> {
        self.info(stream)?;
        if let Some((_, old)) = self.of_mut(stream).and_then(|c| c.streams.get_mut(&stream)) {
            if replace {
                old.clear();
            }
            merge(old, nodes);
        }
        Ok(())
    }

    /// An event is recorded in a stream. True when that happens inside a capture, so that nothing is to
    /// be executed.
    ///
    /// # Errors
    /// The stream's capture has failed.
    pub fn record(&mut self, stream: StreamId, event: EventId) -> Result<bool, CaptureError> {
        match self.info(stream) {
            Ok(info) => {
                self.events.insert(event, (info.id, info.dependencies));
                Ok(true)
            }
            Err(CaptureError::NotCapturing) => {
                self.events.remove(&event);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// A stream waits for an event. `recorded` says whether the event was ever recorded outside.
    ///
    /// # Errors
    /// The wait would join two captures, tie a capture to outside work, or is for a capture that has
    /// ended or failed.
    pub fn wait(
        &mut self,
        stream: StreamKey,
        event: EventId,
        recorded: bool,
    ) -> Result<Waited, CaptureError> {
        let own = self.of(stream.id).map(|(id, _)| id);
        let Some((theirs, joined)) = self.events.get(&event).cloned() else {
            return match own {
                None => Ok(Waited::Outside),
                Some(_) => {
                    self.info(stream.id)?;
                    if recorded {
                        self.invalidate(stream.id);
                        return Err(CaptureError::Isolation);
                    }
                    Ok(Waited::Captured)
                }
            };
        };
        if own.is_some_and(|own| own != theirs) {
            self.invalidate(stream.id);
            if let Some(other) = self.captures.get_mut(&theirs) {
                other.valid = false;
            }
            return Err(CaptureError::Merge);
        }
        let capture = self.captures.get_mut(&theirs).ok_or(CaptureError::Ended)?;
        if !capture.valid {
            return Err(CaptureError::Invalidated);
        }
        let (_, tails) = capture
            .streams
            .entry(stream.id)
            .or_insert((stream, Vec::new()));
        merge(tails, &joined);
        Ok(Waited::Captured)
    }

    /// Ends the capture begun in a stream and returns the caller's name for its graph.
    ///
    /// # Errors
    /// The stream is not the origin, or the thread is another than the one that began (nothing changes
    /// then); the capture has failed, or a stream was not joined (it is over then, without a graph).
    pub fn end(
        &mut self,
        stream: StreamId,
        thread: u64,
        graph: &Graph,
    ) -> Result<GraphId, CaptureError> {
        let (id, capture) = self.of(stream).ok_or(CaptureError::NotCapturing)?;
        if capture.origin != stream {
            return Err(CaptureError::Unmatched);
        }
        if capture.mode != CaptureMode::Relaxed && capture.thread != thread {
            return Err(CaptureError::WrongThread);
        }
        let (valid, name) = (capture.valid, capture.graph);
        let tails = capture.streams.get(&stream).map(|(_, tails)| nodes(tails));
        let tails = tails.unwrap_or_default();
        let must_join = capture.streams.values().flat_map(|(_, tails)| tails);
        let must_join = must_join.filter(|it| it.must_join).map(|it| it.node);
        let joined = graph.reaches(&tails, &must_join.collect::<Vec<_>>());
        self.captures.remove(&id);
        match (valid, joined) {
            (false, _) => Err(CaptureError::Invalidated),
            (true, false) => Err(CaptureError::Unjoined),
            (true, true) => Ok(name),
        }
    }

    /// The caller's name for the graph that a stream is captured into, even if the capture has failed.
    pub fn graph_of(&self, stream: StreamId) -> Option<GraphId> {
        self.of(stream).map(|(_, capture)| capture.graph)
    }

    /// The stream's capture has failed.
    pub fn invalidate(&mut self, stream: StreamId) {
        if let Some(capture) = self.of_mut(stream) {
            capture.valid = false;
        }
    }

    /// A stream is destroyed: a capture begun in it is over. One that it was forked into goes on, and what it has captured
    /// must have been joined when that ends.
    pub fn remove_stream(&mut self, stream: StreamId) {
        if let Some((id, capture)) = self.of(stream)
            && capture.origin == stream
        {
            self.captures.remove(&id);
        }
    }

    /// An event is destroyed.
    pub fn remove_event(&mut self, event: EventId) {
        self.events.remove(&event);
    }

    /// Whether the event was last recorded in a captured stream.
    pub fn is_captured(&self, event: EventId) -> bool {
        self.events.contains_key(&event)
    }

    /// The capture in which the event was last recorded has failed.
    pub fn invalidate_event(&mut self, event: EventId) {
        let capture = self
            .events
            .get(&event)
            .and_then(|(id, _)| self.captures.get_mut(id));
        if let Some(capture) = capture {
            capture.valid = false;
        }
    }

    /// Refuses to look at an event that was last recorded in a captured stream, and invalidates the
    /// capture.
    ///
    /// # Errors
    /// It was.
    pub fn forbid_captured(&mut self, event: EventId) -> Result<(), CaptureError> {
        let Some((id, _)) = self.events.get(&event) else {
            return Ok(());
        };
        match self.captures.get_mut(id) {
            Some(capture) => {
                capture.valid = false;
                Err(CaptureError::CapturedEvent)
            }
            None => Err(CaptureError::Ended),
        }
    }

    /// Refuses a call that cannot be made on a captured stream, and invalidates its capture.
    ///
    /// # Errors
    /// The stream is being captured.
    pub fn forbid_on(&mut self, stream: StreamId) -> Result<(), CaptureError> {
        match self.status(stream) {
            CaptureStatus::None => Ok(()),
            CaptureStatus::Active => {
                self.invalidate(stream);
                Err(CaptureError::Unsupported)
            }
            CaptureStatus::Invalidated => Err(CaptureError::Invalidated),
        }
    }

    /// Refuses use of a context's legacy default stream while one of its blocking streams is captured.
    ///
    /// # Errors
    /// One is; its capture is invalid now.
    pub fn forbid_implicit(&mut self, context: ContextId) -> Result<(), CaptureError> {
        let ordered = |key: &StreamKey| key.blocking && key.context == context;
        let mut refused = false;
        for capture in self.captures.values_mut() {
            if capture.streams.values().any(|(key, _)| ordered(key)) {
                capture.valid = false;
                refused = true;
            }
        }
        if refused {
            Err(CaptureError::Implicit)
        } else {
            Ok(())
        }
    }

    /// Whether one of a context's blocking streams is captured, so that its legacy default stream cannot be used.
    pub fn is_implicit(&self, context: ContextId) -> bool {
        let mut streams = self.captures.values().flat_map(|it| it.streams.values());
        streams.any(|(key, _)| key.blocking && key.context == context)
    }

    /// Refuses potentially unsafe calls to a thread in mode `own` where a capture forbids them.
    ///
    /// # Errors
    /// A capture does; it is invalid now.
    pub fn forbid_unsafe(&mut self, thread: u64, own: CaptureMode) -> Result<(), CaptureError> {
        let mut refused = false;
        for capture in self.captures.values_mut() {
            let forbids = match own {
                CaptureMode::Relaxed => false,
                CaptureMode::ThreadLocal => {
                    capture.thread == thread && capture.mode != CaptureMode::Relaxed
                }
                CaptureMode::Global => {
                    capture.mode == CaptureMode::Global
                        || capture.thread == thread && capture.mode == CaptureMode::ThreadLocal
                }
            };
            if forbids {
                capture.valid = false;
                refused = true;
            }
        }
        if refused {
            Err(CaptureError::Unsupported)
        } else {
            Ok(())
        }
    }

    fn of(&self, stream: StreamId) -> Option<(u64, &Capture)> {
        let found = self
            .captures
            .iter()
            .find(|(_, capture)| capture.streams.contains_key(&stream));
        found.map(|(id, capture)| (*id, capture))
    }

    fn of_mut(&mut self, stream: StreamId) -> Option<&mut Capture> {
        self.captures
            .values_mut()
            .find(|capture| capture.streams.contains_key(&stream))
    }
}

fn nodes(tails: &[Tail]) -> Vec<NodeId> {
    tails.iter().map(|it| it.node).collect()
}

/// What is no work of the stream.
fn others(nodes: &[NodeId]) -> Vec<Tail> {
    let mut tails = Vec::new();
    merge(&mut tails, nodes);
    tails
}

/// Adds what is no work of the stream, as far as it is not there.
fn merge(into: &mut Vec<Tail>, nodes: &[NodeId]) {
    for node in nodes {
        if into.iter().all(|it| it.node != *node) {
            let must_join = false;
            into.push(Tail {
                node: *node,
                must_join,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EdgeData, NodeKind};

    const A: StreamKey = StreamKey {
        id: StreamId::from_raw(1),
        context: ContextId::from_raw(1),
        blocking: true,
    };
    const B: StreamKey = StreamKey {
        id: StreamId::from_raw(2),
        context: ContextId::from_raw(1),
        blocking: false,
    };
    const EVENT: EventId = EventId::from_raw(10);
    const OTHER: EventId = EventId::from_raw(11);

    struct World {
        captures: Captures,
        graph: Graph,
    }

    impl World {
        fn capturing() -> Self {
            let mut captures = Captures::default();
            captures
                .begin(A, CaptureMode::Global, 7, GraphId::from_raw(100), &[])
                .unwrap();
            Self {
                captures,
                graph: Graph::new(),
            }
        }

        /// The origin has work, for which another stream has waited.
        fn forked() -> Self {
            let mut world = Self::capturing();
            world.work(A);
            world.captures.record(A.id, EVENT).unwrap();
            world.captures.wait(B, EVENT, false).unwrap();
            world
        }

        /// What comes of an end now.
        fn end(&self) -> Result<GraphId, CaptureError> {
            self.captures.clone().end(A.id, 7, &self.graph)
        }

        fn work(&mut self, stream: StreamKey) -> NodeId {
            let info = self.captures.info(stream.id).unwrap();
            let after: Vec<_> = info
                .dependencies
                .iter()
                .map(|node| (*node, EdgeData::default()))
                .collect();
            let node = self.graph.add(NodeKind::Empty, &after).unwrap();
            self.captures.advance(stream.id, node);
            node
        }
    }

    #[test]
    fn work_of_a_stream_follows_in_order() {
        let mut world = World::capturing();
        let (a, b) = (world.work(A), world.work(A));
        assert_eq!(world.graph.node(b).unwrap().dependencies[0].0, a);
        assert_eq!(
            world.captures.end(A.id, 7, &world.graph),
            Ok(GraphId::from_raw(100))
        );
        assert_eq!(world.captures.status(A.id), CaptureStatus::None);
    }

    #[test]
    fn a_fork_joins_through_events_and_must_come_back() {
        let mut world = World::capturing();
        world.work(A);
        assert_eq!(world.captures.record(A.id, EVENT), Ok(true));
        assert_eq!(world.captures.wait(B, EVENT, false), Ok(Waited::Captured));
        world.work(B);
        let unjoined = world.captures.clone().end(A.id, 7, &world.graph);
        assert_eq!(unjoined, Err(CaptureError::Unjoined));
        world.captures.record(B.id, OTHER).unwrap();
        world.captures.wait(A, OTHER, false).unwrap();
        assert_eq!(world.captures.info(A.id).unwrap().dependencies.len(), 2);
        assert_eq!(
            world.captures.end(B.id, 7, &world.graph),
            Err(CaptureError::Unmatched)
        );
        assert_eq!(
            world.captures.end(A.id, 8, &world.graph),
            Err(CaptureError::WrongThread)
        );
        assert_eq!(
            world.captures.end(A.id, 7, &world.graph),
            Ok(GraphId::from_raw(100))
        );
    }

    #[test]
    fn what_a_program_sets_as_a_dependency_need_not_be_joined() {
        let mut world = World::forked();
        // A node of its own behind the stream's, as NCCL records an event there.
        let own = world.graph.add(NodeKind::Empty, &[]).unwrap();
        world.captures.set_dependencies(B.id, &[own], true).unwrap();
        assert_eq!(world.captures.info(B.id).unwrap().dependencies, [own]);
        assert!(world.end().is_ok());
        // What removes captured work from the stream takes the demand along; work behind what was set brings it back.
        world.work(B);
        assert_eq!(world.end(), Err(CaptureError::Unjoined));
        world.captures.set_dependencies(B.id, &[], true).unwrap();
        assert!(world.end().is_ok());
        world.work(B);
        world
            .captures
            .set_dependencies(B.id, &[own], false)
            .unwrap();
        assert_eq!(world.captures.info(B.id).unwrap().dependencies.len(), 2);
        assert_eq!(world.end(), Err(CaptureError::Unjoined));
    }

    #[test]
    fn what_a_stream_has_only_waited_for_need_not_be_joined() {
        let mut world = World::forked();
        let own = world.graph.add(NodeKind::Empty, &[]).unwrap();
        // The origin turns away from work of its own, which another stream has waited for.
        world.captures.set_dependencies(A.id, &[own], true).unwrap();
        assert!(world.end().is_ok());

        let mut world = World::forked();
        world.work(B);
        world.captures.record(B.id, OTHER).unwrap();
        let third = StreamKey {
            id: StreamId::from_raw(3),
            ..B
        };
        world.captures.wait(third, OTHER, false).unwrap();
        assert_eq!(world.end(), Err(CaptureError::Unjoined));
        world.captures.set_dependencies(B.id, &[], true).unwrap();
        assert!(world.end().is_ok());
    }

    #[test]
    fn a_forked_stream_may_be_destroyed_while_the_capture_goes_on() {
        let mut world = World::forked();
        world.work(B);
        let mut lost = world.captures.clone();
        lost.remove_stream(B.id);
        let unjoined = lost.end(A.id, 7, &world.graph);
        assert_eq!(unjoined, Err(CaptureError::Unjoined));
        world.captures.record(B.id, OTHER).unwrap();
        world.captures.wait(A, OTHER, false).unwrap();
        world.captures.remove_stream(B.id);
        let whole = world.captures.end(A.id, 7, &world.graph);
        assert_eq!(whole, Ok(GraphId::from_raw(100)));
    }

    #[test]
    fn captures_are_isolated_from_outside_work_and_each_other() {
        let mut world = World::capturing();
        assert_eq!(
            world.captures.wait(A, OTHER, true),
            Err(CaptureError::Isolation)
        );
        assert_eq!(world.captures.status(A.id), CaptureStatus::Invalidated);
        assert_eq!(
            world.captures.record(A.id, EVENT),
            Err(CaptureError::Invalidated)
        );
        assert_eq!(
            world.captures.end(A.id, 7, &world.graph),
            Err(CaptureError::Invalidated)
        );
        assert_eq!(world.captures.status(A.id), CaptureStatus::None);

        let mut world = World::capturing();
        world
            .captures
            .begin(B, CaptureMode::Relaxed, 7, GraphId::from_raw(101), &[])
            .unwrap();
        world.captures.record(A.id, EVENT).unwrap();
        assert_eq!(
            world.captures.wait(B, EVENT, false),
            Err(CaptureError::Merge)
        );
        assert_eq!(world.captures.status(A.id), CaptureStatus::Invalidated);
        assert_eq!(world.captures.status(B.id), CaptureStatus::Invalidated);
    }

    #[test]
    fn modes_say_whose_unsafe_calls_are_forbidden() {
        use CaptureMode::{Global, Relaxed, ThreadLocal};
        let refused = |mode, thread, own| {
            let mut captures = Captures::default();
            captures
                .begin(A, mode, 7, GraphId::from_raw(1), &[])
                .unwrap();
            captures.forbid_unsafe(thread, own).is_err()
        };
        assert!(refused(Global, 8, Global) && refused(Global, 7, ThreadLocal));
        assert!(!refused(Global, 8, ThreadLocal) && !refused(Global, 7, Relaxed));
        assert!(refused(ThreadLocal, 7, Global) && !refused(ThreadLocal, 8, Global));
        assert!(!refused(Relaxed, 7, Global));
    }

    #[test]
    fn an_event_of_a_capture_stays_captured_until_recorded_outside() {
        let mut world = World::capturing();
        world.captures.record(A.id, EVENT).unwrap();
        let mut looked = world.captures.clone();
        assert_eq!(
            looked.forbid_captured(EVENT),
            Err(CaptureError::CapturedEvent)
        );
        assert_eq!(looked.status(A.id), CaptureStatus::Invalidated);
        world.captures.end(A.id, 7, &world.graph).unwrap();
        assert_eq!(
            world.captures.forbid_captured(EVENT),
            Err(CaptureError::Ended)
        );
        assert_eq!(
            world.captures.wait(B, EVENT, false),
            Err(CaptureError::Ended)
        );
        assert_eq!(world.captures.record(B.id, EVENT), Ok(false));
        assert_eq!(world.captures.wait(B, EVENT, true), Ok(Waited::Outside));
    }

    #[test]
    fn the_legacy_stream_is_shut_only_by_blocking_streams_of_its_context() {
        let mut captures = Captures::default();
        captures
            .begin(B, CaptureMode::Global, 7, GraphId::from_raw(1), &[])
            .unwrap();
        assert_eq!(captures.forbid_implicit(ContextId::from_raw(1)), Ok(()));
        captures
            .begin(A, CaptureMode::Global, 7, GraphId::from_raw(1), &[])
            .unwrap();
        assert_eq!(captures.forbid_implicit(ContextId::from_raw(2)), Ok(()));
        let implicit = |context| captures.is_implicit(ContextId::from_raw(context));
        assert!(implicit(1) && !implicit(2));
        assert_eq!(
            captures.forbid_implicit(ContextId::from_raw(1)),
            Err(CaptureError::Implicit)
        );
        assert_eq!(captures.status(A.id), CaptureStatus::Invalidated);
        assert_eq!(captures.status(B.id), CaptureStatus::Active);
    }
}
