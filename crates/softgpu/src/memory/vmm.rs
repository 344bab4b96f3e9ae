//! Virtual memory management: reserved addresses, and physical allocations mapped into them.
//!
//! ```text
//!   reserve ──► inaccessible ──map──► mapped, no access ──set_access──► readable / writable
//!      ▲            ▲                        │                                 │
//!      └─unreserve──┴────────────unmap───────┴─────────────────────────────────┘
//! ```

use std::sync::Arc;

use super::map::{Kind, Placed, Range};
use super::physical::Physical;
use super::{GRANULARITY, Memory, Protection, RESERVE_AREA, sys};
use crate::error::{CuError, INVALID_VALUE, OUT_OF_MEMORY, Result};
use crate::exec::{WINDOW_BASE, WINDOW_END};
use fermata_abi::sys::driver as cu;

impl Memory {
    /// Reserves addresses, at `wish` if they are free, else elsewhere.
    ///
    /// # Errors
    /// Size or alignment is wrong, or no addresses are left.
    pub fn reserve(&self, size: u64, align: u64, wish: u64) -> Result<u64> {
        let aligned = align == 0 || align.is_power_of_two();
        if size == 0 || !size.is_multiple_of(GRANULARITY) || !aligned {
            return Err(INVALID_VALUE);
        }
        let align = align.max(GRANULARITY);
        let mut inner = self.inner.write();
        if wish != 0 && wish.is_multiple_of(align) && inner.space.take(wish, size) {
            if sys::map_fresh(wish, size, Protection::None).is_ok() {
                inner.reserved.insert(wish, size);
                return Ok(wish);
            }
            inner.space.give(wish, size);
        }
        let base = inner
            .map_somewhere(size, align, RESERVE_AREA, Protection::None)
            .or_else(|_| {
                inner.map_somewhere(size, align, (WINDOW_BASE, WINDOW_END), Protection::None)
            })?;
        inner.reserved.insert(base, size);
        Ok(base)
    }

    /// Gives a reservation back.
    ///
    /// # Errors
    /// It is not one, or something is mapped in it.
    pub fn unreserve(&self, base: u64, size: u64) -> Result {
        let mut inner = self.inner.write();
        if inner.reserved.get(&base) != Some(&size)
            || inner.map.overlapping(base, size).next().is_some()
        {
            return Err(INVALID_VALUE);
        }
        inner.reserved.remove(&base);
        inner.unmap(base, size);
        Ok(())
    }

    /// Maps `size` bytes of `physical` from `offset` at a reserved address, without access.
    ///
    /// # Errors
    /// Not reserved, mapped already, misaligned, or larger than the allocation.
    pub fn map(&self, base: u64, size: u64, offset: u64, physical: Arc<Physical>) -> Result {
        let aligned =
            (base | size | offset).is_multiple_of(sys::PAGE) && base.is_multiple_of(GRANULARITY);
        if size == 0
            || !aligned
            || offset
                .checked_add(size)
                .is_none_or(|end| end > physical.size)
        {
            return Err(INVALID_VALUE);
        }
        let mut inner = self.inner.write();
        let (start, len) = inner
            .reserved
            .range(..=base)
            .next_back()
            .map(|(s, l)| (*s, *l))
            .ok_or(INVALID_VALUE)?;
        if base + size > start + len {
            return Err(INVALID_VALUE);
        }
        if inner.map.overlapping(base, size).next().is_some() {
            return Err(INVALID_VALUE);
        }
        sys::map_file(base, size, &physical.file, offset, Protection::None)
            .map_err(|_| CuError(cu::CUDA_ERROR_MAP_FAILED))?;
        let (device, id) = (physical.device, self.fresh_id());
        let kind = Kind::Mapped {
            physical,
            offset,
            access: Vec::new(),
        };
        let placed = Placed {
            base,
            size,
            footprint: size,
        };
        inner.map.insert(Range::new(placed, kind, device, 0, id));
        Ok(())
    }

    /// Unmaps everything in a reserved range, in which nothing need be mapped.
    ///
    /// # Errors
    /// It is not reserved, or a mapping sticks out of it.
    pub fn unmap(&self, base: u64, size: u64) -> Result {
        let mut inner = self.inner.write();
        let within = |(start, len): (&u64, &u64)| base + size <= start + len;
        let reserved = inner
            .reserved
            .range(..=base)
            .next_back()
            .is_some_and(within);
        if reserved && size > 0 && inner.map.overlapping(base, size).next().is_none() {
            return Ok(());
        }
        for start in inner.whole_mappings(base, size)? {
            inner.discard(start);
        }
        Ok(())
    }

    /// Sets what a location (device ordinal, or -1 for the host) may do with whole mappings.
    ///
    /// # Errors
    /// A part of the range is not mapped, or a mapping sticks out.
    pub fn set_access(
        &self,
        base: u64,
        size: u64,
        location: i32,
        protection: Protection,
    ) -> Result {
        let mut inner = self.inner.write();
        for start in inner.whole_mappings(base, size)? {
            let Some(range) = inner.map.at_mut(start) else {
                continue;
            };
            if let Kind::Mapped { access, .. } = &mut range.kind {
                access.retain(|(other, _)| *other != location);
                access.push((location, protection));
            }
            let (len, strongest) = (range.footprint, range.protection());
            sys::protect(start, len, strongest).map_err(|_| OUT_OF_MEMORY)?;
        }
        Ok(())
    }

    /// What a location may do at an address.
    ///
    /// # Errors
    /// Nothing is mapped there.
    pub fn access(&self, address: u64, location: i32) -> Result<Protection> {
        let range = self.find(address).ok_or(INVALID_VALUE)?;
        match &range.kind {
            Kind::Mapped { access, .. } => Ok(access
                .iter()
                .find(|(other, _)| *other == location)
                .map_or(Protection::None, |(_, protection)| *protection)),
            _ if range.device == location => Ok(Protection::ReadWrite),
            _ => Ok(Protection::None),
        }
    }
}

impl super::Inner {
    /// Starts of the mappings that make up the range exactly.
    fn whole_mappings(&self, base: u64, size: u64) -> Result<Vec<u64>> {
        let end = base.checked_add(size).ok_or(INVALID_VALUE)?;
        let mut at = base;
        let mut starts = Vec::new();
        while at < end {
            let range = self.map.at(at).ok_or(INVALID_VALUE)?;
            if !matches!(range.kind, Kind::Mapped { .. }) || at + range.size > end {
                return Err(INVALID_VALUE);
            }
            starts.push(at);
            at += range.size;
        }
        if starts.is_empty() {
            Err(INVALID_VALUE)
        } else {
            Ok(starts)
        }
    }
}
