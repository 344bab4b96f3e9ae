//! Memory pools: handles and settings. The memory itself is the worker's stream-ordered memory.

use std::collections::HashMap;
use std::sync::Arc;

use fermata_abi::op::{PoolId, SharedPool};
use fermata_abi::sys::driver as sys;
use parking_lot::Mutex;

use crate::handles::{self, Table};
use crate::object::devices::Devices;
use crate::result::Result;

/// All pools, and the current pool of each device.
#[derive(Debug, Default)]
pub struct Pools {
    table: Table<PoolId, Pool>,
    defaults: Mutex<HashMap<sys::CUdevice, Arc<Pool>>>,
    used: Mutex<HashMap<sys::CUdevice, Arc<Pool>>>,
}

/// A pool.
#[derive(Debug)]
pub struct Pool {
    /// Its handle.
    pub handle: PoolId,
    /// Ordinal of its device.
    pub device: sys::CUdevice,
    /// `CU_MEM_HANDLE_TYPE_*` bits it may be exported as.
    pub handle_types: u32,
    /// The pool of another process that was imported as this one: nothing is allocated from it here.
    pub imported: Option<SharedPool>,
    settings: Mutex<HashMap<u32, u64>>,
    access: Mutex<HashMap<sys::CUdevice, u32>>,
}

impl Pools {
    /// A new pool, which may be exported as `handle_types`.
    pub fn create(
        &self,
        devices: &Devices,
        device: sys::CUdevice,
        handle_types: u32,
    ) -> Result<Arc<Pool>> {
        devices.get(device)?;
        Ok(self.make(device, handle_types, None))
    }

    /// Imports a pool of another process.
    pub fn import(&self, devices: &Devices, given: SharedPool) -> Result<Arc<Pool>> {
        let device = devices.ordinal(given.device)?;
        Ok(self.make(device, sys::CU_MEM_HANDLE_TYPE_NONE, Some(given)))
    }

    fn make(
        &self,
        device: sys::CUdevice,
        handle_types: u32,
        imported: Option<SharedPool>,
    ) -> Arc<Pool> {
        let handle = handles::fresh();
        let pool = Arc::new(Pool {
            handle,
            device,
            handle_types,
            imported,
            settings: Mutex::default(),
            access: Mutex::default(),
        });
        self.table.insert(handle, pool.clone());
        pool
    }

    /// A device's default pool.
    pub fn default_of(&self, devices: &Devices, device: sys::CUdevice) -> Result<Arc<Pool>> {
        let mut defaults = self.defaults.lock();
        if let Some(pool) = defaults.get(&device) {
            return Ok(pool.clone());
        }
        let pool = self.create(devices, device, sys::CU_MEM_HANDLE_TYPE_NONE)?;
        defaults.insert(device, pool.clone());
        Ok(pool)
    }

    /// The pool a device uses.
    pub fn of(&self, devices: &Devices, device: sys::CUdevice) -> Result<Arc<Pool>> {
        let used = self.used.lock().get(&device).cloned();
        used.map_or_else(|| self.default_of(devices, device), Ok)
    }

    /// Sets the pool a device uses.
    pub fn set(&self, devices: &Devices, device: sys::CUdevice, pool: sys::CUmemoryPool) -> Result {
        devices.get(device)?;
        let pool = self.get_own(pool)?;
        self.used.lock().insert(device, pool);
        Ok(())
    }

    /// The pool behind a handle.
    pub fn get(&self, pool: sys::CUmemoryPool) -> Result<Arc<Pool>> {
        self.table
            .get(handles::of(pool), sys::CUDA_ERROR_INVALID_VALUE)
    }

    /// As [`Pools::get`], but refuses imported pools, from which nothing can be allocated.
    pub fn get_own(&self, pool: sys::CUmemoryPool) -> Result<Arc<Pool>> {
        let pool = self.get(pool)?;
        match pool.imported {
            Some(_) => Err(sys::CUDA_ERROR_INVALID_VALUE),
            None => Ok(pool),
        }
    }

    /// Ends a pool that was created; devices that used it go back to their default one.
    pub fn destroy(&self, pool: sys::CUmemoryPool) -> Result {
        let pool = self.get(pool)?;
        if self
            .defaults
            .lock()
            .values()
            .any(|default| default.handle == pool.handle)
        {
            return Err(sys::CUDA_ERROR_INVALID_VALUE);
        }
        self.used
            .lock()
            .retain(|_, used| used.handle != pool.handle);
        self.table
            .remove(pool.handle, sys::CUDA_ERROR_INVALID_VALUE)
            .map(|_| ())
    }
}

impl Pool {
    /// A setting that the program has made.
    pub fn setting(&self, attribute: u32) -> Option<u64> {
        self.settings.lock().get(&attribute).copied()
    }

    /// Makes a setting.
    pub fn set(&self, attribute: u32, value: u64) {
        self.settings.lock().insert(attribute, value);
    }

    /// How a device may reach the pool's memory.
    pub fn access(&self, device: sys::CUdevice) -> u32 {
        let own = if device == self.device {
            sys::CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        } else {
            sys::CU_MEM_ACCESS_FLAGS_PROT_NONE
        };
        self.access.lock().get(&device).copied().unwrap_or(own)
    }

    /// Devices that may read and write the pool's memory, beside its own.
    pub fn reached_by(&self) -> Vec<sys::CUdevice> {
        let access = self.access.lock();
        let reach = access
            .iter()
            .filter(|(_, flags)| **flags == sys::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        reach.map(|(device, _)| *device).collect()
    }

    /// Sets how a device may reach the pool's memory.
    pub fn set_access(&self, device: sys::CUdevice, flags: u32) {
        self.access.lock().insert(device, flags);
    }
}
