//! Exported functions for memory pools.

use core::ffi::c_void;

use fermata_abi::sys::driver as sys;

use crate::args::{In, Out};
use crate::frame::entry::driver_api;
use crate::handles::to_pointer;
use crate::object::mirror::{Block, Kind};
use crate::object::pool::Pool;
use crate::object::session::{Session, session};
use crate::result::Result;

driver_api! {
    fn cuDeviceGetDefaultMemPool(pool: Out<sys::CUmemoryPool>, device: sys::CUdevice) {
        let session = session()?;
        pool.set(to_pointer(session.pools.default_of(&session.devices, device)?.handle))
    }

    fn cuDeviceGetMemPool(pool: Out<sys::CUmemoryPool>, device: sys::CUdevice) {
        let session = session()?;
        pool.set(to_pointer(session.pools.of(&session.devices, device)?.handle))
    }

    fn cuDeviceSetMemPool(device: sys::CUdevice, pool: sys::CUmemoryPool) {
        let session = session()?;
        session.pools.set(&session.devices, device, pool)
    }

    fn cuMemGetDefaultMemPool(
        pool: Out<sys::CUmemoryPool>,
        location: Out<sys::CUmemLocation>,
        kind: sys::CUmemAllocationType,
    ) {
        let session = session()?;
        let device = device_of(&location.get()?, kind)?;
        pool.set(to_pointer(session.pools.default_of(&session.devices, device)?.handle))
    }

    fn cuMemGetMemPool(
        pool: Out<sys::CUmemoryPool>,
        location: Out<sys::CUmemLocation>,
        kind: sys::CUmemAllocationType,
    ) {
        let session = session()?;
        let device = device_of(&location.get()?, kind)?;
        pool.set(to_pointer(session.pools.of(&session.devices, device)?.handle))
    }

    fn cuMemSetMemPool(
        location: Out<sys::CUmemLocation>,
        kind: sys::CUmemAllocationType,
        pool: sys::CUmemoryPool,
    ) {
        let session = session()?;
        session.pools.set(&session.devices, device_of(&location.get()?, kind)?, pool)
    }

    fn cuMemPoolCreate(pool: Out<sys::CUmemoryPool>, props: In<sys::CUmemPoolProps>) {
        let session = session()?;
        let props = &props.get()?;
        if props.handleTypes & !sys::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR != 0 {
            return Err(sys::CUDA_ERROR_NOT_SUPPORTED);
        }
        let device = device_of(&props.location, props.allocType)?;
        pool.set(to_pointer(session.pools.create(&session.devices, device, props.handleTypes)?.handle))
    }

    fn cuMemPoolDestroy(pool: sys::CUmemoryPool) {
        session()?.pools.destroy(pool)
    }

    fn cuMemPoolTrimTo(pool: sys::CUmemoryPool, _keep: usize) {
        session()?.pools.get(pool).map(|_| ())
    }

    fn cuMemPoolSetAttribute(pool: sys::CUmemoryPool, attribute: sys::CUmemPool_attribute, value: Out<c_void>) {
        let pool = session()?.pools.get(pool)?;
        match attribute {
            sys::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
            | sys::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC
            | sys::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
                pool.set(attribute, (value.cast::<i32>().get()?).unsigned_abs().into());
            }
            sys::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
            | sys::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH
            | sys::CU_MEMPOOL_ATTR_USED_MEM_HIGH => pool.set(attribute, value.cast::<u64>().get()?),
            _ => return Err(sys::CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: sys::CUmemoryPool, attribute: sys::CUmemPool_attribute, value: Out<c_void>) {
        let session = session()?;
        let pool = session.pools.get(pool)?;
        match attribute {
            sys::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
            | sys::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC
            | sys::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
                value.cast().set(pool.setting(attribute).unwrap_or(1) as i32)
            }
            sys::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => value.cast().set(pool.setting(attribute).unwrap_or(0)),
            sys::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
            | sys::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH
            | sys::CU_MEMPOOL_ATTR_USED_MEM_CURRENT
            | sys::CU_MEMPOOL_ATTR_USED_MEM_HIGH => value.cast().set(used(session, &pool)),
            _ => Err(sys::CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn cuMemPoolSetAccess(pool: sys::CUmemoryPool, list: In<sys::CUmemAccessDesc>, count: usize) {
        let session = session()?;
        let pool = session.pools.get(pool)?;
        for desc in &list.list(count)? {
            session.devices.get(desc.location.id)?;
            pool.set_access(desc.location.id, desc.flags);
        }
        Ok(())
    }

    fn cuMemPoolGetAccess(
        flags: Out<sys::CUmemAccess_flags>,
        pool: sys::CUmemoryPool,
        location: Out<sys::CUmemLocation>,
    ) {
        let session = session()?;
        let location = &location.get()?;
        session.devices.get(location.id)?;
        flags.set(session.pools.get(pool)?.access(location.id))
    }

    fn cuDeviceGraphMemTrim(device: sys::CUdevice) {
        session()?.devices.get(device).map(|_| ())
    }

    fn cuDeviceGetGraphMemAttribute(
        device: sys::CUdevice,
        attribute: sys::CUgraphMem_attribute,
        value: Out<c_void>,
    ) {
        session()?.devices.get(device)?;
        if attribute > sys::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        // Graphs own no memory apart from what their allocation nodes show in the device's pool.
        value.cast().set(0u64)
    }
}

fn device_of(
    location: &sys::CUmemLocation,
    kind: sys::CUmemAllocationType,
) -> Result<sys::CUdevice> {
    let device = location.type_ == sys::CU_MEM_LOCATION_TYPE_DEVICE;
    if device && kind == sys::CU_MEM_ALLOCATION_TYPE_PINNED {
        Ok(location.id)
    } else {
        Err(sys::CUDA_ERROR_NOT_SUPPORTED)
    }
}

/// Bytes of the pool's memory.
fn used(session: &Session, pool: &Pool) -> u64 {
    let kinds = [Kind::Pool(pool.handle), Kind::Graph(pool.handle)];
    let of_pool = |block: &Block| kinds.contains(&block.kind);
    session.memory.sum(of_pool)
}
