//! Converts node parameters between the API's structures and the graph model.

use core::ffi::c_void;

use fermata_abi::op::{Address, ArrayId, GraphNodeId};
use fermata_abi::sys::driver as sys;
use fermata_graph::{Copy, CopyEnd, KernelNode, MemsetNode, Place};

use super::function::find;
use crate::args::In;
use crate::handles::{of, to_pointer};
use crate::link::fault;
use crate::object::context::{Context, current_pointer, with_current};
use crate::object::copy::place_of;
use crate::object::graphs::View;
use crate::object::module::Function;
use crate::object::session::session;
use crate::result::Result;
use crate::work::launch::with_params;

/// A kernel node's parameters.
pub(super) fn kernel_node(params: &sys::CUDA_KERNEL_NODE_PARAMS) -> Result<KernelNode> {
    fault::check_current()?;
    let handle = if params.func.is_null() {
        of(params.kern).as_function()
    } else {
        of(params.func)
    };
    // SAFETY: the program's structure says so: each is null or the list that a launch demands.
    let (list, extra) = unsafe {
        (
            In::from_raw(params.kernelParams.cast_const()),
            In::from_raw(params.extra.cast_const()),
        )
    };
    let node = |context: &Context, function: &Function| {
        let block = with_params(function, list, extra, |block| Ok(block.to_vec()));
        Ok(KernelNode {
            function: function.handle,
            context: match context.handle == function.module.context.handle {
                true => context.name(),
                false => function.module.context.handle,
            },
            grid: [params.gridDimX, params.gridDimY, params.gridDimZ],
            block: [params.blockDimX, params.blockDimY, params.blockDimZ],
            shared_bytes: params.sharedMemBytes,
            params: block?,
            attributes: Vec::new(),
        })
    };
    let session = session()?;
    if params.ctx.is_null() || params.ctx == current_pointer() {
        return session
            .modules
            .with_launchable(handle, |context, function| node(context, function));
    }
    let context = session.contexts.get(params.ctx)?;
    node(&context, &*session.modules.launchable(handle, &context)?)
}

/// A kernel node as the API's structure, whose parameter list stays valid until the next such call for the node.
pub(super) fn kernel_params(
    node: GraphNodeId,
    kernel: &KernelNode,
) -> Result<sys::CUDA_KERNEL_NODE_PARAMS> {
    let function = find(to_pointer(kernel.function))?;
    let mut view = View {
        block: kernel.params.clone(),
        pointers: Vec::new(),
    };
    let start = view.block.as_mut_ptr();
    let at = |&(offset, _): &(u32, u32)| start.wrapping_add(offset as usize).expose_provenance();
    view.pointers = function.params.iter().map(at).collect();
    let pointers: *mut *mut c_void = view.pointers.as_mut_ptr().cast();
    session()?.graphs.lock().views.insert(node, view);
    Ok(sys::CUDA_KERNEL_NODE_PARAMS {
        func: to_pointer(kernel.function),
        gridDimX: kernel.grid[0],
        gridDimY: kernel.grid[1],
        gridDimZ: kernel.grid[2],
        blockDimX: kernel.block[0],
        blockDimY: kernel.block[1],
        blockDimZ: kernel.block[2],
        sharedMemBytes: kernel.shared_bytes,
        kernelParams: if function.params.is_empty() {
            core::ptr::null_mut()
        } else {
            pointers
        },
        extra: core::ptr::null_mut(),
        kern: to_pointer(session()?.modules.kernel_of(kernel.function)),
        ctx: to_pointer(kernel.context),
    })
}

/// A copy node's parameters.
pub(super) fn copy_node(copy: &sys::CUDA_MEMCPY3D, context: sys::CUcontext) -> Result<Copy> {
    fault::check_current()?;
    let context = if context.is_null() {
        with_current(|context| Ok(context.handle))?
    } else {
        session()?.contexts.get(context)?.handle
    };
    if copy.srcLOD != 0 || copy.dstLOD != 0 {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    let (width, height, depth) = (
        copy.WidthInBytes as u64,
        copy.Height as u64,
        copy.Depth as u64,
    );
    let end = |kind, host: u64, device: u64, array: sys::CUarray| match kind {
        sys::CU_MEMORYTYPE_HOST => Ok((Place::Host, host)),
        sys::CU_MEMORYTYPE_DEVICE => Ok((Place::Device, device)),
        // The runtime accepts no such answer when it asks for the node's parameters.
        sys::CU_MEMORYTYPE_UNIFIED => {
            let place = place_of(&session()?.memory, Address::from_raw(device));
            Ok((place, device))
        }
        sys::CU_MEMORYTYPE_ARRAY => Ok((Place::Array, session()?.arrays.get(array)?.handle.raw())),
        _ => Err(sys::CUDA_ERROR_INVALID_VALUE),
    };
    let source = end(
        copy.srcMemoryType,
        copy.srcHost.expose_provenance() as u64,
        copy.srcDevice,
        copy.srcArray,
    )?;
    let target = end(
        copy.dstMemoryType,
        copy.dstHost.expose_provenance() as u64,
        copy.dstDevice,
        copy.dstArray,
    )?;
    let filled = |pitch: usize, rows: usize, x: usize, y: usize| {
        let pitch = if pitch == 0 {
            x as u64 + width
        } else {
            pitch as u64
        };
        (
            pitch,
            if rows == 0 {
                y as u64 + height
            } else {
                rows as u64
            },
        )
    };
    let (src_pitch, src_rows) = filled(copy.srcPitch, copy.srcHeight, copy.srcXInBytes, copy.srcY);
    let (dst_pitch, dst_rows) = filled(copy.dstPitch, copy.dstHeight, copy.dstXInBytes, copy.dstY);
    Ok(Copy {
        src: CopyEnd {
            place: source.0,
            address: source.1,
            context,
            x_bytes: copy.srcXInBytes as u64,
            y: copy.srcY as u64,
            z: copy.srcZ as u64,
            pitch: src_pitch,
            height: src_rows,
        },
        dst: CopyEnd {
            place: target.0,
            address: target.1,
            context,
            x_bytes: copy.dstXInBytes as u64,
            y: copy.dstY as u64,
            z: copy.dstZ as u64,
            pitch: dst_pitch,
            height: dst_rows,
        },
        width_bytes: width,
        height,
        depth,
    })
}

/// A copy as the API's structure.
pub(super) fn from_copy(copy: &Copy) -> sys::CUDA_MEMCPY3D {
    let kind = |place| match place {
        Place::Host => sys::CU_MEMORYTYPE_HOST,
        Place::Device => sys::CU_MEMORYTYPE_DEVICE,
        Place::Unified => sys::CU_MEMORYTYPE_UNIFIED,
        Place::Array => sys::CU_MEMORYTYPE_ARRAY,
    };
    let device =
        |end: &CopyEnd| matches!(end.place, Place::Device | Place::Unified).then_some(end.address);
    let pointer = |end: &CopyEnd| {
        let address = if end.place == Place::Host {
            end.address
        } else {
            0
        };
        std::ptr::with_exposed_provenance_mut::<c_void>(address as usize)
    };
    let array = |end: &CopyEnd| to_pointer(end.array().unwrap_or(ArrayId::NULL));
    let (src, dst) = (&copy.src, &copy.dst);
    sys::CUDA_MEMCPY3D {
        srcXInBytes: src.x_bytes as usize,
        srcY: src.y as usize,
        srcZ: src.z as usize,
        srcMemoryType: kind(src.place),
        srcHost: pointer(src),
        srcDevice: device(src).unwrap_or(0),
        srcArray: array(src),
        srcPitch: src.pitch as usize,
        srcHeight: src.height as usize,
        dstXInBytes: dst.x_bytes as usize,
        dstY: dst.y as usize,
        dstZ: dst.z as usize,
        dstMemoryType: kind(dst.place),
        dstHost: pointer(dst),
        dstDevice: device(dst).unwrap_or(0),
        dstArray: array(dst),
        dstPitch: dst.pitch as usize,
        dstHeight: dst.height as usize,
        WidthInBytes: copy.width_bytes as usize,
        Height: copy.height as usize,
        Depth: copy.depth as usize,
        ..Default::default()
    }
}

/// A fill node's parameters.
pub(super) fn memset_node(params: &sys::CUDA_MEMSET_NODE_PARAMS) -> Result<MemsetNode> {
    fault::check_current()?;
    if !matches!(params.elementSize, 1 | 2 | 4) || params.width == 0 || params.height == 0 {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    Ok(MemsetNode {
        dst: params.dst,
        pitch: params.pitch as u64,
        value: params.value,
        element_size: params.elementSize,
        width: params.width as u64,
        height: params.height as u64,
    })
}
