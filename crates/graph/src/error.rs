//! What can be wrong with a graph.

use crate::model::NodeId;

/// Why an operation on a graph was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// A node id that is not in the graph.
    #[error("graph has no node {}", .0.0)]
    UnknownNode(NodeId),
    /// An edge from a node to itself.
    #[error("node {} cannot depend on itself", .0.0)]
    SelfEdge(NodeId),
    /// The edge is there already.
    #[error("edge from node {} to node {} exists already", .0.0, .1.0)]
    DuplicateEdge(NodeId, NodeId),
    /// The edge to be removed does not exist.
    #[error("there is no edge from node {} to node {}", .0.0, .1.0)]
    MissingEdge(NodeId, NodeId),
    /// The edges form a cycle through this node.
    #[error("graph has a cycle through node {}", .0.0)]
    Cycle(NodeId),
    /// Parameters of one kind given to a node of another.
    #[error("node {} is a {found} node, not a {expected} node", node.0)]
    WrongKind {
        /// The node.
        node: NodeId,
        /// What it is.
        found: &'static str,
        /// What the parameters are for.
        expected: &'static str,
    },
    /// A node in a body of a conditional node that may not be there.
    #[error("node {} is a {found} node, which a body of a conditional node cannot have", node.0)]
    NotInBody {
        /// The node, in its body.
        node: NodeId,
        /// What it is.
        found: &'static str,
    },
    /// Two conditional nodes have the same condition.
    #[error("two conditional nodes have the same handle")]
    SharedCondition,
    /// A memory node where it may not be: its graph was cloned, embedded or has such a node already.
    #[error("graphs with memory nodes cannot be {0}")]
    MemoryNode(&'static str),
}
