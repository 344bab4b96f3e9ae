//! Updating an executable graph from another graph: which changes are possible.
//!
//! Nodes are matched in the order they were made. Topology and kinds must be the same; of the
//! parameters, those may change that CUDA documents as changeable.

use std::collections::BTreeMap;

use fermata_abi::sys::driver as cu;
use serde::{Deserialize, Serialize};

use crate::{Copy, Graph, GraphError, KernelNode, MemsetNode, NodeId, NodeKind};

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
    let (NodeKind::ChildGraph(from), NodeKind::ChildGraph(to)) =
        (&from.node(*first).ok()?.kind, &node.kind)
    else {
        return None;
    };
    let mut way = vec![id];
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
        let graph = graph.inner_mut(&self.path)?;
        match &graph.node(self.node)?.kind {
            NodeKind::Kernel(before) if alike(before, &self.kernel) => {
                let kernel = self.kernel.clone().into_owned();
                graph.set(self.node, NodeKind::Kernel(kernel))
            }
            other => Err(GraphError::WrongKind {
                node: self.node,
                found: other.name(),
                expected: "a kernel with these attributes",
            }),
        }
    }
}

fn alike(before: &KernelNode, after: &KernelNode) -> bool {
    (before.context, &before.attributes) == (after.context, &after.attributes)
}

/// The kernels that differ between two states of a node, each with its way from there; none if anything else differs.
pub fn changed_kernels(
    id: NodeId,
    before: &NodeKind,
    after: &NodeKind,
) -> Option<Vec<(Vec<NodeId>, NodeId)>> {
    let mut found = Vec::new();
    collect(id, (before, after), &mut Vec::new(), &mut found).then_some(found)
}

fn collect(
    id: NodeId,
    (before, after): (&NodeKind, &NodeKind),
    path: &mut Vec<NodeId>,
    found: &mut Vec<(Vec<NodeId>, NodeId)>,
) -> bool {
    match (before, after) {
        (NodeKind::Kernel(old), NodeKind::Kernel(new)) if alike(old, new) => {
            if old != new {
                found.push((path.clone(), id));
            }
            true
        }
        (NodeKind::ChildGraph(old), NodeKind::ChildGraph(new)) => {
            path.push(id);
            let same = old.len() == new.len()
                && old.nodes().zip(new.nodes()).all(|((a, old), (b, new))| {
                    (a, &old.dependencies) == (b, &new.dependencies)
                        && collect(a, (&old.kind, &new.kind), path, found)
                });
            path.pop();
            same
        }
        (old, new) => old == new,
    }
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

    #[test]
    fn kernels_that_change_are_found_at_any_depth() {
        let top = NodeId(7);
        let before = nested([1, 2, 3], 0);
        let changed = |after: &NodeKind| changed_kernels(top, &before, after);
        assert_eq!(changed(&before), Some(vec![]));
        let (first, third) = (
            (vec![top], NodeId(1)),
            (vec![top, NodeId(3), NodeId(2)], NodeId(1)),
        );
        assert_eq!(changed(&nested([9, 2, 8], 0)), Some(vec![first, third]));
        assert_eq!(changed(&nested([1, 2, 3], 1)), None);
        assert_eq!(changed(&launch(1)), None);
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
