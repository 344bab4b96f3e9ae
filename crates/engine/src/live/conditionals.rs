//! Gives the driver's graphs their conditional nodes.
//!
//! A graph names its conditions by handles that the program knows. Each graph that is built in the driver gets new ones, and
//! parameters of its kernels that are handles are translated ([`fermata_graph::condition::translated`]).

use fermata_abi::op::ContextId;
use fermata_abi::sys::driver as cu;
use fermata_device::{ContextHandle, DriverError, GraphHandle, NodeHandle};
use fermata_graph::condition::Translations;
use fermata_graph::{Conditional, Graph};

use super::graphs::refuse;
use crate::Live;

impl Live {
    /// Makes a handle in `built` for each condition of `graph`, also of its bodies: kernels anywhere in it may set them.
    pub(super) fn conditions_of(
        &self,
        built: GraphHandle,
        graph: &Graph,
    ) -> Result<Translations, DriverError> {
        let mut all = Translations::new();
        let mut made = Ok(());
        graph.conditionals(&mut |node| {
            if made.is_ok() {
                let handle = self
                    .context_of_node(node.context)
                    .and_then(|it| self.driver.create_condition(built, it, node.default));
                made = handle.map(|handle| {
                    all.insert(node.condition, handle);
                });
            }
        });
        made.map(|()| all)
    }

    /// Adds a conditional node; its bodies are empty.
    pub(super) fn add_conditional(
        &self,
        graph: GraphHandle,
        after: &[NodeHandle],
        node: &Conditional,
        conditions: &Translations,
    ) -> Result<(NodeHandle, Vec<GraphHandle>), DriverError> {
        let known = conditions.get(&node.condition);
        let condition = *known.ok_or_else(|| {
            let why = "a child graph has a conditional node";
            refuse(cu::CUDA_ERROR_NOT_SUPPORTED, why)
        })?;
        let kind = (condition, node.kind.cuda());
        let bodies = node.bodies.len() as u32;
        let context = self.context_of_node(node.context)?;
        self.driver
            .add_conditional(graph, after, kind, bodies, context)
    }

    /// The context that a node names.
    pub(super) fn context_of_node(&self, context: ContextId) -> Result<ContextHandle, DriverError> {
        let found = self.contexts.get(&context).map(|found| found.handle);
        found.ok_or_else(|| {
            refuse(
                cu::CUDA_ERROR_INVALID_CONTEXT,
                format!("there is no context {context:#x}"),
            )
        })
    }
}
