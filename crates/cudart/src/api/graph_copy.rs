//! Nodes of graphs that copy: boxes, lines, and in and out of device variables.
use core::ffi::c_void;

use fermata_abi::sys::driver::CUDA_MEMCPY3D;
use fermata_abi::sys::runtime::{
    cudaGraph_t, cudaGraphExec_t, cudaGraphNode_t, cudaMemcpy3DParms, cudaMemcpyKind,
};

use crate::api::graph_node::{current, wanted};
use crate::api::memcpy3d::{line, to_driver, to_runtime};
use crate::api::symbol::inside;
use crate::context;
use crate::error::{Result, export, get, put};

/// # Safety
/// `node` is writable and `after` names `count` nodes.
unsafe fn add(
    node: *mut cudaGraphNode_t,
    graph: cudaGraph_t,
    after: *const cudaGraphNode_t,
    count: usize,
    copy: &CUDA_MEMCPY3D,
) -> Result {
    let calls = wanted(node)?;
    let context = current(calls)?;
    // SAFETY: the caller's promise.
    unsafe {
        calls.cuGraphAddMemcpyNode(
            node.cast(),
            graph.cast(),
            after.cast(),
            count,
            copy,
            context,
        )
    }
}

fn set(node: cudaGraphNode_t, copy: &CUDA_MEMCPY3D) -> Result {
    // SAFETY: the program's handle; the driver checks it.
    unsafe { context::ready()?.cuGraphMemcpyNodeSetParams(node.cast(), copy) }
}

fn set_exec(exec: cudaGraphExec_t, node: cudaGraphNode_t, copy: &CUDA_MEMCPY3D) -> Result {
    let calls = context::ready()?;
    let context = current(calls)?;
    // SAFETY: the program's handles; the driver checks them.
    unsafe { calls.cuGraphExecMemcpyNodeSetParams(exec.cast(), node.cast(), copy, context) }
}

/// A copy into a variable.
fn to_symbol(
    symbol: *const c_void,
    from: *const c_void,
    count: usize,
    offset: usize,
    kind: cudaMemcpyKind,
) -> Result<CUDA_MEMCPY3D> {
    line(
        inside(context::ready()?, symbol, offset, count)?,
        from,
        count,
        kind,
    )
}

/// A copy out of a variable.
fn from_symbol(
    to: *mut c_void,
    symbol: *const c_void,
    count: usize,
    offset: usize,
    kind: cudaMemcpyKind,
) -> Result<CUDA_MEMCPY3D> {
    line(
        to,
        inside(context::ready()?, symbol, offset, count)?,
        count,
        kind,
    )
}

export! {
    /// Adds a copy of a box.
    fn cudaGraphAddMemcpyNode(
        node: *mut cudaGraphNode_t,
        graph: cudaGraph_t,
        after: *const cudaGraphNode_t,
        count: usize,
        copy: *const cudaMemcpy3DParms,
    ) {
        add(node, graph, after, count, &to_driver(context::ready()?, get(copy)?)?)
    }

    /// Adds a copy of a line.
    fn cudaGraphAddMemcpyNode1D(
        node: *mut cudaGraphNode_t,
        graph: cudaGraph_t,
        after: *const cudaGraphNode_t,
        count: usize,
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
        kind: cudaMemcpyKind,
    ) {
        add(node, graph, after, count, &line(to, from, bytes, kind)?)
    }

    /// Adds a copy into a variable.
    fn cudaGraphAddMemcpyNodeToSymbol(
        node: *mut cudaGraphNode_t,
        graph: cudaGraph_t,
        after: *const cudaGraphNode_t,
        count: usize,
        symbol: *const c_void,
        from: *const c_void,
        bytes: usize,
        offset: usize,
        kind: cudaMemcpyKind,
    ) {
        add(node, graph, after, count, &to_symbol(symbol, from, bytes, offset, kind)?)
    }

    /// Adds a copy out of a variable.
    fn cudaGraphAddMemcpyNodeFromSymbol(
        node: *mut cudaGraphNode_t,
        graph: cudaGraph_t,
        after: *const cudaGraphNode_t,
        count: usize,
        to: *mut c_void,
        symbol: *const c_void,
        bytes: usize,
        offset: usize,
        kind: cudaMemcpyKind,
    ) {
        add(node, graph, after, count, &from_symbol(to, symbol, bytes, offset, kind)?)
    }

    /// Reads a copy.
    fn cudaGraphMemcpyNodeGetParams(node: cudaGraphNode_t, to: *mut cudaMemcpy3DParms) {
        let calls = wanted(to)?;
        let mut found = CUDA_MEMCPY3D::default();
        calls.cuGraphMemcpyNodeGetParams(node.cast(), &mut found)?;
        put(to, to_runtime(calls, &found)?)
    }

    /// Changes a copy of a box.
    fn cudaGraphMemcpyNodeSetParams(node: cudaGraphNode_t, copy: *const cudaMemcpy3DParms) {
        set(node, &to_driver(context::ready()?, get(copy)?)?)
    }

    /// Changes a copy of a line.
    fn cudaGraphMemcpyNodeSetParams1D(
        node: cudaGraphNode_t,
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
        kind: cudaMemcpyKind,
    ) {
        set(node, &line(to, from, bytes, kind)?)
    }

    /// Changes a copy into a variable.
    fn cudaGraphMemcpyNodeSetParamsToSymbol(
        node: cudaGraphNode_t,
        symbol: *const c_void,
        from: *const c_void,
        bytes: usize,
        offset: usize,
        kind: cudaMemcpyKind,
    ) {
        set(node, &to_symbol(symbol, from, bytes, offset, kind)?)
    }

    /// Changes a copy out of a variable.
    fn cudaGraphMemcpyNodeSetParamsFromSymbol(
        node: cudaGraphNode_t,
        to: *mut c_void,
        symbol: *const c_void,
        bytes: usize,
        offset: usize,
        kind: cudaMemcpyKind,
    ) {
        set(node, &from_symbol(to, symbol, bytes, offset, kind)?)
    }

    /// Changes a copy of a box in a launchable graph.
    fn cudaGraphExecMemcpyNodeSetParams(
        exec: cudaGraphExec_t,
        node: cudaGraphNode_t,
        copy: *const cudaMemcpy3DParms,
    ) {
        set_exec(exec, node, &to_driver(context::ready()?, get(copy)?)?)
    }

    /// Changes a copy of a line in a launchable graph.
    fn cudaGraphExecMemcpyNodeSetParams1D(
        exec: cudaGraphExec_t,
        node: cudaGraphNode_t,
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
        kind: cudaMemcpyKind,
    ) {
        set_exec(exec, node, &line(to, from, bytes, kind)?)
    }

    /// Changes a copy into a variable in a launchable graph.
    fn cudaGraphExecMemcpyNodeSetParamsToSymbol(
        exec: cudaGraphExec_t,
        node: cudaGraphNode_t,
        symbol: *const c_void,
        from: *const c_void,
        bytes: usize,
        offset: usize,
        kind: cudaMemcpyKind,
    ) {
        set_exec(exec, node, &to_symbol(symbol, from, bytes, offset, kind)?)
    }

    /// Changes a copy out of a variable in a launchable graph.
    fn cudaGraphExecMemcpyNodeSetParamsFromSymbol(
        exec: cudaGraphExec_t,
        node: cudaGraphNode_t,
        to: *mut c_void,
        symbol: *const c_void,
        bytes: usize,
        offset: usize,
        kind: cudaMemcpyKind,
    ) {
        set_exec(exec, node, &from_symbol(to, symbol, bytes, offset, kind)?)
    }
}
