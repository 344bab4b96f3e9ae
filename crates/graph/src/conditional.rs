//! Conditional nodes: nodes that run one of their graphs, or one again and again, by a value that kernels set.
//!
//! ```text
//!   handle ─► value ◄── its default at each launch, if there is one; `cudaGraphSetConditional` in a kernel
//!               │
//!               └─► IF: body 0, or body 1 if it is zero   WHILE: body 0 as long as it is not zero   SWITCH: the body of that number
//! ```
//! A way to a graph inside ([`Graph::inner`]) names a conditional node and then, as if it were a node, the number of the body.

use fermata_abi::op::ContextId;

use crate::condition::{Condition, ConditionalKind};
use crate::error::GraphError;
use crate::model::{Conditional, Graph, NodeId, NodeKind};
use crate::node::KernelNode;

impl Conditional {
    /// A node with `size` empty bodies, if one of its kind may have so many.
    pub fn empty(
        condition: Condition,
        default: Option<u32>,
        context: ContextId,
        (kind, size): (ConditionalKind, u32),
    ) -> Option<NodeKind> {
        let size = usize::try_from(size)
            .ok()
            .filter(|size| kind.takes(*size))?;
        Some(NodeKind::Conditional(Box::new(Self {
            condition,
            default,
            context,
            kind,
            bodies: vec![Graph::new(); size],
        })))
    }

    /// The body that a way names.
    pub(crate) fn body(&self, number: NodeId) -> Option<&Graph> {
        self.bodies.get(usize::try_from(number.0).ok()?)
    }

    /// [`Conditional::body`], to be changed.
    pub(crate) fn body_mut(&mut self, number: NodeId) -> Option<&mut Graph> {
        self.bodies.get_mut(usize::try_from(number.0).ok()?)
    }

    /// Whether it is the same node, whatever its condition and what is in its bodies.
    pub(crate) fn is_alike(&self, other: &Self) -> bool {
        (self.kind, self.context, self.bodies.len())
            == (other.kind, other.context, other.bodies.len())
    }
}

impl NodeKind {
    /// The graphs in it: that of a child-graph node, or the bodies of a conditional node.
    pub fn graphs(&self) -> &[Graph] {
        match self {
            Self::ChildGraph(child) => std::slice::from_ref(child),
            Self::Conditional(node) => &node.bodies,
            _ => &[],
        }
    }

    /// The way from the graph of this node, which is `node` there, to the graph `index` of [`NodeKind::graphs`].
    pub fn way_inside(&self, node: NodeId, index: usize) -> Vec<NodeId> {
        match self {
            Self::Conditional(_) => vec![node, NodeId(index as u64)],
            _ => vec![node],
        }
    }
}

impl Graph {
    /// Visits the conditional nodes in it and in all graphs within it, outer ones first.
    pub fn conditionals<'g>(&'g self, visit: &mut dyn FnMut(&'g Conditional)) {
        for (_, node) in self.nodes() {
            if let NodeKind::Conditional(found) = &node.kind {
                visit(found);
            }
            for inside in node.kind.graphs() {
                inside.conditionals(visit);
            }
        }
    }

    /// Adds the kernels in it and in all graphs within it to `found`, each with the way to its graph; `path` is the way to this one.
    pub fn kernel_places<'g>(
        &'g self,
        path: &mut Vec<NodeId>,
        found: &mut Vec<(Vec<NodeId>, NodeId, &'g KernelNode)>,
    ) {
        for (id, node) in self.nodes() {
            if let NodeKind::Kernel(kernel) = &node.kind {
                found.push((path.clone(), id, kernel));
            }
            for (index, inside) in node.kind.graphs().iter().enumerate() {
                let here = path.len();
                path.extend(node.kind.way_inside(id, index));
                inside.kernel_places(path, found);
                path.truncate(here);
            }
        }
    }

    /// Whether a conditional node in it or in a graph within it has this condition.
    pub fn has_condition(&self, condition: Condition) -> bool {
        let mut found = false;
        self.conditionals(&mut |node| found |= node.condition == condition);
        found
    }

    /// Whether it or a graph within it has conditional nodes: such graphs have one instance and no clones.
    pub fn has_conditionals(&self) -> bool {
        let mut found = false;
        self.conditionals(&mut |_| found = true);
        found
    }

    /// Checks that bodies of conditional nodes have only nodes that may be there, and each condition has one node.
    ///
    /// # Errors
    /// They have others; the node is of the graph named last on the way there.
    pub fn check_bodies(&self) -> Result<(), GraphError> {
        let mut conditions = Vec::new();
        self.conditionals(&mut |found| conditions.push(found.condition));
        conditions.sort_unstable();
        if conditions.windows(2).any(|it| it[0] == it[1]) {
            return Err(GraphError::SharedCondition);
        }
        self.check_inside(false)
    }

    fn check_inside(&self, is_body: bool) -> Result<(), GraphError> {
        for (id, node) in self.nodes() {
            let found = node.kind.name();
            match &node.kind {
                NodeKind::Conditional(conditional) => {
                    for body in &conditional.bodies {
                        body.check_inside(true)?;
                    }
                }
                // A child graph has no conditional nodes.
                NodeKind::ChildGraph(child) if is_body => child.check_inside(true)?,
                NodeKind::ChildGraph(_)
                | NodeKind::Kernel(_)
                | NodeKind::Memcpy(_)
                | NodeKind::Memset(_)
                | NodeKind::Empty => {}
                _ if is_body => return Err(GraphError::NotInBody { node: id, found }),
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EdgeData, HostCall, update};

    fn conditional(kind: ConditionalKind, number: u64, bodies: Vec<Graph>) -> NodeKind {
        NodeKind::Conditional(Box::new(Conditional {
            condition: Condition::numbered(number),
            default: Some(1),
            context: ContextId::from_raw(16),
            kind,
            bodies,
        }))
    }

    fn of(kinds: Vec<NodeKind>) -> Graph {
        let mut graph = Graph::new();
        let mut last = Vec::new();
        for kind in kinds {
            last = vec![(graph.add(kind, &last).unwrap(), EdgeData::default())];
        }
        graph
    }

    fn fill(value: u32) -> NodeKind {
        NodeKind::Memset(crate::MemsetNode {
            dst: 64,
            pitch: 0,
            value,
            element_size: 4,
            width: 1,
            height: 1,
        })
    }

    #[test]
    fn all_bodies_are_walked_and_found_by_their_ways() {
        let inner = conditional(ConditionalKind::While, 2, vec![of(vec![fill(3)])]);
        let bodies = vec![of(vec![fill(1)]), of(vec![fill(2), inner])];
        let graph = of(vec![conditional(ConditionalKind::If, 1, bodies)]);
        let mut found = Vec::new();
        graph.conditionals(&mut |it| found.push(it.condition));
        assert_eq!(found, [1, 2].map(Condition::numbered));
        assert!(graph.has_conditionals() && !of(vec![fill(1)]).has_conditionals());
        let way = [1, 1, 2, 0].map(NodeId);
        let innermost = graph.inner(&way).unwrap();
        assert_eq!(innermost.node(NodeId(1)).unwrap().kind, fill(3));
        assert!(graph.inner(&way[..1]).is_err() && graph.inner(&way[..3]).is_err());
        assert!(graph.inner(&[NodeId(1), NodeId(2)]).is_err());
        let text = crate::dot::print(&graph, true);
        assert!(
            text.contains("\"graph_node_1_1_node_2_0_node_1\""),
            "{text}"
        );
        assert!(text.contains("while"));
    }

    #[test]
    fn bodies_have_no_host_functions_and_conditions_have_one_node() {
        let host = || {
            NodeKind::Host(HostCall {
                function: 1,
                user_data: 2,
            })
        };
        let child = |kind| NodeKind::ChildGraph(Box::new(of(vec![kind])));
        let with = |kinds| {
            of(vec![
                host(),
                conditional(ConditionalKind::If, 1, vec![of(kinds)]),
            ])
        };
        with(vec![fill(1), child(fill(2))]).check_bodies().unwrap();
        with(vec![host()]).check_bodies().unwrap_err();
        with(vec![child(host())]).check_bodies().unwrap_err();
        let twice = conditional(ConditionalKind::If, 1, vec![Graph::new()]);
        with(vec![twice]).check_bodies().unwrap_err();
    }

    #[test]
    fn an_update_takes_conditions_and_bodies_but_no_other_shape() {
        let graph = |number, value| {
            let body = of(vec![fill(value)]);
            of(vec![conditional(
                ConditionalKind::While,
                number,
                vec![body],
            )])
        };
        let updated = update::updated(&graph(1, 5), &graph(2, 6)).unwrap();
        assert_eq!(updated, graph(2, 6));
        let reason = |after: &Graph| update::updated(&graph(1, 5), after).unwrap_err().reason;
        let other = of(vec![conditional(
            ConditionalKind::If,
            1,
            vec![of(vec![fill(5)])],
        )]);
        assert_eq!(reason(&other), update::Reason::Parameters);
        let longer = of(vec![fill(5), fill(6)]);
        let longer = of(vec![conditional(ConditionalKind::While, 1, vec![longer])]);
        assert_eq!(reason(&longer), update::Reason::Topology);
        let way = [1, 0].map(NodeId);
        assert_eq!(
            update::same_way(&way, &graph(1, 5), &graph(2, 6)),
            Some(way.to_vec())
        );
    }

    #[test]
    fn a_stored_node_comes_back() {
        let graph = of(vec![conditional(
            ConditionalKind::Switch,
            7,
            vec![of(vec![fill(1)]), Graph::new()],
        )]);
        let bytes = postcard::to_stdvec(&graph).unwrap();
        assert_eq!(postcard::from_bytes::<Graph>(&bytes).unwrap(), graph);
    }
}
