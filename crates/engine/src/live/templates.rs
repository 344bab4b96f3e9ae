//! Keeps the driver's graphs from which executable graphs were made, because single nodes are addressed by their nodes.
//!
//! XLA gives some kernels of an executable graph other parameters before every launch. The driver takes them for one node
//! (`cuGraphExecKernelNodeSetParams`), addressed by the node of the original graph, or as a whole graph
//! (`cuGraphExecUpdate`), which has to be built for that: 36 us for ten nodes on an H200.

use std::collections::HashMap;

use fermata_device::{GraphHandle, NodeHandle};
use fermata_graph::condition::Translations;
use fermata_graph::{Graph, Node, NodeId};

/// Larger graphs are not kept: they would take as much memory again, and are hardly ever changed.
const MOST_NODES: usize = 1024;

/// The driver's nodes of a graph.
pub(crate) type Nodes = HashMap<NodeId, MadeNode>;

/// A node in the driver.
pub(crate) struct MadeNode {
    pub handle: NodeHandle,
    /// The nodes of its graph, if it is a child graph and they were asked for; the bodies of a conditional node by their
    /// numbers, each with its nodes.
    pub inside: Nodes,
}

/// The graph that an executable graph was made from.
pub(crate) struct Template {
    pub graph: GraphHandle,
    pub nodes: Nodes,
    /// The driver's handles of its conditions.
    pub conditions: Translations,
    /// Whether the executable graph has the program's own kernels.
    pub is_plain: bool,
}

/// Whether a graph is small enough to be kept.
pub(crate) fn is_kept(graph: &Graph) -> bool {
    count(graph) <= MOST_NODES
}

fn count(graph: &Graph) -> usize {
    let inside = |(_, node): (NodeId, &Node)| node.kind.graphs().iter().map(count).sum::<usize>();
    graph.len() + graph.nodes().map(inside).sum::<usize>()
}

/// The driver's node for a node, which is found by the path to its graph.
pub(crate) fn node_at(nodes: &Nodes, path: &[NodeId], node: NodeId) -> Option<NodeHandle> {
    match path.split_first() {
        None => nodes.get(&node).map(|it| it.handle),
        Some((first, rest)) => node_at(&nodes.get(first)?.inside, rest, node),
    }
}
