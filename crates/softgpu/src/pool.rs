//! Memory pools: memory that is allocated and freed in stream order.
//!
//! An allocation has its address at once; a free happens when the stream gets there. When memory runs out
//! while frees are still to come, the allocation waits for them.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use fermata_abi::sys::driver as cu;
use parking_lot::Mutex;

use crate::context::Context;
use crate::device::Device;
use crate::driver::Driver;
use crate::error::{INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY, Result};
use crate::handle::{self, Table, Tag};
use crate::memory::Kind;
use crate::opened;
use crate::stream::Stream;
use crate::work::Work;

/// A memory pool.
#[derive(Debug)]
pub struct Pool {
    /// Its handle.
    pub handle: u64,
    /// The device its memory is on.
    pub device: Arc<Device>,
    /// It is the device's default pool, which cannot be destroyed.
    pub default: bool,
    /// `CU_MEM_HANDLE_TYPE_*` bits it may be exported as.
    pub handle_types: u32,
    /// It is another process's: nothing is allocated from it here.
    pub imported: bool,
    /// `CU_MEMPOOL_ATTR_*` that were set.
    pub attributes: Mutex<HashMap<cu::CUmemPool_attribute, u64>>,
    /// Access of other devices, by ordinal.
    pub access: Mutex<HashMap<i32, cu::CUmemAccess_flags>>,
    usage: Mutex<Usage>,
}

/// Where a pool comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Created,
    Default,
    Imported,
}

#[derive(Debug, Default)]
struct Usage {
    now: u64,
    high: u64,
}

impl Driver {
    /// Memory pools.
    pub fn pools(&self) -> &'static Table<Pool> {
        static ALL: LazyLock<Table<Pool>> = LazyLock::new(Table::default);
        &ALL
    }
}

impl Pool {
    /// Makes a pool that may be exported as `handle_types`.
    pub fn create(driver: &Driver, device: &Arc<Device>, handle_types: u32) -> Arc<Self> {
        Self::make(driver, device, handle_types, Origin::Created)
    }

    /// Makes a pool for an imported pool of another process.
    pub fn import(driver: &Driver, device: &Arc<Device>) -> Arc<Self> {
        Self::make(driver, device, 0, Origin::Imported)
    }

    fn make(driver: &Driver, device: &Arc<Device>, handle_types: u32, origin: Origin) -> Arc<Self> {
        let pool = Arc::new(Self {
            handle: handle::fresh(Tag::Pool),
            device: Arc::clone(device),
            default: origin == Origin::Default,
            handle_types,
            imported: origin == Origin::Imported,
            attributes: Mutex::default(),
            access: Mutex::default(),
            usage: Mutex::default(),
        });
        driver.pools().insert(pool.handle, Arc::clone(&pool));
        pool
    }

    /// The device's default pool.
    pub fn default_of(driver: &Driver, device: &Arc<Device>) -> Arc<Self> {
        let mut pools = device.pools.lock();
        if let Some(pool) = driver.pools().get(pools.default) {
            return pool;
        }
        let pool = Self::make(driver, device, 0, Origin::Default);
        pools.default = pool.handle;
        pool
    }

    /// The pool that allocations on this device without a pool come from.
    pub fn current_of(driver: &Driver, device: &Arc<Device>) -> Arc<Self> {
        let current = device.pools.lock().current;
        driver
            .pools()
            .get(current)
            .unwrap_or_else(|| Self::default_of(driver, device))
    }

    /// The pool behind a handle.
    ///
    /// # Errors
    /// There is none.
    pub fn resolve(driver: &Driver, handle: cu::CUmemoryPool) -> Result<Arc<Self>> {
        driver
            .pools()
            .get(handle.addr() as u64)
            .ok_or(INVALID_HANDLE)
    }

    /// Allocates memory for use by work that follows in a stream.
    ///
    /// # Errors
    /// There is not enough, even when everything submitted so far is done, or the pool is another process's.
    pub fn allocate(&self, driver: &Driver, context: &Arc<Context>, bytes: u64) -> Result<u64> {
        if self.imported {
            return Err(INVALID_VALUE);
        }
        self.device.count_allocation()?;
        let kind = Kind::Pool { pool: self.handle };
        let allocate = || match self.handle_types {
            0 => driver.memory.allocate(&self.device, 0, bytes, kind.clone()),
            // It may be exported while work is under way.
            _ => driver
                .memory
                .allocate_shared(&self.device, bytes, kind.clone()),
        };
        let address = match allocate() {
            Err(OUT_OF_MEMORY) => {
                context.synchronize()?;
                allocate()?
            }
            other => other?,
        };
        let mut usage = self.usage.lock();
        usage.now += bytes;
        usage.high = usage.high.max(usage.now);
        Ok(address)
    }

    /// Frees memory when the stream gets there. It may also be memory that came from no pool, or from another process's.
    ///
    /// # Errors
    /// Nothing was allocated at this address, or it is freed already.
    pub fn free(driver: &Driver, stream: &Arc<Stream>, address: u64) -> Result {
        if opened::is_pooled(address) {
            stream.context.check()?;
            return match opened::close(address, true)? {
                Some(whole) => stream.submit(Work::Unmap(whole)).map(drop),
                None => Ok(()),
            };
        }
        let range = driver
            .memory
            .find(address)
            .filter(|r| r.base == address)
            .ok_or(INVALID_VALUE)?;
        // Memory of a graph stays for its next launch.
        if matches!(range.kind, Kind::Graph) {
            return Ok(());
        }
        stream.context.check()?;
        let id = driver
            .memory
            .retire(address, |r| {
                matches!(r.kind, Kind::Pool { .. } | Kind::Device)
            })?
            .id;
        stream.submit(Work::Free { address, id })?;
        if let Kind::Pool { pool } = range.kind
            && let Some(pool) = driver.pools().get(pool)
        {
            pool.freed(range.size);
        }
        Ok(())
    }

    /// Frees all memory of a device's pools.
    pub fn free_all(driver: &Driver, device: i32) {
        for range in driver.memory.free_pools(device) {
            // What the program has freed is counted already.
            if let Kind::Pool { pool } = range.kind
                && !range.retired
                && let Some(pool) = driver.pools().get(pool)
            {
                pool.freed(range.size);
            }
        }
    }

    /// Counts memory as no longer in use.
    pub fn freed(&self, bytes: u64) {
        let mut usage = self.usage.lock();
        usage.now = usage.now.saturating_sub(bytes);
    }

    /// Bytes in use, and the most there ever were.
    pub fn usage(&self) -> (u64, u64) {
        let usage = self.usage.lock();
        (usage.now, usage.high)
    }

    /// Starts counting the most anew.
    pub fn reset_high(&self) {
        let mut usage = self.usage.lock();
        usage.high = usage.now;
    }
}
