//! Exported functions that export and import memory pools between processes of a session.
//!
//! ```text
//!   export ─► memory file that names the pool ─► (the program passes the descriptor on) ─► import
//!   export of a pointer ─► 64 bytes, as of `cuIpcGetMemHandle` ────────────────────────────► import of the pointer
//! ```
//! An imported pool is only a name. Memory of an imported pointer is opened as by `cuIpcOpenMemHandle`.

use core::ffi::{c_int, c_ulonglong, c_void};
use std::os::fd::IntoRawFd;

use fermata_abi::op::{Address, MemoryId, SharedMemory, SharedPool};
use fermata_abi::sys::driver as sys;

use super::shareable::{file_with, handle_in};
use crate::args::{In, Out};
use crate::frame::entry::driver_api;
use crate::handles::to_pointer;
use crate::object::mirror::Kind;
use crate::object::session::session;
use crate::object::shared;

driver_api! {
    fn cuMemPoolExportToShareableHandle(
        shareable: Out<c_void>,
        pool: sys::CUmemoryPool,
        kind: sys::CUmemAllocationHandleType,
        flags: c_ulonglong,
    ) {
        let session = session()?;
        let pool = session.pools.get(pool)?;
        if shareable.is_null() || flags != 0 || pool.handle_types & kind == 0 {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let given = SharedPool {
            sharer: *shared::own()?,
            pool: pool.handle,
            device: session.devices.get(pool.device)?.index,
        };
        let file = file_with("fermata-pool", &given.encode())?;
        shareable.cast::<c_int>().set(file.into_raw_fd())
    }

    /// The pointer argument holds the descriptor itself.
    fn cuMemPoolImportFromShareableHandle(
        pool: Out<sys::CUmemoryPool>,
        shareable: *mut c_void,
        kind: sys::CUmemAllocationHandleType,
        flags: c_ulonglong,
    ) {
        let session = session()?;
        if pool.is_null() || flags != 0 || kind != sys::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let given = SharedPool::decode(&handle_in(shareable.addr() as c_int)?);
        let given = given.ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        pool.set(to_pointer(session.pools.import(&session.devices, given)?.handle))
    }

    fn cuMemPoolExportPointer(data: Out<sys::CUmemPoolPtrExportData>, address: sys::CUdeviceptr) {
        let session = session()?;
        let address = Address::from_raw(address);
        let block = session.memory.find(address).filter(|block| block.start == address);
        let pool = match block.map(|block| block.kind) {
            Some(Kind::Pool(pool)) => session.pools.get(to_pointer(pool))?,
            _ => return Err(sys::CUDA_ERROR_INVALID_VALUE),
        };
        if data.is_null() || pool.handle_types == sys::CU_MEM_HANDLE_TYPE_NONE {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        let reserved = shared::share(address, MemoryId::NULL)?;
        data.set(sys::CUmemPoolPtrExportData { reserved })
    }

    fn cuMemPoolImportPointer(
        address: Out<sys::CUdeviceptr>,
        pool: sys::CUmemoryPool,
        data: In<sys::CUmemPoolPtrExportData>,
    ) {
        let session = session()?;
        let pool = session.pools.get(pool)?;
        let given = SharedMemory::decode(&data.get()?.reserved);
        let given = given.filter(|it| {
            let of_pool = pool.imported.is_some_and(|of| of.sharer == it.sharer);
            of_pool && it.memory == MemoryId::NULL && !address.is_null()
        });
        let given = given.ok_or(sys::CUDA_ERROR_INVALID_VALUE)?;
        let call = ("cuMemPoolImportPointer", Kind::Imported(pool.handle));
        let places = (&session.devices, &session.memory);
        address.set(session.opened.open(call, places, given, &pool.reached_by())?.raw())
    }
}
