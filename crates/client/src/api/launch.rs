//! Exported functions for launches and host functions.

use core::ffi::{c_uint, c_void};
use std::sync::Arc;

use fermata_abi::op::LaunchAttribute;
use fermata_abi::sys::driver as sys;
use fermata_graph::{HostCall, KernelNode, NodeKind};

use crate::args::In;
use crate::frame::entry::driver_api;
use crate::handles::of;
use crate::link::callback::{self, Callback};
use crate::link::fault;
use crate::object::context::Context;
use crate::object::event::Event;
use crate::object::module::Function;
use crate::object::session::{Session, session};
use crate::result::Result;
use crate::work::capture;
use crate::work::launch::{LaunchShape, check, launch, with_params};

driver_api! {
    fn cuLaunchKernel(
        function: sys::CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        stream: sys::CUstream,
        params: In<*mut c_void>,
        extra: In<*mut c_void>,
    ) {
        let session = session()?;
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = LaunchShape { grid, block, shared, cooperative: false };
        session.modules.with_launchable(of(function), |context, function| {
            with_params(function, params, extra, |params| issue(session, (context, function), shape, params, &[], stream))
        })
    }

    fn cuLaunchCooperativeKernel(
        function: sys::CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        stream: sys::CUstream,
        params: In<*mut c_void>,
    ) {
        let session = session()?;
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = LaunchShape { grid, block, shared, cooperative: true };
        let none = In::null();
        session.modules.with_launchable(of(function), |context, function| {
            with_params(function, params, none, |params| issue(session, (context, function), shape, params, &[], stream))
        })
    }

    fn cuLaunchKernelEx(
        config: In<sys::CUlaunchConfig>,
        function: sys::CUfunction,
        params: In<*mut c_void>,
        extra: In<*mut c_void>,
    ) {
        let config = &config.get()?;
        let session = session()?;
        let attributes = Attributes::list(config)?;
        let attributes = Attributes::of(&attributes);
        let shape = LaunchShape {
            grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
            block: [config.blockDimX, config.blockDimY, config.blockDimZ],
            shared: config.sharedMemBytes,
            cooperative: attributes.cooperative,
        };
        let stream = config.hStream;
        session.modules.with_launchable(of(function), |context, function| {
            with_params(function, params, extra, |params| {
                if attributes.is_plain() {
                    return issue(session, (context, function), shape, params, &attributes.plain, stream);
                }
                issue_special(session, (context, function), shape, params, attributes, stream)
            })
        })
    }

    fn cuLaunchHostFunc(stream: sys::CUstream, function: sys::CUhostFn, data: *mut c_void) {
        let call = function.ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        let session = session()?;
        let node = || {
            let (function, user_data) = ((call as *const ()).expose_provenance(), data.expose_provenance());
            Ok(NodeKind::Host(HostCall { function: function as u64, user_data: user_data as u64 }))
        };
        if capture::add(session, stream, node)? {
            return Ok(());
        }
        callback::enqueue(Callback::Function { call, data }, session.streams.resolve(stream)?)
    }

    fn cuStreamAddCallback(
        stream: sys::CUstream,
        function: sys::CUstreamCallback,
        data: *mut c_void,
        flags: c_uint,
    ) {
        let call = function.ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        if flags != 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let session = session()?;
        capture::forbid_on(session, stream)?;
        let reference = session.streams.resolve(stream)?;
        callback::enqueue(Callback::Stream { call, stream, data }, reference)
    }
}

/// Launch attributes, sorted by how they are handled.
pub(super) struct Attributes<'a> {
    /// Whether all blocks run at once.
    pub cooperative: bool,
    /// Those that are passed to the driver unchanged, in a graph as well.
    pub plain: Vec<LaunchAttribute<'a>>,
    /// The kernel may begin before the previous one has ended; in a capture, the edge says so.
    early: Option<LaunchAttribute<'a>>,
    /// Events that the launch records, with the attributes that say so.
    events: Vec<(sys::CUevent, u32, [u8; 64])>,
    /// Whether a device-updatable node is requested.
    updatable: bool,
}

impl<'a> Attributes<'a> {
    /// The attributes of a launch as the program gave them.
    pub(super) fn list(config: &sys::CUlaunchConfig) -> Result<Vec<sys::CUlaunchAttribute>> {
        // SAFETY: null, or as many attributes as the program's structure says.
        unsafe { In::from_raw(config.attrs) }.list(config.numAttrs as usize)
    }

    pub(super) fn of(given: &'a [sys::CUlaunchAttribute]) -> Self {
        let mut sorted = Self {
            cooperative: false,
            plain: Vec::new(),
            early: None,
            events: Vec::new(),
            updatable: false,
        };
        for attribute in given {
            let value = &attribute.value;
            // SAFETY: every bit pattern of a member of the union is a value of it, or a pointer that is not followed.
            unsafe {
                match attribute.id {
                    sys::CU_LAUNCH_ATTRIBUTE_IGNORE => {}
                    sys::CU_LAUNCH_ATTRIBUTE_COOPERATIVE => {
                        sorted.cooperative |= value.cooperative != 0;
                    }
                    sys::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION => {
                        let allowed = value.programmaticStreamSerializationAllowed != 0;
                        sorted.early = allowed.then(|| encode(attribute));
                    }
                    sys::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT => {
                        let event = value.programmaticEvent.event;
                        sorted.events.push((event, attribute.id, bytes(attribute)));
                    }
                    sys::CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT => {
                        let event = value.launchCompletionEvent.event;
                        sorted.events.push((event, attribute.id, bytes(attribute)));
                    }
                    sys::CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE => {
                        sorted.updatable |= value.deviceUpdatableKernelNode.deviceUpdatable != 0;
                    }
                    _ => sorted.plain.push(encode(attribute)),
                }
            }
        }
        sorted
    }

    fn is_plain(&self) -> bool {
        self.early.is_none() && self.events.is_empty() && !self.updatable
    }
}

/// Issues or captures a launch with attributes that concern more than the kernel: events, an early begin, device updates.
#[cold]
fn issue_special(
    session: &Session,
    (context, function): (&Arc<Context>, &Function),
    shape: LaunchShape,
    params: &[u8],
    given: Attributes<'_>,
    stream: sys::CUstream,
) -> Result {
    if given.updatable {
        // Kernels could then change nodes of a running graph, and its operations would be unknown.
        return Err(sys::CUDA_ERROR_NOT_SUPPORTED);
    }
    fault::check(context.handle)?;
    check(function, &shape)?;
    let mut events = Vec::new();
    for (event, id, value) in given.events {
        let event = session.events.get(event)?;
        // As in the driver: such events are not timed, and not interprocess events.
        if event.flags & sys::CU_EVENT_DISABLE_TIMING == 0 || event.is_between() {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let mut value = value;
        value[..8].copy_from_slice(&event.handle.raw().to_le_bytes());
        events.push((event, id, value));
    }
    let early = given.early.is_some();
    if capture::add_after(session, stream, early, || {
        Ok(NodeKind::Kernel(node(
            function,
            shape,
            params,
            &given.plain,
        )))
    })? {
        for (event, ..) in events {
            capture::record(session, stream, event.handle)?;
        }
        return Ok(());
    }
    let resolved = session.streams.resolve_in(context, stream)?;
    let elsewhere = |it: &Arc<Event>| it.context.handle != resolved.context;
    if function.module.context.handle != resolved.context
        || events.iter().any(|(it, ..)| elsewhere(it))
    {
        return Err(sys::CUDA_ERROR_INVALID_HANDLE);
    }
    session.managed.before_work(resolved)?;
    let mut attributes = given.plain;
    attributes.extend(given.early);
    for (event, id, value) in &events {
        event.note_recorded();
        let (id, value) = (*id, value.as_slice());
        attributes.push(LaunchAttribute { id, value });
    }
    launch(function, shape, params, &attributes, resolved)
}

/// Issues a launch, or captures it.
#[inline(always)]
pub(super) fn issue(
    session: &Session,
    (context, function): (&Arc<Context>, &Function),
    shape: LaunchShape,
    params: &[u8],
    attributes: &[LaunchAttribute<'_>],
    stream: sys::CUstream,
) -> Result {
    fault::check(context.handle)?;
    check(function, &shape)?;
    if capture::add(session, stream, move || {
        Ok(NodeKind::Kernel(node(function, shape, params, attributes)))
    })? {
        return Ok(());
    }
    let stream = session.streams.resolve_in(context, stream)?;
    if stream.context != function.module.context.handle {
        return Err(sys::CUDA_ERROR_INVALID_HANDLE);
    }
    session.managed.before_work(stream)?;
    launch(function, shape, params, attributes, stream)
}

fn node(
    function: &Function,
    shape: LaunchShape,
    params: &[u8],
    attributes: &[LaunchAttribute<'_>],
) -> KernelNode {
    let kept = |known: &LaunchAttribute<'_>| fermata_graph::LaunchAttribute {
        id: known.id,
        value: known.value.to_vec(),
    };
    let mut attributes: Vec<_> = attributes.iter().map(kept).collect();
    if shape.cooperative {
        let mut value = vec![0; 64];
        value[0] = 1;
        attributes.push(fermata_graph::LaunchAttribute {
            id: sys::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
            value,
        });
    }
    KernelNode {
        function: function.handle,
        context: function.module.context.handle,
        grid: shape.grid,
        block: shape.block,
        shared_bytes: shape.shared,
        params: params.to_vec(),
        attributes,
    }
}

fn bytes(attribute: &sys::CUlaunchAttribute) -> [u8; 64] {
    // SAFETY: every byte of the union may be read.
    unsafe { attribute.value.pad }.map(|byte| byte as u8)
}

fn encode(attribute: &sys::CUlaunchAttribute) -> LaunchAttribute<'_> {
    let value = std::ptr::from_ref(&attribute.value).cast();
    // SAFETY: the value is a union of 64 bytes, which live as long as the attribute.
    let value = unsafe { std::slice::from_raw_parts(value, 64) };
    LaunchAttribute {
        id: attribute.id,
        value,
    }
}
