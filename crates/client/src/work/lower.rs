//! Lowers a graph of the program to one that the worker can instantiate.
//!
//! Host functions become numbered callbacks, nodes that are switched off and allocations (whose memory
//! exists already) become empty ones, and a copy with an end in ordinary memory becomes two nodes:
//!
//! ```text
//!   before:  copy host ─► device          after:  callback host ─► shared   then   copy shared ─► device
//!   before:  copy device ─► host          after:  copy device ─► shared     then   callback shared ─► host
//! ```

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use fermata_abi::op::{Address, Blob, ExecId, HostKind, Op};
use fermata_abi::sys::driver::CUDA_ERROR_INVALID_VALUE;
use fermata_graph::update::KernelChange;
use fermata_graph::{
    Conditional, Copy, CopyEnd, EdgeData, Graph, HostCall, NodeId, NodeKind, Place,
};

use crate::handles;
use crate::link;
use crate::link::callback::{self, Rows};
use crate::object::context::Context;
use crate::object::graphs::{Bounce, Exec, Place as NodePlace, Places, Stale, refused};
use crate::object::host;
use crate::object::mirror::Block;
use crate::object::session::Session;
use crate::object::user_objects::HeldObjects;
use crate::result::Result;
use crate::work::capture::PLAIN;

/// Graphs up to this size travel inside the message.
const INLINE: usize = 16 << 10;
/// Updates up to this size are posted without waiting for an answer, because programs that change parameters do so before
/// every launch.
const POSTED: usize = 64 << 10;
/// From so many changed kernels on, they are posted before the launch.
const TOGETHER: usize = 3;

/// What a change of a kernel takes beside its parameters, bytes: about so much.
const BESIDE: usize = 64;

/// Brings the worker's executable graph `handle` up to date with `exec`.
pub fn refresh(session: &Session, handle: ExecId, exec: &mut Exec) -> Result {
    if exec.stale == Stale::No {
        return Ok(());
    }
    let stale = exec.stale;
    if post_kernels(handle, exec)? {
        return Ok(());
    }
    let encoded = encode(session, exec)?;
    if stale == Stale::Shape {
        link::post(&Op::GraphDestroy { exec: handle })?;
        instantiate(handle, exec, &encoded)?;
    } else if encoded.len() <= POSTED {
        let graph = Blob::Inline(&encoded);
        link::post(&Op::GraphUpdate {
            exec: handle,
            graph,
        })?;
    } else {
        send(&encoded, |graph| {
            link::ask(
                &Op::GraphUpdate {
                    exec: handle,
                    graph,
                },
                link::nothing,
            )
        })?;
    }
    exec.changed.clear();
    exec.stale = Stale::No;
    Ok(())
}

/// To be called after kernel parameters of an executable graph have changed: posts the changes once there are `TOGETHER`,
/// so that the worker applies them while the program goes on. The others are sent with the launch.
pub fn kernels_changed(handle: ExecId, exec: &mut Exec) -> Result {
    if exec.changed.len() >= TOGETHER {
        post_kernels(handle, exec)?;
    }
    Ok(())
}

/// Posts the kernels that have changed; false if that does not bring the worker's graph up to date.
fn post_kernels(handle: ExecId, exec: &mut Exec) -> Result<bool> {
    if exec.stale != Stale::Kernels {
        return Ok(false);
    }
    let Some(encoded) = changed_kernels(exec) else {
        return Ok(false);
    };
    link::post(&Op::GraphSetKernels {
        exec: handle,
        kernels: Blob::Inline(&encoded),
    })?;
    exec.changed.clear();
    exec.stale = Stale::No;
    Ok(true)
}

/// The kernels that have changed, if the worker's graph has been lowered in order to name them, and they are few.
fn changed_kernels(exec: &Exec) -> Option<Vec<u8>> {
    let places = exec.places.as_ref()?;
    let change = |(path, node): &NodePlace| {
        let (at, lowered) = places.get(path)?.get(node)?;
        match &exec.graph.inner(path).ok()?.node(*node).ok()?.kind {
            NodeKind::Kernel(kernel) => Some(KernelChange {
                path: Cow::Borrowed(at),
                node: *lowered,
                kernel: Cow::Borrowed(kernel),
            }),
            _ => None,
        }
    };
    let changes: Option<Vec<_>> = exec.changed.iter().map(change).collect();
    let changes = changes?;
    let likely = changes.iter().map(|it| it.kernel.params.len() + BESIDE);
    let encoded = Vec::with_capacity(likely.sum());
    let encoded = postcard::to_extend(&changes, encoded).ok()?;
    (encoded.len() <= POSTED).then_some(encoded)
}

/// Makes an executable graph of a definition.
pub fn create(
    session: &Session,
    context: &Arc<Context>,
    graph: Graph,
    flags: u64,
) -> Result<(ExecId, Exec)> {
    let handle = handles::fresh();
    let has_memory = graph.has_memory_nodes();
    let mut exec = Exec {
        context: context.handle,
        graph,
        flags,
        stale: Stale::No,
        changed: Vec::new(),
        places: None,
        disabled: Default::default(),
        bounces: HashMap::new(),
        held: HeldObjects::default(),
        last: None,
        has_memory,
        source: None,
    };
    let encoded = encode(session, &mut exec)?;
    instantiate(handle, &exec, &encoded)?;
    Ok((handle, exec))
}

/// Ends an executable graph.
pub fn destroy(session: &Session, handle: ExecId, exec: &Exec) -> Result {
    link::post(&Op::GraphDestroy { exec: handle })?;
    for bounce in exec.bounces.values() {
        host::free(&session.memory, bounce.address, HostKind::Pinned)?;
    }
    Ok(())
}

fn instantiate(handle: ExecId, exec: &Exec, encoded: &[u8]) -> Result {
    let (context, flags) = (exec.context, exec.flags);
    send(encoded, |graph| {
        link::ask(
            &Op::GraphInstantiate {
                exec: handle,
                context,
                graph,
                flags,
            },
            link::nothing,
        )
    })
}

fn send<T>(encoded: &[u8], act: impl FnOnce(Blob<'_>) -> Result<T>) -> Result<T> {
    if encoded.len() <= INLINE {
        return act(Blob::Inline(encoded));
    }
    let range = link::stage(encoded.len() as u64)?;
    // SAFETY: the range is as long as the graph, and ours until it is dropped.
    unsafe { std::ptr::copy_nonoverlapping(encoded.as_ptr(), range.address(), encoded.len()) };
    act(Blob::Staged {
        offset: range.offset(),
        len: range.len(),
    })
}

fn encode(session: &Session, exec: &mut Exec) -> Result<Vec<u8>> {
    // Taken for the time instead of copied, because a copy costs as much as the lowering.
    let graph = std::mem::take(&mut exec.graph);
    let mut lowering = Lowering {
        session,
        exec,
        path: Vec::new(),
        in_body: false,
    };
    let lowered = lowering.graph(&graph);
    exec.graph = graph;
    let (lowered, places) = lowered?;
    // Kept only after a change: most graphs never change, and those that do change often.
    exec.places = (exec.stale == Stale::Kernels).then(|| {
        let mut by_way = Places::default();
        for ((way, node), place) in places {
            by_way.entry(way).or_default().insert(node, place);
        }
        by_way
    });
    postcard::to_stdvec(&lowered).map_err(|_| CUDA_ERROR_INVALID_VALUE)
}

/// Kernels of a graph, and where they are in the worker's graph.
type Kernels = Vec<(NodePlace, NodePlace)>;

struct Lowering<'l> {
    session: &'l Session,
    exec: &'l mut Exec,
    path: Vec<NodeId>,
    /// Whether it is at a body of a conditional node, in which no host function can be called.
    in_body: bool,
}

impl Lowering<'_> {
    /// The lowered graph, and where the kernels are in it.
    fn graph(&mut self, graph: &Graph) -> Result<(Graph, Kernels)> {
        let mut out = Graph::new();
        let mut places = Kernels::new();
        // The last of the nodes that replace each node.
        let mut ends: HashMap<NodeId, NodeId> = HashMap::new();
        for id in graph.order().map_err(refused)? {
            let node = graph.node(id).map_err(refused)?;
            let after: Vec<(NodeId, EdgeData)> = node
                .dependencies
                .iter()
                .filter_map(|(from, data)| Some((*ends.get(from)?, *data)))
                .collect();
            let (steps, inside) = self.node(id, &node.kind)?;
            let mut steps = steps.into_iter();
            let Some(first) = steps.next() else { continue };
            let is_kernel = matches!(first, NodeKind::Kernel(_));
            let mut last = out.add(first, &after).map_err(refused)?;
            if self.exec.stale == Stale::Kernels {
                let below = |node, (path, at): NodePlace| ([&[node][..], &path].concat(), at);
                let from_here =
                    |(from, to): (NodePlace, NodePlace)| (below(id, from), below(last, to));
                places.extend(inside.into_iter().map(from_here));
                places.extend(is_kernel.then(|| ((Vec::new(), id), (Vec::new(), last))));
            }
            for step in steps {
                last = out.add(step, &[(last, PLAIN)]).map_err(refused)?;
            }
            ends.insert(id, last);
        }
        Ok((out, places))
    }

    /// The nodes that replace a node, and where the kernels of the graphs in it are then.
    fn node(&mut self, id: NodeId, kind: &NodeKind) -> Result<(Vec<NodeKind>, Kernels)> {
        if self.exec.disabled.contains(&(self.path.clone(), id)) {
            return Ok((vec![NodeKind::Empty], Kernels::new()));
        }
        let mut inside = Kernels::new();
        let step = match kind {
            NodeKind::Host(call) => {
                host_call(callback::of_function(call.function, call.user_data)?)
            }
            NodeKind::MemAlloc(_) | NodeKind::MemFree(_) => NodeKind::Empty,
            NodeKind::ChildGraph(child) => {
                self.path.push(id);
                let lowered = self.graph(child);
                self.path.pop();
                let (child, places) = lowered?;
                inside = places;
                NodeKind::ChildGraph(Box::new(child))
            }
            NodeKind::Conditional(node) => {
                let (node, places) = self.conditional(id, node)?;
                inside = places;
                NodeKind::Conditional(Box::new(node))
            }
            NodeKind::Memcpy(copy) => return Ok((self.copy(id, copy)?, Kernels::new())),
            other => other.clone(),
        };
        Ok((vec![step], inside))
    }

    /// A conditional node with lowered bodies, and where the kernels in them are.
    fn conditional(&mut self, id: NodeId, node: &Conditional) -> Result<(Conditional, Kernels)> {
        let (mut bodies, mut places) = (Vec::new(), Kernels::new());
        let outside = std::mem::replace(&mut self.in_body, true);
        for (number, body) in (0..).map(NodeId).zip(&node.bodies) {
            self.path.extend([id, number]);
            let lowered = self.graph(body);
            self.path.truncate(self.path.len().saturating_sub(2));
            let (body, inside) = lowered?;
            bodies.push(body);
            let below = |(path, at): NodePlace| ([&[number][..], &path].concat(), at);
            let from_here = |(from, to)| (below(from), below(to));
            places.extend(inside.into_iter().map(from_here));
        }
        self.in_body = outside;
        let lowered = Conditional {
            bodies,
            condition: node.condition,
            default: node.default,
            context: node.context,
            kind: node.kind,
        };
        Ok((lowered, places))
    }

    fn copy(&mut self, id: NodeId, copy: &Copy) -> Result<Vec<NodeKind>> {
        let is_private = self.is_private(&copy.src, copy) || self.is_private(&copy.dst, copy);
        if self.in_body && is_private {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut steps = Vec::new();
        let mut lowered = *copy;
        lowered.src = self.shared(&copy.src, copy);
        lowered.dst = self.shared(&copy.dst, copy);
        if self.is_private(&copy.src, copy) {
            let packed = self.bounce(id, copy, true)?;
            steps.push(host_call(callback::of_rows(rows(
                &packed, &copy.src, copy,
            )?)?));
            lowered.src = packed;
        }
        let back = self.is_private(&copy.dst, copy);
        if back {
            lowered.dst = self.bounce(id, copy, false)?;
        }
        steps.push(NodeKind::Memcpy(lowered));
        if back {
            steps.push(host_call(callback::of_rows(rows(
                &copy.dst,
                &lowered.dst,
                copy,
            )?)?));
        }
        Ok(steps)
    }

    /// Shared memory as both processes address it.
    fn shared(&self, end: &CopyEnd, copy: &Copy) -> CopyEnd {
        let host = end.place == Place::Host && !self.is_private(end, copy);
        CopyEnd {
            place: if host { Place::Unified } else { end.place },
            ..*end
        }
    }

    fn is_private(&self, end: &CopyEnd, copy: &Copy) -> bool {
        let Some((first, past)) = copy.span(end) else {
            return false;
        };
        let start = end.address + first;
        match end.place {
            Place::Host => {
                !self
                    .session
                    .memory
                    .holds(Address::from_raw(start), past - first, Block::is_host)
            }
            Place::Unified => self.session.memory.find(Address::from_raw(start)).is_none(),
            Place::Device | Place::Array => false,
        }
    }

    /// Shared memory for the packed rows of a copy.
    fn bounce(&mut self, id: NodeId, copy: &Copy, source: bool) -> Result<CopyEnd> {
        let size = copy.bytes().ok_or(CUDA_ERROR_INVALID_VALUE)?.max(1);
        let key = (self.path.clone(), id, source);
        let known = self
            .exec
            .bounces
            .get(&key)
            .filter(|bounce| bounce.size == size)
            .copied();
        let bounce = match known {
            Some(bounce) => bounce,
            None => {
                let context = self
                    .session
                    .contexts
                    .get(handles::to_pointer(self.exec.context))?;
                let address =
                    host::alloc(&self.session.memory, &context, size, HostKind::Pinned, 0)?;
                let bounce = Bounce { address, size };
                if let Some(old) = self.exec.bounces.insert(key, bounce) {
                    host::free(&self.session.memory, old.address, HostKind::Pinned)?;
                }
                bounce
            }
        };
        let (pitch, height) = (copy.width_bytes, copy.height);
        Ok(CopyEnd {
            pitch,
            height,
            ..CopyEnd::linear(Place::Unified, bounce.address.raw())
        })
    }
}

fn host_call(id: u64) -> NodeKind {
    NodeKind::Host(HostCall {
        function: 0,
        user_data: id,
    })
}

fn rows(to: &CopyEnd, from: &CopyEnd, copy: &Copy) -> Result<Rows> {
    let start = |end: &CopyEnd| Some(end.address + end.offset(0, 0)?);
    let slice = |end: &CopyEnd| end.pitch.checked_mul(end.height);
    let sides = || Some((start(to)?, start(from)?, slice(to)?, slice(from)?));
    let (to_start, from_start, to_slice, from_slice) = sides().ok_or(CUDA_ERROR_INVALID_VALUE)?;
    Ok(Rows {
        to: (to_start, to.pitch, to_slice),
        from: (from_start, from.pitch, from_slice),
        width: copy.width_bytes,
        height: copy.height,
        depth: copy.depth,
    })
}
