//! Memory of devices, pinned and managed host memory, registered host memory.
//!
//! Everything the driver allocates lies in the window that kernels reach by plain pointers:
//!
//! ```text
//!   0x1000_0000_0000  device memory: own 2 MiB-aligned mappings, or 512-byte blocks of 2 MiB slabs
//!   0x1800_0000_0000  pinned host memory
//!   0x2000_0000_0000  managed memory
//!   0x2800_0000_0000  address reservations without a wish
//!   0x3000_0000_0000  address reservations at the address wished for (so may others be, where free)
//! ```
//!
//! Pages of freed memory are unmapped, so that a kernel which still uses them faults.

mod access;
mod evict;
mod map;
mod physical;
mod share;
mod space;
pub mod sys;
mod vmm;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fermata_abi::sys::driver as cu;
use parking_lot::RwLock;
use rustix::io::Errno;

pub use access::Side;
pub use evict::Saved;
pub use map::{Advice, Kind, Range};
pub use physical::Physical;
pub use share::Shared;
pub use sys::{Protection, memory_file};

use crate::device::{Charge, Device};
use crate::error::{CuError, INVALID_VALUE, OUT_OF_MEMORY, Result};
use crate::exec::{Reach, WINDOW_BASE, WINDOW_END};
use map::{Map, Placed};
use space::FreeRanges;

/// Unit in which device memory is mapped, and least granularity of VMM allocations.
pub const GRANULARITY: u64 = 2 << 20;
/// Alignment and unit of small allocations.
const BLOCK: u64 = 512;
/// Allocations above this get mappings of their own.
const SMALL: u64 = 1 << 20;

/// Where in the window a kind of memory is placed.
type Area = (u64, u64);
const DEVICE_AREA: Area = (WINDOW_BASE, 0x1800_0000_0000);
const HOST_AREA: Area = (0x1800_0000_0000, 0x2000_0000_0000);
const MANAGED_AREA: Area = (0x2000_0000_0000, 0x2800_0000_0000);
const RESERVE_AREA: Area = (0x2800_0000_0000, 0x3000_0000_0000);

/// All memory the driver knows.
#[derive(Debug)]
pub struct Memory {
    inner: RwLock<Inner>,
    next_id: AtomicU64,
}

#[derive(Debug)]
struct Inner {
    map: Map,
    /// Free addresses of the window.
    space: FreeRanges,
    /// Address reservations: start to length.
    reserved: BTreeMap<u64, u64>,
    /// Free blocks within the slabs of each device.
    blocks: HashMap<i32, FreeRanges>,
    /// What each mapping of device memory counts against its device.
    charges: HashMap<u64, Charge>,
    /// Files of the mappings that other processes may have.
    shared: BTreeMap<u64, OwnedFd>,
}

impl Default for Memory {
    fn default() -> Self {
        let inner = Inner {
            map: Map::default(),
            space: FreeRanges::new(WINDOW_BASE, WINDOW_END - WINDOW_BASE),
            reserved: BTreeMap::new(),
            blocks: HashMap::new(),
            charges: HashMap::new(),
            shared: BTreeMap::new(),
        };
        Self {
            inner: RwLock::new(inner),
            next_id: AtomicU64::new(1),
        }
    }
}

impl Memory {
    /// Allocates `size` bytes of a device's memory for `context` (0: for none).
    ///
    /// # Errors
    /// `size` is 0, or the device has not that much left.
    pub fn allocate(
        &self,
        device: &Arc<Device>,
        context: u64,
        size: u64,
        kind: Kind,
    ) -> Result<u64> {
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        let mut inner = self.inner.write();
        let (base, footprint) = if size <= SMALL {
            let len = size.next_multiple_of(BLOCK);
            (inner.allocate_block(device, len)?, len)
        } else {
            let len = size
                .checked_next_multiple_of(GRANULARITY)
                .ok_or(OUT_OF_MEMORY)?;
            (inner.allocate_mapping(device, len)?, len)
        };
        let placed = Placed {
            base,
            size,
            footprint,
        };
        let id = self.fresh_id();
        let range = Range::new(placed, kind, device.ordinal, context, id);
        inner.map.insert(range);
        Ok(base)
    }

    /// Allocates pinned or managed host memory.
    ///
    /// # Errors
    /// `size` is 0, or there are no addresses left.
    pub fn allocate_host(&self, device: i32, context: u64, size: u64, kind: Kind) -> Result<u64> {
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        let area = if matches!(kind, Kind::Managed { .. }) {
            MANAGED_AREA
        } else {
            HOST_AREA
        };
        let footprint = size
            .checked_next_multiple_of(sys::PAGE)
            .ok_or(OUT_OF_MEMORY)?;
        let mut inner = self.inner.write();
        let align = if footprint >= GRANULARITY {
            GRANULARITY
        } else {
            sys::PAGE
        };
        let base = inner.map_somewhere(footprint, align, area, Protection::ReadWrite)?;
        let id = self.fresh_id();
        inner.map.insert(Range::new(
            Placed {
                base,
                size,
                footprint,
            },
            kind,
            device,
            context,
            id,
        ));
        Ok(base)
    }

    /// Registers host memory of the program, so that kernels may use it.
    ///
    /// # Errors
    /// Nothing is mapped there, or a part is registered already.
    pub fn register(&self, device: i32, context: u64, base: u64, size: u64, flags: u32) -> Result {
        if size == 0 || base == 0 || !is_mapped(base, size) {
            return Err(INVALID_VALUE);
        }
        let mut inner = self.inner.write();
        if inner.map.overlapping(base, size).next().is_some() {
            return Err(CuError(cu::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED));
        }
        let (kind, id) = (Kind::Registered { flags }, self.fresh_id());
        inner.map.insert(Range::new(
            Placed {
                base,
                size,
                footprint: 0,
            },
            kind,
            device,
            context,
            id,
        ));
        Ok(())
    }

    /// Forgets the range that begins at `base` if `may` agrees, and unmaps what the driver mapped.
    ///
    /// # Errors
    /// No such range, or `may` does not agree.
    pub fn free(&self, base: u64, may: impl FnOnce(&Range) -> bool) -> Result<Range> {
        let mut inner = self.inner.write();
        if !inner.map.at(base).is_some_and(may) {
            return Err(INVALID_VALUE);
        }
        inner.discard(base).ok_or(INVALID_VALUE)
    }

    /// Marks the range that begins at `base` as freed by the program, if `may` agrees.
    ///
    /// # Errors
    /// No such range, `may` does not agree, or it is marked already.
    pub fn retire(&self, base: u64, may: impl FnOnce(&Range) -> bool) -> Result<Range> {
        let mut inner = self.inner.write();
        let range = inner
            .map
            .at_mut(base)
            .filter(|range| !range.retired)
            .ok_or(INVALID_VALUE)?;
        if !may(range) {
            return Err(INVALID_VALUE);
        }
        range.retired = true;
        Ok(range.clone())
    }

    /// Frees everything that belongs to a context.
    pub fn free_context(&self, context: u64) {
        let mut inner = self.inner.write();
        for base in inner.map.of_context(context) {
            inner.discard(base);
        }
    }

    /// Frees all memory of a device's pools, and returns the ranges.
    pub fn free_pools(&self, device: i32) -> Vec<Range> {
        let mut inner = self.inner.write();
        let pooled =
            |range: &&Range| range.device == device && matches!(range.kind, Kind::Pool { .. });
        let bases: Vec<u64> = inner
            .map
            .iter()
            .filter(pooled)
            .map(|range| range.base)
            .collect();
        bases
            .into_iter()
            .filter_map(|base| inner.discard(base))
            .collect()
    }

    /// The range that `address` lies in.
    pub fn find(&self, address: u64) -> Option<Range> {
        self.inner.read().map.find(address).cloned()
    }

    /// Sets or clears `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
    ///
    /// # Errors
    /// The address is unknown.
    pub fn set_sync_memops(&self, address: u64, on: bool) -> Result {
        let mut inner = self.inner.write();
        let base = inner.map.find(address).ok_or(INVALID_VALUE)?.base;
        inner.map.at_mut(base).ok_or(INVALID_VALUE)?.sync_memops = on;
        Ok(())
    }

    /// Changes the advice for the range that `address` lies in.
    ///
    /// # Errors
    /// The address is unknown.
    pub fn advise(&self, address: u64, change: impl FnOnce(&mut Advice)) -> Result {
        let mut inner = self.inner.write();
        let base = inner.map.find(address).ok_or(INVALID_VALUE)?.base;
        change(&mut inner.map.at_mut(base).ok_or(INVALID_VALUE)?.advice);
        Ok(())
    }

    /// The advice for the range that `address` lies in.
    ///
    /// # Errors
    /// The address is unknown.
    pub fn advice(&self, address: u64) -> Result<Advice> {
        self.find(address)
            .map(|range| range.advice)
            .ok_or(INVALID_VALUE)
    }

    /// Whether all of the range is known and allows this access.
    pub fn covers(&self, address: u64, len: u64, needed: Protection) -> bool {
        self.inner.read().map.covers(address, len, needed)
    }

    /// The registered memory around `address`: outside the window, kernels may access nothing else.
    pub fn registered(&self, address: u64) -> Option<Reach> {
        let inner = self.inner.read();
        let range = inner.map.find(address)?;
        match range.kind {
            Kind::Registered { flags } => Some(Reach {
                range: range.base..range.base + range.size,
                writable: flags & cu::CU_MEMHOSTREGISTER_READ_ONLY == 0,
            }),
            _ => None,
        }
    }

    fn fresh_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }
}

impl Inner {
    /// Maps fresh memory at free addresses of `area`.
    fn map_somewhere(
        &mut self,
        len: u64,
        align: u64,
        area: Area,
        protection: Protection,
    ) -> Result<u64> {
        loop {
            let base = self
                .space
                .allocate(len, align, area.0, area.1)
                .ok_or(OUT_OF_MEMORY)?;
            match sys::map_fresh(base, len, protection) {
                Ok(()) => return Ok(base),
                // Another mapping of the process lies there: these addresses stay unused.
                Err(Errno::EXIST) => {}
                Err(_) => {
                    self.space.give(base, len);
                    return Err(OUT_OF_MEMORY);
                }
            }
        }
    }

    /// A mapping of its own, counted against the device.
    fn allocate_mapping(&mut self, device: &Arc<Device>, len: u64) -> Result<u64> {
        let charge = device.charge(len)?;
        let base = self.map_somewhere(len, GRANULARITY, DEVICE_AREA, Protection::ReadWrite)?;
        self.charges.insert(base, charge);
        Ok(base)
    }

    /// A block of a slab; a new slab if need be.
    fn allocate_block(&mut self, device: &Arc<Device>, len: u64) -> Result<u64> {
        let (low, high) = DEVICE_AREA;
        let free = self.blocks.entry(device.ordinal).or_default();
        if let Some(base) = free.allocate(len, BLOCK, low, high) {
            return Ok(base);
        }
        let slab = self.allocate_mapping(device, GRANULARITY)?;
        let free = self.blocks.entry(device.ordinal).or_default();
        free.give(slab, GRANULARITY);
        free.allocate(len, BLOCK, low, high).ok_or(OUT_OF_MEMORY)
    }

    /// Removes a range, and releases its memory and addresses.
    fn discard(&mut self, base: u64) -> Option<Range> {
        let range = self.map.remove(base)?;
        match range.kind {
            Kind::Registered { .. } => {}
            // The reservation stays.
            Kind::Mapped { .. } => {
                let _ = sys::reset_to_reserved(base, range.footprint);
            }
            Kind::Device | Kind::Pool { .. } | Kind::Graph if range.footprint <= SMALL => {
                self.free_block(range.device, base, range.footprint);
            }
            _ => self.unmap(base, range.footprint),
        }
        Some(range)
    }

    fn unmap(&mut self, base: u64, len: u64) {
        self.charges.remove(&base);
        self.shared.remove(&base);
        // Addresses that could not be unmapped must not be handed out again.
        if sys::unmap(base, len).is_ok() {
            self.space.give(base, len);
        }
    }

    /// Releases a block, and the slabs that are free then.
    fn free_block(&mut self, device: i32, base: u64, len: u64) {
        let free = self.blocks.entry(device).or_default();
        free.give(base, len);
        let first = base - base % GRANULARITY;
        let last = base + len - 1;
        let mut empty = Vec::new();
        for slab in (first..=last).step_by(GRANULARITY as usize) {
            if free.is_free(slab, GRANULARITY) && free.take(slab, GRANULARITY) {
                empty.push(slab);
            }
        }
        for slab in empty {
            self.unmap(slab, GRANULARITY);
        }
    }
}

/// Whether every page of the range is mapped in this process.
fn is_mapped(base: u64, size: u64) -> bool {
    let first = base - base % sys::PAGE;
    let Some(end) = base
        .checked_add(size)
        .and_then(|end| end.checked_next_multiple_of(sys::PAGE))
    else {
        return false;
    };
    let mut residency = vec![0u8; 1 << 16];
    let step = residency.len() as u64 * sys::PAGE;
    (first..end).step_by(step as usize).all(|at| {
        let len = (end - at).min(step) as usize;
        // SAFETY: mincore reads nothing at the address; the vector has a byte for each page asked about.
        unsafe { libc::mincore(at as *mut libc::c_void, len, residency.as_mut_ptr()) == 0 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    fn device(memory: u64) -> Arc<Device> {
        Device::new(
            0,
            Arc::new(Settings {
                memory,
                ..Settings::default()
            }),
        )
    }

    // The window is the process's: tests share one `Memory`.
    fn memory() -> &'static Memory {
        static MEMORY: std::sync::LazyLock<Memory> = std::sync::LazyLock::new(Memory::default);
        &MEMORY
    }

    #[test]
    fn small_allocations_share_a_slab_and_the_last_frees_it() {
        let (memory, device) = (memory(), device(GRANULARITY));
        let a = memory.allocate(&device, 1, 1, Kind::Device).unwrap();
        let b = memory.allocate(&device, 1, 513, Kind::Device).unwrap();
        assert_eq!((a % 512, b % 512), (0, 0));
        assert_ne!(a, b);
        assert_eq!(device.used(), GRANULARITY);
        memory.free(a, |_| true).unwrap();
        assert_eq!(memory.free(a, |_| true).unwrap_err(), INVALID_VALUE);
        assert_eq!(device.used(), GRANULARITY);
        memory.free(b, |_| true).unwrap();
        assert_eq!(device.used(), 0);
        assert!(!is_mapped(a, 1));
    }

    #[test]
    fn memory_runs_out_for_real_and_comes_back() {
        let (memory, device) = (memory(), device(8 << 20));
        let a = memory.allocate(&device, 1, 6 << 20, Kind::Device).unwrap();
        assert_eq!(
            memory.allocate(&device, 1, 4 << 20, Kind::Device),
            Err(OUT_OF_MEMORY)
        );
        memory.free(a, |_| true).unwrap();
        let a = memory.allocate(&device, 1, 8 << 20, Kind::Device).unwrap();
        memory.free(a, |_| true).unwrap();
        assert_eq!(
            memory.allocate(&device, 1, u64::MAX - 5, Kind::Device),
            Err(OUT_OF_MEMORY)
        );
    }

    #[test]
    fn registering_twice_or_nothing_is_refused() {
        let memory = memory();
        let buffer = vec![0u8; 10_000];
        let base = buffer.as_ptr() as u64;
        memory.register(0, 1, base, 10_000, 0).unwrap();
        let reach = memory.registered(base + 9_990).unwrap();
        assert!(reach.allows(base + 9_990, 10, true));
        assert!(!reach.allows(base + 9_990, 11, true));
        assert_eq!(memory.registered(base + 10_000), None);
        let again = memory.register(0, 1, base + 5, 10, 0);
        assert_eq!(
            again,
            Err(CuError(cu::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED))
        );
        memory.free(base, |_| true).unwrap();
        assert_eq!(
            memory.register(0, 1, 0x10_0000, 4096, 0),
            Err(INVALID_VALUE)
        );
    }
}
