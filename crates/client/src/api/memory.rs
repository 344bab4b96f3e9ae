//! Exported functions for device memory.

use core::ffi::c_uint;
use std::sync::Arc;

use fermata_abi::op::{Address, Op};
use fermata_abi::sys::driver as sys;
use fermata_graph::NodeKind;

use super::graph_node::alloc_node;
use crate::args::Out;
use crate::frame::entry::driver_api;
use crate::link;
use crate::link::fault;
use crate::link::room::with_room;
use crate::object::context::current;
use crate::object::mirror::{Block, Kind};
use crate::object::pool::Pool;
use crate::object::session::session;
use crate::work::capture;

/// Rows of pitched memory begin at multiples of this.
const PITCH: usize = 512;

driver_api! {
    fn cuMemAlloc_v2(address: Out<sys::CUdeviceptr>, size: usize) {
        address.set(alloc(size)?)
    }

    fn cuMemAllocPitch_v2(
        address: Out<sys::CUdeviceptr>,
        pitch: Out<usize>,
        width: usize,
        height: usize,
        element: c_uint,
    ) {
        if !matches!(element, 4 | 8 | 16) || width == 0 || height == 0 || pitch.is_null() {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(PITCH).ok_or(sys::CUDA_ERROR_OUT_OF_MEMORY)?;
        let size = row.checked_mul(height).ok_or(sys::CUDA_ERROR_OUT_OF_MEMORY)?;
        address.set(alloc(size)?)?;
        pitch.set(row)
    }

    fn cuMemFree_v2(address: sys::CUdeviceptr) {
        let session = session()?;
        if address == 0 {
            return fault::check_current();
        }
        capture::forbid_unsafe(session)?;
        let address = Address::from_raw(address);
        let block = session.memory.find(address).ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        match block.kind {
            Kind::Host(kind @ fermata_abi::op::HostKind::Managed) => crate::object::host::free(&session.memory, address, kind),
            Kind::Device | Kind::Pool(_) => {
                let free = |block: &Block| matches!(block.kind, Kind::Device | Kind::Pool(_));
                session.memory.remove(address, free)?;
                link::ask(&Op::MemFree { address }, link::nothing)
            }
            Kind::Graph(_) => session.graphs.lock().memory.free(address),
            Kind::Imported(_) => session.opened.close(&session.memory, address, block.kind),
            _ => Err(sys::CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        session()?;
        let (now, all) = link::ask(&Op::MemInfo { context: current()?.handle }, link::pair)?;
        free.set_if_wanted(now as usize);
        total.set_if_wanted(all as usize);
        Ok(())
    }

    fn cuMemGetAddressRange_v2(base: Out<sys::CUdeviceptr>, size: Out<usize>, address: sys::CUdeviceptr) {
        let block = session()?.memory.find(Address::from_raw(address)).ok_or(sys::CUDA_ERROR_NOT_FOUND)?;
        base.set_if_wanted(block.start.raw());
        size.set_if_wanted(block.size as usize);
        Ok(())
    }

    fn cuMemAllocAsync(address: Out<sys::CUdeviceptr>, size: usize, stream: sys::CUstream) {
        address.set(alloc_async(size, None, stream)?)
    }

    fn cuMemAllocFromPoolAsync(
        address: Out<sys::CUdeviceptr>,
        size: usize,
        pool: sys::CUmemoryPool,
        stream: sys::CUstream,
    ) {
        let pool = session()?.pools.get_own(pool)?;
        address.set(alloc_async(size, Some(pool), stream)?)
    }

    fn cuMemFreeAsync(address: sys::CUdeviceptr, stream: sys::CUstream) {
        let session = session()?;
        if address == 0 || capture::add(session, stream, || Ok(NodeKind::MemFree(address)))? {
            return Ok(());
        }
        let stream = session.streams.resolve(stream)?;
        let address = Address::from_raw(address);
        match session.memory.find(address).map(|block| block.kind) {
            Some(kind @ Kind::Imported(_)) => return session.opened.close_async(&session.memory, (address, kind), stream),
            Some(Kind::Graph(_)) => return session.graphs.lock().memory.free(address),
            _ => {}
        }
        session.memory.remove(address, |block| matches!(block.kind, Kind::Device | Kind::Pool(_)))?;
        link::post(&Op::MemFreeAsync { address, stream })
    }
}

fn alloc(size: usize) -> crate::result::Result<u64> {
    let session = session()?;
    let context = current()?;
    capture::forbid_unsafe(session)?;
    if size == 0 {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    let size = size as u64;
    let device = session.devices.get(context.device)?.index;
    let op = Op::MemAlloc {
        context: context.handle,
        size,
    };
    let allocate = || link::ask(&op, link::address);
    let address = with_room(Some(context.handle), (device, size), allocate)?;
    session
        .memory
        .insert(Block::new(address, size, Kind::Device, &context));
    Ok(address.raw())
}

fn alloc_async(
    size: usize,
    pool: Option<Arc<Pool>>,
    stream: sys::CUstream,
) -> crate::result::Result<u64> {
    let session = session()?;
    let context = session.streams.context_of(stream)?;
    if size == 0 {
        return Err(sys::CUDA_ERROR_INVALID_VALUE);
    }
    let mut captured = 0;
    let node = || {
        let node = alloc_node(context.device, size)?;
        captured = node.address;
        Ok(NodeKind::MemAlloc(node))
    };
    if capture::add(session, stream, node)? {
        return Ok(captured);
    }
    let stream = session.streams.resolve(stream)?;
    let pool = match pool {
        Some(pool) => pool,
        None => session.pools.of(&session.devices, context.device)?,
    };
    let size = size as u64;
    let device = session.devices.get(context.device)?.index;
    let op = Op::MemAllocAsync { stream, size };
    let allocate = || link::ask(&op, link::address);
    let address = with_room(Some(context.handle), (device, size), allocate)?;
    session
        .memory
        .insert(Block::new(address, size, Kind::Pool(pool.handle), &context));
    Ok(address.raw())
}
