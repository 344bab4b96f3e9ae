//! A graph: nodes in the order they were made, each with the nodes it depends on.
//!
//! Node ids are never used twice in a graph, and a clone keeps them: that is how CUDA finds a node of
//! the original in a clone or in an executable graph. Edges may form a cycle until the graph is asked
//! for its order.

use std::collections::{BTreeMap, BTreeSet};

use fermata_abi::op::EventId;

use crate::error::GraphError;
use crate::model::{Edge, EdgeData, Graph, Node, NodeId, NodeKind};
use crate::node::KernelNode;

impl Graph {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether it has no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds a node that depends on `dependencies`.
    ///
    /// # Errors
    /// A dependency is unknown or named twice; the graph is unchanged then.
    pub fn add(
        &mut self,
        kind: NodeKind,
        dependencies: &[(NodeId, EdgeData)],
    ) -> Result<NodeId, GraphError> {
        let id = NodeId(self.next + 1);
        for (index, (from, _)) in dependencies.iter().enumerate() {
            self.node(*from)?;
            if dependencies[..index].iter().any(|(other, _)| other == from) {
                return Err(GraphError::DuplicateEdge(*from, id));
            }
        }
        self.next += 1;
        self.nodes.insert(
            id,
            Node {
                kind,
                dependencies: dependencies.to_vec(),
            },
        );
        Ok(id)
    }

    /// Takes a node and all its edges out.
    ///
    /// # Errors
    /// No such node.
    pub fn remove(&mut self, id: NodeId) -> Result<Node, GraphError> {
        let node = self.nodes.remove(&id).ok_or(GraphError::UnknownNode(id))?;
        for other in self.nodes.values_mut() {
            other.dependencies.retain(|(from, _)| *from != id);
        }
        Ok(node)
    }

    /// The node `id`.
    ///
    /// # Errors
    /// No such node.
    pub fn node(&self, id: NodeId) -> Result<&Node, GraphError> {
        self.nodes.get(&id).ok_or(GraphError::UnknownNode(id))
    }

    /// What the node `id` does, to be changed. Its kind must stay the same; see [`Graph::set`].
    ///
    /// # Errors
    /// No such node.
    pub fn kind_mut(&mut self, id: NodeId) -> Result<&mut NodeKind, GraphError> {
        self.nodes
            .get_mut(&id)
            .map(|node| &mut node.kind)
            .ok_or(GraphError::UnknownNode(id))
    }

    /// Replaces the parameters of a node.
    ///
    /// # Errors
    /// No such node, or it is of another kind.
    pub fn set(&mut self, id: NodeId, kind: NodeKind) -> Result<(), GraphError> {
        let old = self.kind_mut(id)?;
        if !old.same_kind(&kind) {
            return Err(GraphError::WrongKind {
                node: id,
                found: old.name(),
                expected: kind.name(),
            });
        }
        *old = kind;
        Ok(())
    }

    /// Nodes in the order they were made.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = (NodeId, &Node)> {
        self.nodes.iter().map(|(id, node)| (*id, node))
    }

    /// Nodes without dependencies, in the order they were made.
    pub fn roots(&self) -> impl Iterator<Item = NodeId> {
        self.nodes()
            .filter(|(_, node)| node.dependencies.is_empty())
            .map(|(id, _)| id)
    }

    /// All edges, by the node they enter.
    pub fn edges(&self) -> impl Iterator<Item = Edge> {
        self.nodes().flat_map(|(to, node)| {
            node.dependencies.iter().map(move |(from, data)| Edge {
                from: *from,
                to,
                data: *data,
            })
        })
    }

    /// Nodes that depend on `id` directly.
    pub fn dependents(&self, id: NodeId) -> Vec<(NodeId, EdgeData)> {
        self.edges()
            .filter(|edge| edge.from == id)
            .map(|edge| (edge.to, edge.data))
            .collect()
    }

    /// Adds edges, all or none.
    ///
    /// # Errors
    /// A node is unknown, an edge leads from a node to itself or is there already.
    pub fn add_edges(&mut self, edges: &[Edge]) -> Result<(), GraphError> {
        for (index, edge) in edges.iter().enumerate() {
            self.node(edge.from)?;
            let node = self.node(edge.to)?;
            if edge.from == edge.to {
                return Err(GraphError::SelfEdge(edge.from));
            }
            let same = |other: &Edge| (other.from, other.to) == (edge.from, edge.to);
            if node.dependencies.iter().any(|(from, _)| *from == edge.from)
                || edges[..index].iter().any(same)
            {
                return Err(GraphError::DuplicateEdge(edge.from, edge.to));
            }
        }
        for edge in edges {
            if let Some(node) = self.nodes.get_mut(&edge.to) {
                node.dependencies.push((edge.from, edge.data));
            }
        }
        Ok(())
    }

    /// Removes edges, all or none. Their data is compared too.
    ///
    /// # Errors
    /// A node is unknown or an edge does not exist.
    pub fn remove_edges(&mut self, edges: &[Edge]) -> Result<(), GraphError> {
        for edge in edges {
            self.node(edge.from)?;
            if !self
                .node(edge.to)?
                .dependencies
                .contains(&(edge.from, edge.data))
            {
                return Err(GraphError::MissingEdge(edge.from, edge.to));
            }
        }
        for edge in edges {
            if let Some(node) = self.nodes.get_mut(&edge.to) {
                node.dependencies
                    .retain(|dependency| *dependency != (edge.from, edge.data));
            }
        }
        Ok(())
    }

    /// The nodes so that each comes after all it depends on; among those free to go, the oldest first.
    ///
    /// # Errors
    /// The edges form a cycle.
    pub fn order(&self) -> Result<Vec<NodeId>, GraphError> {
        let mut missing: BTreeMap<NodeId, usize> = self
            .nodes()
            .map(|(id, node)| (id, node.dependencies.len()))
            .collect();
        let mut dependents: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
        for edge in self.edges() {
            dependents.entry(edge.from).or_default().push(edge.to);
        }
        let mut ready: BTreeSet<NodeId> = self.roots().collect();
        let mut order = Vec::with_capacity(self.len());
        while let Some(id) = ready.pop_first() {
            missing.remove(&id);
            order.push(id);
            for to in dependents.get(&id).into_iter().flatten() {
                if let Some(count) = missing.get_mut(to) {
                    *count -= 1;
                    if *count == 0 {
                        ready.insert(*to);
                    }
                }
            }
        }
        match missing.keys().next() {
            Some(id) => Err(GraphError::Cycle(*id)),
            None => Ok(order),
        }
    }

    /// Whether every one of `nodes` is one of `tails` or an ancestor of one of them.
    pub fn reaches(&self, tails: &[NodeId], nodes: &[NodeId]) -> bool {
        let mut seen: BTreeSet<NodeId> = BTreeSet::new();
        let mut stack = tails.to_vec();
        while let Some(id) = stack.pop() {
            if seen.insert(id)
                && let Ok(node) = self.node(id)
            {
                stack.extend(node.dependencies.iter().map(|(from, _)| *from));
            }
        }
        nodes.iter().all(|id| seen.contains(id))
    }

    /// Whether it or a graph within it allocates or frees memory.
    pub fn has_memory_nodes(&self) -> bool {
        let within = |kind: &NodeKind| kind.graphs().iter().any(Self::has_memory_nodes);
        let mut kinds = self.nodes.values().map(|node| &node.kind);
        kinds.any(|kind| kind.is_memory() || within(kind))
    }

    /// Visits the nodes that allocate or free memory, in it and in all graphs within it.
    pub fn memory_nodes<'g>(&'g self, visit: &mut dyn FnMut(&'g NodeKind)) {
        for node in self.nodes.values() {
            node.kind.memory_nodes(visit);
        }
    }

    /// Visits the kernel launches in it and in all graphs within it.
    pub fn kernels<'g>(&'g self, visit: &mut dyn FnMut(&'g KernelNode)) {
        for node in self.nodes.values() {
            if let NodeKind::Kernel(kernel) = &node.kind {
                visit(kernel);
            }
            for inside in node.kind.graphs() {
                inside.kernels(visit);
            }
        }
    }

    /// Visits the events that it and all graphs within it record or wait for, each with whether it is recorded.
    pub fn events(&self, visit: &mut dyn FnMut(EventId, bool)) {
        for node in self.nodes.values() {
            match &node.kind {
                NodeKind::EventRecord(event) => visit(*event, true),
                NodeKind::EventWait(event) => visit(*event, false),
                _ => {}
            }
            for inside in node.kind.graphs() {
                inside.events(visit);
            }
        }
    }

    /// The graph inside this one reached through these nodes: child-graph nodes, and conditional nodes, each of which is
    /// followed by the number of a body.
    ///
    /// # Errors
    /// A node of the path is unknown or has no graphs, or a body does not exist.
    pub fn inner(&self, path: &[NodeId]) -> Result<&Graph, GraphError> {
        let Some((first, rest)) = path.split_first() else {
            return Ok(self);
        };
        match &self.node(*first)?.kind {
            NodeKind::ChildGraph(child) => child.inner(rest),
            kind @ NodeKind::Conditional(node) => {
                let (number, rest) = rest.split_first().ok_or(not_a_child(*first, kind))?;
                let body = node.body(*number).ok_or(GraphError::UnknownNode(*number))?;
                body.inner(rest)
            }
            kind => Err(not_a_child(*first, kind)),
        }
    }

    /// [`Graph::inner`], to be changed.
    ///
    /// # Errors
    /// As there.
    pub fn inner_mut(&mut self, path: &[NodeId]) -> Result<&mut Graph, GraphError> {
        let Some((first, rest)) = path.split_first() else {
            return Ok(self);
        };
        match self.kind_mut(*first)? {
            NodeKind::ChildGraph(child) => child.inner_mut(rest),
            NodeKind::Conditional(node) => {
                let number = rest.first().copied().unwrap_or(NodeId(u64::MAX));
                let body = node.body_mut(number);
                let body = body.ok_or(GraphError::UnknownNode(number))?;
                body.inner_mut(rest.get(1..).unwrap_or_default())
            }
            kind => Err(not_a_child(*first, kind)),
        }
    }
}

fn not_a_child(node: NodeId, kind: &NodeKind) -> GraphError {
    GraphError::WrongKind {
        node,
        found: kind.name(),
        expected: "child graph",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLAIN: EdgeData = EdgeData {
        from_port: 0,
        to_port: 0,
        kind: 0,
    };

    fn edge(from: NodeId, to: NodeId) -> Edge {
        Edge {
            from,
            to,
            data: PLAIN,
        }
    }

    #[test]
    fn a_cycle_is_found_when_the_order_is_asked_for() {
        let mut graph = Graph::new();
        let a = graph.add(NodeKind::Empty, &[]).unwrap();
        let b = graph.add(NodeKind::Empty, &[(a, PLAIN)]).unwrap();
        assert_eq!(graph.order(), Ok(vec![a, b]));
        graph.add_edges(&[edge(b, a)]).unwrap();
        assert_eq!(graph.order(), Err(GraphError::Cycle(a)));
    }

    #[test]
    fn edges_are_added_all_or_none() {
        let mut graph = Graph::new();
        let a = graph.add(NodeKind::Empty, &[]).unwrap();
        let b = graph.add(NodeKind::Empty, &[]).unwrap();
        let before = graph.clone();
        let twice = [edge(a, b), edge(a, b)];
        assert_eq!(
            graph.add_edges(&twice),
            Err(GraphError::DuplicateEdge(a, b))
        );
        assert_eq!(
            graph.add_edges(&[edge(a, b), edge(a, a)]),
            Err(GraphError::SelfEdge(a))
        );
        assert_eq!(graph, before);
    }

    #[test]
    fn removing_a_node_removes_its_edges_and_never_reuses_its_id() {
        let mut graph = Graph::new();
        let a = graph.add(NodeKind::Empty, &[]).unwrap();
        let b = graph.add(NodeKind::Empty, &[(a, PLAIN)]).unwrap();
        graph.remove(a).unwrap();
        assert!(graph.node(b).unwrap().dependencies.is_empty());
        assert!(graph.add(NodeKind::Empty, &[]).unwrap() > b);
        assert_eq!(graph.remove(a), Err(GraphError::UnknownNode(a)));
    }

    #[test]
    fn a_node_keeps_its_kind() {
        let mut graph = Graph::new();
        let a = graph.add(NodeKind::Empty, &[]).unwrap();
        assert!(
            graph
                .set(a, NodeKind::EventWait(EventId::from_raw(1)))
                .is_err()
        );
    }

    proptest! {
        #[test]
        fn order_puts_every_node_after_its_dependencies(
            edges in prop::collection::vec((0usize..20, 0usize..20), 0..60)
        ) {
            let mut graph = Graph::new();
            let ids: Vec<_> = (0..20).map(|_| graph.add(NodeKind::Empty, &[]).unwrap()).collect();
            for (a, b) in edges {
                if a < b {
                    let _ = graph.add_edges(&[edge(ids[b], ids[a])]);
                }
            }
            let order = graph.order().unwrap();
            prop_assert_eq!(order.len(), 20);
            let position = |id| order.iter().position(|other| *other == id);
            for edge in graph.edges() {
                prop_assert!(position(edge.from) < position(edge.to));
            }
        }

        #[test]
        fn a_stored_graph_comes_back(count in 1usize..10) {
            let mut graph = Graph::new();
            let mut last = Vec::new();
            for value in 0..count {
                last = vec![(graph.add(NodeKind::EventRecord(EventId::from_raw(value as u64)), &last).unwrap(), PLAIN)];
            }
            let bytes = postcard::to_stdvec(&graph).unwrap();
            prop_assert_eq!(postcard::from_bytes::<Graph>(&bytes).unwrap(), graph);
        }
    }
}
