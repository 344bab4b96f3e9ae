//! Conditions of graphs: the handles that the program has made, and the conditional nodes that they decide.
//!
//! ```text
//!   handle made for a graph ─► a node of it, or of a body in it, takes the handle ─► the graph can be instantiated
//!                                        └► its bodies: graphs of the node, which the program fills
//! ```
//! A handle is a number of this library, also as a kernel's parameter. The worker translates it for the driver.

use std::collections::BTreeMap;

use fermata_abi::op::{ContextId, GraphId};
use fermata_abi::sys::driver as sys;
use fermata_graph::{Condition, Conditional, ConditionalKind, Graph, NodeKind};

use crate::handles;
use crate::result::Result;

/// All conditions.
#[derive(Debug, Default)]
pub struct Conditions(BTreeMap<Condition, Made>);

/// What the program has said of a condition.
#[derive(Debug, Clone, Copy)]
struct Made {
    /// The outermost graph that it was made for.
    root: GraphId,
    context: ContextId,
    default: Option<u32>,
}

impl Conditions {
    /// Makes a condition for the graphs of `root`, which kernels of `context` set.
    pub fn add(&mut self, root: GraphId, context: ContextId, default: Option<u32>) -> Condition {
        let condition = Condition::numbered(handles::number());
        let made = Made {
            root,
            context,
            default,
        };
        self.0.insert(condition, made);
        condition
    }

    /// A conditional node with `size` empty bodies for one of the graphs of `root`, which is `graph`. Without `context`, it
    /// has that of its condition.
    pub fn node(
        &self,
        (root, graph): (GraphId, &Graph),
        condition: Condition,
        wanted: (ConditionalKind, u32),
        context: Option<ContextId>,
    ) -> Result<NodeKind> {
        let made = self.0.get(&condition);
        let made = made.ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        let other = made.root != root || context.is_some_and(|it| it != made.context);
        if other || graph.has_condition(condition) {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let node = Conditional::empty(condition, made.default, made.context, wanted);
        node.ok_or(sys::CUDA_ERROR_INVALID_VALUE)
    }

    /// Whether a root was given a condition that no node has, so that it cannot be instantiated. `graph` is what it is.
    pub fn is_unused(&self, root: GraphId, graph: &Graph) -> bool {
        let mut of_it = self.0.iter().filter(|it| it.1.root == root);
        of_it.any(|(condition, _)| !graph.has_condition(*condition))
    }

    /// Forgets those of a root.
    pub fn forget(&mut self, root: GraphId) {
        self.0.retain(|_, made| made.root != root);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_decides_one_node_of_its_own_graph() {
        let (root, other, context) = (
            GraphId::from_raw(16),
            GraphId::from_raw(32),
            ContextId::from_raw(48),
        );
        let mut conditions = Conditions::default();
        let condition = conditions.add(root, context, Some(1));
        let mut graph = Graph::new();
        let node = |conditions: &Conditions, root, graph: &Graph, wanted, context| {
            conditions.node((root, graph), condition, wanted, context)
        };
        let wanted = (ConditionalKind::While, 1);
        assert!(conditions.is_unused(root, &graph));
        for (root, wanted, context) in [
            (other, wanted, None),
            (root, (ConditionalKind::While, 2), None),
            (root, (ConditionalKind::If, 3), None),
            (root, (ConditionalKind::Switch, 0), None),
            (root, (ConditionalKind::Switch, u32::MAX), None),
            (root, wanted, Some(ContextId::from_raw(64))),
        ] {
            node(&conditions, root, &graph, wanted, context).expect_err("refused");
        }
        let made = node(&conditions, root, &graph, wanted, Some(context)).expect("a node");
        graph.add(made, &[]).expect("added");
        assert!(!conditions.is_unused(root, &graph));
        node(&conditions, root, &graph, wanted, None).expect_err("in use");
        conditions.forget(root);
        node(&conditions, root, &Graph::new(), wanted, None).expect_err("unknown");
    }
}
