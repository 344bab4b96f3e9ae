//! Exported functions for memory pools and stream-ordered allocation.

use std::ffi::{c_int, c_ulonglong, c_void};
use std::os::fd::IntoRawFd;
use std::sync::Arc;

use fermata_abi::sys::driver as cu;
use fermata_graph::{MemAllocNode, NodeKind};

use super::args::{In, Out};
use super::graph_params::free_node;
use super::init::driver;
use super::{to_handle, to_pointer};
use crate::capture;
use crate::error::{CuError, INVALID_VALUE, NOT_SUPPORTED, OPERATING_SYSTEM, Result};
use crate::graph::GraphObject;
use crate::memory::{Kind, Protection, memory_file};
use crate::pool::Pool;
use crate::stream::Stream;

/// What the files of exported pools are called; the device's ordinal follows.
const NAME: &str = "softgpu-pool-";

fn allocate(
    out: Out<cu::CUdeviceptr>,
    bytes: usize,
    pool: Option<Arc<Pool>>,
    stream: &Arc<Stream>,
) -> Result {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    if bytes == 0 {
        return out.set(0);
    }
    let driver = driver()?;
    let pool = pool.unwrap_or_else(|| Pool::current_of(driver, &stream.context.device));
    let bytes = bytes as u64;
    if capture::is_capturing(stream) {
        // The graph owns the memory: its address is fixed now, as long as the graph lives.
        let device = pool.device.ordinal;
        let graph = GraphObject::resolve(driver, capture::info(stream)?.graph.raw())?;
        let address = graph.allocate(driver, device, bytes)?;
        capture::submit(
            stream,
            NodeKind::MemAlloc(MemAllocNode {
                device,
                bytes,
                address,
            }),
        )?;
        return out.set(address);
    }
    out.set(pool.allocate(driver, &stream.context, bytes)?)
}

/// The device that a pool is asked for.
fn device_at(location: In<cu::CUmemLocation>) -> Result<&'static Arc<crate::device::Device>> {
    let location = location.get()?;
    if location.type_ != cu::CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(NOT_SUPPORTED);
    }
    driver()?.device(location.id)
}

api! {
    fn cuMemAllocAsync(out: Out<cu::CUdeviceptr>, bytes: usize, stream: cu::CUstream) {
        allocate(out, bytes, None, &Stream::resolve(stream)?)
    }

    fn cuMemAllocFromPoolAsync(
        out: Out<cu::CUdeviceptr>,
        bytes: usize,
        pool: cu::CUmemoryPool,
        stream: cu::CUstream,
    ) {
        let pool = Pool::resolve(driver()?, pool)?;
        allocate(out, bytes, Some(pool), &Stream::resolve(stream)?)
    }

    fn cuMemFreeAsync(address: cu::CUdeviceptr, stream: cu::CUstream) {
        let stream = Stream::resolve(stream)?;
        if address == 0 {
            return Ok(());
        }
        if capture::is_capturing(&stream) {
            return capture::submit(&stream, free_node(address)?);
        }
        Pool::free(driver()?, &stream, address)
    }

    fn cuMemPoolCreate(out: Out<cu::CUmemoryPool>, properties: In<cu::CUmemPoolProps>) {
        let properties = properties.get()?;
        if out.is_null() || properties.allocType != cu::CU_MEM_ALLOCATION_TYPE_PINNED {
            return Err(INVALID_VALUE);
        }
        let types = properties.handleTypes;
        let known = types & !cu::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR == 0;
        if properties.location.type_ != cu::CU_MEM_LOCATION_TYPE_DEVICE || !known {
            return Err(NOT_SUPPORTED);
        }
        let driver = driver()?;
        out.set(to_pointer(Pool::create(driver, driver.device(properties.location.id)?, types).handle))
    }

    /// What was allocated from it stays until it is freed.
    fn cuMemPoolDestroy(handle: cu::CUmemoryPool) {
        let driver = driver()?;
        let pool = Pool::resolve(driver, handle)?;
        if pool.default {
            return Err(INVALID_VALUE);
        }
        driver.pools().remove(pool.handle);
        Ok(())
    }

    /// Freed memory is returned at once: there is nothing to trim.
    fn cuMemPoolTrimTo(handle: cu::CUmemoryPool, keep: usize) {
        let _ = keep;
        Pool::resolve(driver()?, handle).map(drop)
    }

    fn cuMemPoolSetAttribute(
        handle: cu::CUmemoryPool,
        attribute: cu::CUmemPool_attribute,
        value: Out<c_void>,
    ) {
        let pool = Pool::resolve(driver()?, handle)?;
        match attribute {
            cu::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
            | cu::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC
            | cu::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
                let value = value.cast::<c_int>().get()?;
                pool.attributes.lock().insert(attribute, u64::from(value != 0));
            }
            cu::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => {
                let value = value.cast::<u64>().get()?;
                pool.attributes.lock().insert(attribute, value);
            }
            cu::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH | cu::CU_MEMPOOL_ATTR_USED_MEM_HIGH => {
                // Only resetting is possible.
                if value.cast::<u64>().get()? != 0 {
                    return Err(INVALID_VALUE);
                }
                pool.reset_high();
            }
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }

    fn cuMemPoolGetAttribute(
        handle: cu::CUmemoryPool,
        attribute: cu::CUmemPool_attribute,
        value: Out<c_void>,
    ) {
        let pool = Pool::resolve(driver()?, handle)?;
        let set = pool.attributes.lock().get(&attribute).copied();
        let (now, high) = pool.usage();
        match attribute {
            cu::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
            | cu::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC
            | cu::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
                value.cast::<c_int>().set(set.unwrap_or(1) as c_int)
            }
            cu::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => value.cast::<u64>().set(set.unwrap_or(0)),
            cu::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT | cu::CU_MEMPOOL_ATTR_USED_MEM_CURRENT => {
                value.cast::<u64>().set(now)
            }
            cu::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH | cu::CU_MEMPOOL_ATTR_USED_MEM_HIGH => {
                value.cast::<u64>().set(high)
            }
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuMemPoolSetAccess(
        handle: cu::CUmemoryPool,
        access: In<cu::CUmemAccessDesc>,
        count: usize,
    ) {
        let pool = Pool::resolve(driver()?, handle)?;
        for one in access.list(count)? {
            let device = super::vmm::device_of(&one.location)?;
            let protection = super::vmm::protection(one.flags)?;
            if device == pool.device.ordinal && protection != Protection::ReadWrite {
                return Err(INVALID_VALUE);
            }
            pool.access.lock().insert(device, one.flags);
        }
        Ok(())
    }

    fn cuMemPoolGetAccess(
        flags: Out<cu::CUmemAccess_flags>,
        handle: cu::CUmemoryPool,
        location: In<cu::CUmemLocation>,
    ) {
        let pool = Pool::resolve(driver()?, handle)?;
        let device = super::vmm::device_of(&location.get()?)?;
        if device == pool.device.ordinal {
            return flags.set(cu::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        }
        flags.set(pool.access.lock().get(&device).copied().unwrap_or(cu::CU_MEM_ACCESS_FLAGS_PROT_NONE))
    }

    fn cuDeviceGetDefaultMemPool(out: Out<cu::CUmemoryPool>, device: cu::CUdevice) {
        let driver = driver()?;
        out.set(to_pointer(Pool::default_of(driver, driver.device(device)?).handle))
    }

    fn cuDeviceGetMemPool(out: Out<cu::CUmemoryPool>, device: cu::CUdevice) {
        let driver = driver()?;
        out.set(to_pointer(Pool::current_of(driver, driver.device(device)?).handle))
    }

    fn cuDeviceSetMemPool(device: cu::CUdevice, handle: cu::CUmemoryPool) {
        let driver = driver()?;
        let (device, pool) = (driver.device(device)?, Pool::resolve(driver, handle)?);
        if pool.device.ordinal != device.ordinal {
            return Err(CuError(cu::CUDA_ERROR_INVALID_DEVICE));
        }
        if pool.imported {
            return Err(INVALID_VALUE);
        }
        device.pools.lock().current = to_handle(handle);
        Ok(())
    }

    fn cuMemGetDefaultMemPool(
        out: Out<cu::CUmemoryPool>,
        location: In<cu::CUmemLocation>,
        kind: cu::CUmemAllocationType,
    ) {
        let _ = kind;
        out.set(to_pointer(Pool::default_of(driver()?, device_at(location)?).handle))
    }

    fn cuMemGetMemPool(
        out: Out<cu::CUmemoryPool>,
        location: In<cu::CUmemLocation>,
        kind: cu::CUmemAllocationType,
    ) {
        let _ = kind;
        out.set(to_pointer(Pool::current_of(driver()?, device_at(location)?).handle))
    }

    fn cuMemSetMemPool(
        location: In<cu::CUmemLocation>,
        kind: cu::CUmemAllocationType,
        handle: cu::CUmemoryPool,
    ) {
        let _ = kind;
        let (device, pool) = (device_at(location)?, Pool::resolve(driver()?, handle)?);
        if pool.imported {
            return Err(INVALID_VALUE);
        }
        device.pools.lock().current = pool.handle;
        Ok(())
    }

    fn cuMemPoolExportToShareableHandle(
        out: Out<c_void>,
        handle: cu::CUmemoryPool,
        kind: cu::CUmemAllocationHandleType,
        flags: c_ulonglong,
    ) {
        let pool = Pool::resolve(driver()?, handle)?;
        if out.is_null() || flags != 0 || kind & pool.handle_types == 0 {
            return Err(INVALID_VALUE);
        }
        let file = memory_file(&format!("{NAME}{}", pool.device.ordinal), 0);
        out.cast::<c_int>().set(file.map_err(|_| OPERATING_SYSTEM)?.into_raw_fd())
    }

    /// The pointer argument holds the descriptor itself.
    fn cuMemPoolImportFromShareableHandle(
        out: Out<cu::CUmemoryPool>,
        shareable: Out<c_void>,
        kind: cu::CUmemAllocationHandleType,
        flags: c_ulonglong,
    ) {
        let driver = driver()?;
        if out.is_null() || flags != 0 || kind != cu::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
            return Err(INVALID_VALUE);
        }
        let link = format!("/proc/self/fd/{}", shareable.as_ptr().addr());
        let target = std::fs::read_link(link).map_err(|_| INVALID_VALUE)?;
        let target = target.to_string_lossy();
        let rest = target.strip_prefix("/memfd:").and_then(|it| it.strip_prefix(NAME));
        let device = rest.and_then(|it| it.split_whitespace().next()?.parse().ok()).ok_or(INVALID_VALUE)?;
        out.set(to_pointer(Pool::import(driver, driver.device(device)?).handle))
    }

    fn cuMemPoolExportPointer(out: Out<cu::CUmemPoolPtrExportData>, address: cu::CUdeviceptr) {
        let driver = driver()?;
        let range = driver.memory.find(address).filter(|it| it.base == address).ok_or(INVALID_VALUE)?;
        let Kind::Pool { pool } = range.kind else { return Err(INVALID_VALUE) };
        let shareable = driver.pools().get(pool).is_some_and(|it| it.handle_types != 0);
        if out.is_null() || !shareable {
            return Err(INVALID_VALUE);
        }
        // Memory of such a pool has been a file from the beginning.
        let reserved = super::ipc::handle_of_memory(&driver.memory.share(address)?)?;
        out.set(cu::CUmemPoolPtrExportData { reserved })
    }

    fn cuMemPoolImportPointer(
        out: Out<cu::CUdeviceptr>,
        handle: cu::CUmemoryPool,
        data: In<cu::CUmemPoolPtrExportData>,
    ) {
        let pool = Pool::resolve(driver()?, handle)?;
        if out.is_null() || !pool.imported {
            return Err(INVALID_VALUE);
        }
        out.set(super::ipc::open(data.get()?.reserved, true)?)
    }
}
