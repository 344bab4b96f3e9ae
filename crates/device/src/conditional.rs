//! Conditional nodes in graphs of the driver, and the handles of their conditions.

use fermata_abi::sys::driver as cu;

use crate::driver::Result;
use crate::{ContextHandle, Driver, DriverError, GraphHandle, NodeHandle};

impl Driver {
    /// A handle of a condition for a conditional node that `graph`, or a body in it, will have. At each launch the condition
    /// is given the value `default`, if there is one. Kernels of `context` set it.
    ///
    /// # Errors
    /// What the driver says; one before CUDA 12.3 has no conditional nodes.
    pub fn create_condition(
        &self,
        graph: GraphHandle,
        context: ContextHandle,
        default: Option<u32>,
    ) -> Result<u64> {
        let mut handle = 0;
        let flags = default.map_or(0, |_| cu::CU_GRAPH_COND_ASSIGN_DEFAULT);
        // SAFETY: the pointer refers to a live local.
        unsafe {
            self.f.cuGraphConditionalHandleCreate(
                &mut handle,
                graph.raw(),
                context.raw(),
                default.unwrap_or_default(),
                flags,
            )?;
        }
        Ok(handle)
    }

    /// Adds a conditional node of a type (`CU_GRAPH_COND_TYPE_*`) that depends on `after`, and returns its bodies, which are
    /// empty graphs of the node.
    ///
    /// # Errors
    /// What the driver says.
    pub fn add_conditional(
        &self,
        graph: GraphHandle,
        after: &[NodeHandle],
        (condition, kind): (u64, cu::CUgraphConditionalNodeType),
        bodies: u32,
        context: ContextHandle,
    ) -> Result<(NodeHandle, Vec<GraphHandle>)> {
        let after: Vec<cu::CUgraphNode> = after.iter().map(|node| node.raw()).collect();
        let mut params = cu::CUgraphNodeParams {
            type_: cu::CU_GRAPH_NODE_TYPE_CONDITIONAL,
            ..Default::default()
        };
        params.__bindgen_anon_1.conditional = cu::CUDA_CONDITIONAL_NODE_PARAMS {
            handle: condition,
            type_: kind,
            size: bodies,
            phGraph_out: std::ptr::null_mut(),
            ctx: context.raw(),
        };
        let mut node = std::ptr::null_mut();
        // SAFETY: the dependencies are as many live handles; the structure, zero but for what its type has, is a live local.
        let first = unsafe {
            self.f.cuGraphAddNode_v2(
                &mut node,
                graph.raw(),
                after.as_ptr(),
                std::ptr::null(),
                after.len(),
                &mut params,
            )?;
            params.__bindgen_anon_1.conditional.phGraph_out
        };
        if first.is_null() {
            return Err(DriverError {
                call: "cuGraphAddNode_v2",
                code: cu::CUDA_ERROR_UNKNOWN,
                name: "the driver has given a conditional node no bodies".into(),
            });
        }
        // SAFETY: the driver's array has `size` graphs and stays as long as the node.
        let bodies = unsafe { std::slice::from_raw_parts(first, bodies as usize) };
        let bodies = bodies.iter().map(|body| GraphHandle::from_raw(*body));
        Ok((NodeHandle::from_raw(node), bodies.collect()))
    }
}
