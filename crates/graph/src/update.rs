//! Updating an executable graph from another graph: which changes are possible.
//!
//! Nodes are matched in the order they were made. Topology and kinds must be the same; of the
//! parameters, those may change that CUDA documents as changeable.

use std::collections::BTreeMap;

use fermata_abi::sys::driver as cu;
use serde::{Deserialize, Serialize};

use crate::{Conditional, Copy, Graph, GraphError, KernelNode, MemsetNode, NodeId, NodeKind};

/// Why an executable graph cannot be updated, and at which node of the new graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("graph update refused: {reason} (node {node:?}, from {from:?})")]
pub struct UpdateError {
    /// What is wrong.
    pub reason: Reason,
    /// The node of the new graph where it shows, if any.
    pub node: Option<NodeId>,
    /// The node at the other end, where an edge is what differs.
    pub from: Option<NodeId>,
}

/// What is wrong with an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// Other nodes or edges.
    #[error("the topology changed")]
    Topology,
    /// A node is of another kind.
    #[error("a node's kind changed")]
    Kind,
    /// Parameters that cannot change did.
    #[error("parameters changed that cannot")]
    Parameters,
    /// This kind of node cannot change.
    #[error("nodes of this kind cannot change")]
    NotSupported,
}

impl Reason {
    /// CUDA's number (`CU_GRAPH_EXEC_UPDATE_*`).
    pub fn cuda_result(self) -> u32 {
        match self {
            Self::Topology => cu::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED,
            Self::Kind => cu::CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED,
            Self::Parameters => cu::CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED,
            Self::NotSupported => cu::CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED,
        }
    }
}

/// The graph an executable graph becomes by taking over the parameters of `new`. It keeps its node ids,
/// so that nodes of the graph it was made from still name its nodes.
///
/// # Errors
/// The update is not possible; nothing has changed.
pub fn updated(old: &Graph, new: &Graph) -> Result<Graph, UpdateError> {
    let topology = |node| UpdateError {
        reason: Reason::Topology,
        node,
        from: None,
    };
    if old.len() != new.len() {
        return Err(topology(None));
    }
    let to_old: BTreeMap<NodeId, NodeId> = new
        .nodes()
        .map(|(id, _)| id)
        .zip(old.nodes().map(|(id, _)| id))
        .collect();
    let mut result = old.clone();
    for ((old_id, before), (new_id, after)) in old.nodes().zip(new.nodes()) {
        if before.dependencies.len() != after.dependencies.len() {
            return Err(topology(Some(new_id)));
        }
        for (from, data) in &after.dependencies {
            let mapped = to_old.get(from).ok_or(topology(Some(new_id)))?;
            if !before.dependencies.contains(&(*mapped, *data)) {
                return Err(UpdateError {
                    from: Some(*from),
                    ..topology(Some(new_id))
                });
            }
        }
        let at = |reason| UpdateError {
            reason,
            node: Some(new_id),
            from: None,
        };
        let kind = replaced(&before.kind, &after.kind).map_err(at)?;
        result.set(old_id, kind).map_err(|_| at(Reason::Kind))?;
    }
    Ok(result)
}

/// The way in `to` that leads to the graph at `path` in `from`, of the same shape: nodes are matched as in [`updated`].
pub fn same_way(path: &[NodeId], from: &Graph, to: &Graph) -> Option<Vec<NodeId>> {
    let Some((first, rest)) = path.split_first() else {
        return Some(Vec::new());
    };
    let at = from.nodes().position(|(id, _)| id == *first)?;
    let (id, node) = to.nodes().nth(at)?;
    let (mut way, from, to, rest) = match (&from.node(*first).ok()?.kind, &node.kind) {
        (NodeKind::ChildGraph(from), NodeKind::ChildGraph(to)) => (vec![id], &**from, &**to, rest),
        (NodeKind::Conditional(from), NodeKind::Conditional(to)) => {
            let (number, rest) = rest.split_first()?;
            (
                vec![id, *number],
                from.body(*number)?,
                to.body(*number)?,
                rest,
            )
        }
        _ => return None,
    };
    way.extend(same_way(rest, from, to)?);
    Some(way)
}

/// What a node of an executable graph becomes when it is given new parameters.
///
/// # Errors
/// They are of another kind, or differ where they must not.
pub fn replaced(before: &NodeKind, after: &NodeKind) -> Result<NodeKind, Reason> {
    let possible = match (before, after) {
        (NodeKind::Kernel(a), NodeKind::Kernel(b)) => kernel(a, b),
        (NodeKind::Memcpy(a), NodeKind::Memcpy(b)) => copy(a, b),
        (NodeKind::Memset(a), NodeKind::Memset(b)) => memset(a, b),
        (NodeKind::ChildGraph(a), NodeKind::ChildGraph(b)) => {
            let child = updated(a, b).map_err(|error| error.reason)?;
            return Ok(NodeKind::ChildGraph(Box::new(child)));
        }
        (NodeKind::Conditional(a), NodeKind::Conditional(b)) => return conditional(a, b),
        (NodeKind::MemAlloc(_) | NodeKind::MemFree(_), _) if before.same_kind(after) => {
            return if before == after {
                Ok(after.clone())
            } else {
                Err(Reason::NotSupported)
            };
        }
        _ if before.same_kind(after) => true,
        _ => return Err(Reason::Kind),
    };
    if possible {
        Ok(after.clone())
    } else {
        Err(Reason::Parameters)
    }
}

/// Other parameters for one kernel of an executable graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelChange<'a> {
    /// The way to its graph, as of [`Graph::inner`].
    pub path: std::borrow::Cow<'a, [NodeId]>,
    /// The node.
    pub node: NodeId,
    /// What it becomes; its attributes and its context stay.
    pub kernel: std::borrow::Cow<'a, KernelNode>,
}

impl KernelChange<'_> {
    /// Makes it in `graph`, where it must name a kernel with the same attributes and context.
    ///
    /// # Errors
    /// It does not; the graph is unchanged.
    pub fn apply(&self, graph: &mut Graph) -> Result<(), GraphError> {
        match graph.inner_mut(&self.path)?.kind_mut(self.node)? {
            NodeKind::Kernel(before) if before.is_alike(&self.kernel) => {
                before.become_alike(&self.kernel);
                Ok(())
            }
            other => Err(GraphError::WrongKind {
                node: self.node,
                found: other.name(),
                expected: "a kernel with these attributes",
            }),
        }
    }
}

/// A node with the way to its graph.
pub type Found = (Vec<NodeId>, NodeId);

/// Gives the node `id`, whose graph is at `way`, the parameters of `after`, as [`replaced`] does. Returns the kernels that differ
/// from before, each with its way from where `way` begins; none if anything else differs.
///
/// # Errors
/// As [`replaced`]; the node is unchanged.
pub fn assign(
    way: &[NodeId],
    id: NodeId,
    node: &mut NodeKind,
    after: &NodeKind,
) -> Result<Option<Vec<Found>>, Reason> {
    match (&mut *node, after) {
        (NodeKind::ChildGraph(child), NodeKind::ChildGraph(after)) => {
            assign_inside(way, id, child, after)
        }
        (NodeKind::Kernel(kernel), NodeKind::Kernel(after)) if kernel.is_alike(after) => {
            let differs = kernel != after;
            kernel.become_alike(after);
            Ok(Some(
                differs.then(|| (way.to_vec(), id)).into_iter().collect(),
            ))
        }
        _ => {
            let after = replaced(node, after)?;
            let same = *node == after;
            *node = after;
            Ok(same.then(Vec::new))
        }
    }
}

/// As [`assign`], for the graph `child` that is in the node `id`.
///
/// Programs that change parameters do so before every launch, mostly those of kernels alone: these are copied into place, and
/// nothing else is.
///
/// # Errors
/// As [`replaced`]; the graph is unchanged.
pub fn assign_inside(
    way: &[NodeId],
    id: NodeId,
    child: &mut Graph,
    after: &Graph,
) -> Result<Option<Vec<Found>>, Reason> {
    let mut path = [way, &[id]].concat();
    let mut found = Vec::new();
    if !differ_in_kernels(child, after, &mut path, &mut found) {
        // Nodes may have other names in `after`.
        let after = updated(child, after).map_err(|error| error.reason)?;
        found.clear();
        let alone = differ_in_kernels(child, &after, &mut path, &mut found);
        *child = after;
        return Ok(alone.then_some(found));
    }
    for (path, at) in &found {
        let inside = path.get(way.len() + 1..).unwrap_or_default();
        let kernel = child.inner_mut(inside).and_then(|it| it.kind_mut(*at));
        let new = after.inner(inside).and_then(|it| it.node(*at));
        if let (Ok(NodeKind::Kernel(kernel)), Ok(new)) = (kernel, new)
            && let NodeKind::Kernel(new) = &new.kind
        {
            kernel.become_alike(new);
        }
    }
    Ok(Some(found))
}

/// Whether two graphs with the same nodes and edges, under the same names, differ in parameters of kernels alone. If so,
/// `found` gets these kernels; `path` is the way to the graphs.
fn differ_in_kernels(
    before: &Graph,
    after: &Graph,
    path: &mut Vec<NodeId>,
    found: &mut Vec<Found>,
) -> bool {
    let mut same = |id, before: &NodeKind, after: &NodeKind| match (before, after) {
        (NodeKind::Kernel(old), NodeKind::Kernel(new)) if old.is_alike(new) => {
            if old != new {
                found.push((path.clone(), id));
            }
            true
        }
        (NodeKind::ChildGraph(old), NodeKind::ChildGraph(new)) => {
            path.push(id);
            let same = differ_in_kernels(old, new, path, found);
            path.pop();
            same
        }
        (old, new) => old == new,
    };
    before.len() == after.len()
        && before
            .nodes()
            .zip(after.nodes())
            .all(|((a, old), (b, new))| {
                (a, &old.dependencies) == (b, &new.dependencies) && same(a, &old.kind, &new.kind)
            })
}

/// Parameters of a conditional node must stay. What is in its bodies may change as elsewhere; the condition is that of the
/// other graph, whose kernels set it.
fn conditional(before: &Conditional, after: &Conditional) -> Result<NodeKind, Reason> {
    if !before.is_alike(after) {
        return Err(Reason::Parameters);
    }
    let bodies = before.bodies.iter().zip(&after.bodies);
    let bodies = bodies.map(|(a, b)| updated(a, b).map_err(|error| error.reason));
    Ok(NodeKind::Conditional(Box::new(Conditional {
        bodies: bodies.collect::<Result<_, _>>()?,
        ..after.clone()
    })))
}

/// A kernel node may get another function of its context.
fn kernel(before: &KernelNode, after: &KernelNode) -> bool {
    before.context == after.context
}

/// The kinds of memory and their contexts must stay.
fn copy(before: &Copy, after: &Copy) -> bool {
    let same =
        |a: &crate::CopyEnd, b: &crate::CopyEnd| (a.place, a.context) == (b.place, b.context);
    same(&before.src, &after.src) && same(&before.dst, &after.dst)
}

/// Only one row may become another one.
fn memset(before: &MemsetNode, after: &MemsetNode) -> bool {
    before == after || before.height == 1 && after.height == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CopyEnd, EdgeData, Place};
    use fermata_abi::op::{ContextId, FunctionId};

    const PLAIN: EdgeData = EdgeData {
        from_port: 0,
        to_port: 0,
        kind: 0,
    };

    fn memset_node(value: u32, height: u64) -> NodeKind {
        let dst = 0x1000;
        NodeKind::Memset(MemsetNode {
            dst,
            pitch: 64,
            value,
            element_size: 4,
            width: 4,
            height,
        })
    }

    fn chain(kinds: Vec<NodeKind>, skip: usize) -> Graph {
        let mut graph = Graph::new();
        for _ in 0..skip {
            let unused = graph.add(NodeKind::Empty, &[]).unwrap();
            graph.remove(unused).unwrap();
        }
        let mut last = Vec::new();
        for kind in kinds {
            last = vec![(graph.add(kind, &last).unwrap(), PLAIN)];
        }
        graph
    }

    #[test]
    fn parameters_change_and_node_ids_stay() {
        let old = chain(vec![NodeKind::Empty, memset_node(1, 1)], 0);
        let new = chain(vec![NodeKind::Empty, memset_node(2, 1)], 3);
        let result = updated(&old, &new).unwrap();
        let ids = |graph: &Graph| graph.nodes().map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!(ids(&result), ids(&old));
        assert_eq!(result.nodes().last().unwrap().1.kind, memset_node(2, 1));
    }

    #[test]
    fn a_way_to_a_graph_inside_is_the_same_by_position() {
        let child = |skip| NodeKind::ChildGraph(Box::new(chain(vec![NodeKind::Empty], skip)));
        let from = chain(vec![NodeKind::Empty, child(0)], 3);
        let to = chain(vec![NodeKind::Empty, child(1)], 0);
        let way = |path: &[u64]| {
            let path: Vec<NodeId> = path.iter().copied().map(NodeId).collect();
            same_way(&path, &from, &to)
        };
        assert_eq!(way(&[]), Some(vec![]));
        assert_eq!(way(&[5]), Some(vec![NodeId(2)]));
        // A node that is no graph, and none.
        assert_eq!((way(&[4]), way(&[9])), (None, None));
    }

    #[test]
    fn changes_of_topology_kind_and_shape_are_told_apart() {
        let old = chain(vec![NodeKind::Empty, memset_node(1, 1)], 0);
        let reason = |new: &Graph| updated(&old, new).unwrap_err().reason;
        assert_eq!(reason(&chain(vec![NodeKind::Empty], 0)), Reason::Topology);
        assert_eq!(
            reason(&chain(vec![NodeKind::Empty, NodeKind::Empty], 0)),
            Reason::Kind
        );
        assert_eq!(
            reason(&chain(vec![NodeKind::Empty, memset_node(1, 2)], 0)),
            Reason::Parameters
        );
        let mut apart = Graph::new();
        apart.add(NodeKind::Empty, &[]).unwrap();
        apart.add(memset_node(1, 1), &[]).unwrap();
        assert_eq!(reason(&apart), Reason::Topology);
    }

    #[test]
    fn a_copy_keeps_its_kinds_of_memory() {
        let end = |place| CopyEnd::linear(place, 0x1000);
        let node = |src, dst| NodeKind::Memcpy(Copy::linear(end(dst), end(src), 8));
        let before = node(Place::Host, Place::Device);
        assert!(replaced(&before, &node(Place::Host, Place::Device)).is_ok());
        assert_eq!(
            replaced(&before, &node(Place::Device, Place::Device)),
            Err(Reason::Parameters)
        );
    }

    fn launch(params: u8) -> NodeKind {
        NodeKind::Kernel(KernelNode {
            function: FunctionId::from_raw(1),
            context: ContextId::from_raw(0),
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
            params: vec![params],
            attributes: Vec::new(),
        })
    }

    /// A kernel, a fill, and a graph with two kernels, of which the second lies in a graph of its own.
    fn nested(params: [u8; 3], fill: u32) -> NodeKind {
        let of = |kinds: Vec<NodeKind>| {
            let mut graph = Graph::new();
            for kind in kinds {
                graph.add(kind, &[]).expect("added");
            }
            NodeKind::ChildGraph(Box::new(graph))
        };
        let fill = NodeKind::Memset(MemsetNode {
            dst: 1,
            pitch: 0,
            value: fill,
            element_size: 1,
            width: 1,
            height: 1,
        });
        let [first, second, third] = params.map(launch);
        of(vec![first, fill, of(vec![second, of(vec![third])])])
    }

    /// What [`assign`] finds and makes of `before`, at a way that is not empty.
    fn assigned(
        before: &NodeKind,
        after: &NodeKind,
    ) -> (Result<Option<Vec<Found>>, Reason>, NodeKind) {
        let mut node = before.clone();
        let found = assign(&[NodeId(5)], NodeId(7), &mut node, after);
        (found, node)
    }

    #[test]
    fn kernels_that_change_are_found_at_any_depth() {
        let before = nested([1, 2, 3], 0);
        let at = |path: &[u64], node| (path.iter().copied().map(NodeId).collect(), NodeId(node));
        let kernels = |it: &[Found]| Ok(Some(it.to_vec()));
        let found = |after: &NodeKind| assigned(&before, after).0;
        assert_eq!(found(&before), kernels(&[]));
        let both = [at(&[5, 7], 1), at(&[5, 7, 3, 2], 1)];
        assert_eq!(found(&nested([9, 2, 8], 0)), kernels(&both));
        assert_eq!(found(&nested([9, 2, 3], 1)), Ok(None));
        assert_eq!(found(&launch(1)), Err(Reason::Kind));
        assert_eq!(assigned(&launch(1), &launch(4)).0, kernels(&[at(&[5], 7)]));
        assert_eq!(assigned(&launch(1), &launch(1)).0, kernels(&[]));
    }

    #[test]
    fn what_a_node_becomes_is_what_replaces_it() {
        let other_context = |mut node: NodeKind| {
            if let NodeKind::Kernel(kernel) = &mut node {
                kernel.context = ContextId::from_raw(4);
            }
            node
        };
        for (before, after) in [
            (nested([1, 2, 3], 0), nested([9, 2, 8], 0)),
            (nested([1, 2, 3], 0), nested([9, 2, 8], 6)),
            (nested([1, 2, 3], 0), launch(1)),
            (launch(1), launch(2)),
            (launch(1), other_context(launch(2))),
            (memset_node(1, 1), memset_node(2, 1)),
            (memset_node(1, 1), memset_node(1, 2)),
        ] {
            let (found, node) = assigned(&before, &after);
            match replaced(&before, &after) {
                Ok(expected) => assert_eq!((found.is_ok(), node), (true, expected)),
                Err(reason) => assert_eq!((found, node), (Err(reason), before)),
            }
        }
    }

    #[test]
    fn a_graph_inside_keeps_its_names_when_it_is_assigned_one_with_others() {
        let child =
            |params, skip| NodeKind::ChildGraph(Box::new(chain(vec![launch(params)], skip)));
        let mut node = child(1, 2);
        let found = assign(&[], NodeId(7), &mut node, &child(5, 0));
        assert_eq!(found, Ok(Some(vec![(vec![NodeId(7)], NodeId(3))])));
        assert_eq!(node, child(5, 2));
    }

    #[test]
    fn a_kernel_is_changed_where_it_is_named_and_nothing_else() {
        let NodeKind::ChildGraph(mut graph) = nested([1, 2, 3], 0) else {
            panic!("a graph")
        };
        let change = |path: &[u64], node, params| {
            let NodeKind::Kernel(kernel) = launch(params) else {
                panic!("a kernel")
            };
            KernelChange {
                path: path.iter().copied().map(NodeId).collect(),
                node: NodeId(node),
                kernel: std::borrow::Cow::Owned(kernel),
            }
        };
        change(&[3, 2], 1, 8).apply(&mut graph).expect("changed");
        assert_eq!(NodeKind::ChildGraph(graph.clone()), nested([1, 2, 8], 0));
        let mut special = change(&[], 1, 5);
        special.kernel.to_mut().context = ContextId::from_raw(4);
        for wrong in [
            change(&[], 2, 5),
            change(&[2], 1, 5),
            change(&[], 9, 5),
            special,
        ] {
            wrong.apply(&mut graph).expect_err("refused");
        }
        assert_eq!(NodeKind::ChildGraph(graph), nested([1, 2, 8], 0));
    }
}
