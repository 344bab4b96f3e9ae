//! The map of every memory range that the driver knows, by address.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::physical::Physical;
use super::sys::Protection;

/// What a range of memory is.
#[derive(Debug, Clone)]
pub enum Kind {
    /// Device memory of `cuMemAlloc`, of module variables and the like.
    Device,
    /// Device memory of a pool.
    Pool {
        /// The pool's handle.
        pool: u64,
    },
    /// Device memory of an allocation node of a graph.
    Graph,
    /// Pinned host memory that the driver allocated.
    Host {
        /// `CU_MEMHOSTALLOC_*`
        flags: u32,
    },
    /// Host memory of the program that was registered; not in the window.
    Registered {
        /// `CU_MEMHOSTREGISTER_*`
        flags: u32,
    },
    /// Managed memory.
    Managed {
        /// `CU_MEM_ATTACH_*`
        attach: u32,
    },
    /// A physical allocation mapped into a reserved range.
    Mapped {
        /// What is mapped.
        physical: Arc<Physical>,
        /// From which byte of it.
        offset: u64,
        /// What each location may do: device ordinal (-1 is the host) and protection.
        access: Vec<(i32, Protection)>,
    },
}

/// The program's advice for a managed range. It has no effect but on queries.
#[derive(Debug, Clone, Default)]
pub struct Advice {
    /// Mostly read.
    pub read_mostly: bool,
    /// Preferred location: device ordinal, or -1 for the host.
    pub preferred: Option<i32>,
    /// Where it was prefetched to last.
    pub prefetched: Option<i32>,
    /// Devices that access it.
    pub accessed_by: BTreeSet<i32>,
}

/// A range of memory.
#[derive(Debug, Clone)]
pub struct Range {
    /// First address.
    pub base: u64,
    /// Bytes the program asked for.
    pub size: u64,
    /// Bytes of address space and memory it takes.
    pub footprint: u64,
    /// What it is.
    pub kind: Kind,
    /// Ordinal of the device it belongs to.
    pub device: i32,
    /// Handle of the context it belongs to; 0 for none.
    pub context: u64,
    /// `CU_POINTER_ATTRIBUTE_BUFFER_ID`: never used twice.
    pub id: u64,
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS` was set.
    pub sync_memops: bool,
    /// The program has freed it; it is removed in stream order.
    pub retired: bool,
    /// What was said about it.
    pub advice: Advice,
}

/// Where a range lies.
#[derive(Debug, Clone, Copy)]
pub struct Placed {
    /// First address.
    pub base: u64,
    /// Bytes the program asked for.
    pub size: u64,
    /// Bytes of address space and memory it takes.
    pub footprint: u64,
}

impl Range {
    /// Strongest access that any location has.
    pub fn protection(&self) -> Protection {
        match &self.kind {
            Kind::Mapped { access, .. } => access
                .iter()
                .map(|(_, protection)| *protection)
                .max()
                .unwrap_or(Protection::None),
            _ => Protection::ReadWrite,
        }
    }

    /// A range that nothing has been said about.
    pub fn new(placed: Placed, kind: Kind, device: i32, context: u64, id: u64) -> Self {
        let Placed {
            base,
            size,
            footprint,
        } = placed;
        let advice = Advice::default();
        Self {
            base,
            size,
            footprint,
            kind,
            device,
            context,
            id,
            sync_memops: false,
            retired: false,
            advice,
        }
    }

    /// Whether the program may use it by its address.
    pub fn visible_to_host(&self) -> bool {
        matches!(
            self.kind,
            Kind::Host { .. } | Kind::Registered { .. } | Kind::Managed { .. }
        )
    }

    /// Whether it is memory of a device rather than of the host.
    pub fn is_device(&self) -> bool {
        match &self.kind {
            Kind::Device | Kind::Pool { .. } | Kind::Graph | Kind::Managed { .. } => true,
            Kind::Mapped { physical, .. } => physical.device >= 0,
            Kind::Host { .. } | Kind::Registered { .. } => false,
        }
    }
}

/// All ranges.
#[derive(Debug, Default)]
pub struct Map {
    ranges: BTreeMap<u64, Range>,
}

impl Map {
    /// Adds a range. It must not overlap another.
    pub fn insert(&mut self, range: Range) {
        self.ranges.insert(range.base, range);
    }

    /// Takes the range that begins at `base` out.
    pub fn remove(&mut self, base: u64) -> Option<Range> {
        self.ranges.remove(&base)
    }

    /// The range that `address` lies in. One past the end is not in it.
    pub fn find(&self, address: u64) -> Option<&Range> {
        let (_, range) = self.ranges.range(..=address).next_back()?;
        (address - range.base < range.size.max(1)).then_some(range)
    }

    /// The range that begins at `base`.
    pub fn at(&self, base: u64) -> Option<&Range> {
        self.ranges.get(&base)
    }

    /// The range that begins at `base`, to be changed.
    pub fn at_mut(&mut self, base: u64) -> Option<&mut Range> {
        self.ranges.get_mut(&base)
    }

    /// Ranges that overlap `start..start + len`, in order.
    pub fn overlapping(&self, start: u64, len: u64) -> impl Iterator<Item = &Range> {
        let from = self.find(start).map_or(start, |range| range.base);
        self.ranges
            .range(from..start.saturating_add(len))
            .map(|(_, range)| range)
    }

    /// Whether all of `start..start + len` is known and allows this access. It may lie in several ranges that touch, such as
    /// mappings, but not in several allocations of device memory: one ends where it ends, whatever comes after it.
    pub fn covers(&self, start: u64, len: u64, needed: Protection) -> bool {
        let Some(end) = start.checked_add(len) else {
            return false;
        };
        let mut at = start;
        while at < end {
            match self.find(at) {
                Some(range) if range.protection() >= needed => {
                    let past = range.base + range.size;
                    let alone =
                        matches!(range.kind, Kind::Device | Kind::Pool { .. } | Kind::Graph);
                    if alone && (at > start || past < end) {
                        return false;
                    }
                    at = past;
                }
                _ => return false,
            }
        }
        true
    }

    /// All ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Range> {
        self.ranges.values()
    }

    /// Ranges of one context.
    pub fn of_context(&self, context: u64) -> Vec<u64> {
        self.ranges
            .values()
            .filter(|r| r.context == context)
            .map(|r| r.base)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(base: u64, size: u64, kind: Kind) -> Range {
        Range::new(
            Placed {
                base,
                size,
                footprint: size,
            },
            kind,
            0,
            1,
            base,
        )
    }

    #[test]
    fn coverage_crosses_ranges_that_touch_and_stops_at_gaps() {
        let mut map = Map::default();
        let host = || Kind::Registered { flags: 0 };
        map.insert(range(100, 50, host()));
        map.insert(range(150, 50, host()));
        map.insert(range(210, 10, host()));
        assert!(map.covers(120, 80, Protection::ReadWrite));
        assert!(!map.covers(120, 81, Protection::Read));
        assert!(!map.covers(99, 1, Protection::Read));
        assert!(map.find(199).is_some() && map.find(200).is_none());
        assert_eq!(map.overlapping(149, 62).count(), 3);
    }

    #[test]
    fn an_allocation_ends_where_another_begins() {
        let mut map = Map::default();
        map.insert(range(100, 50, Kind::Device));
        map.insert(range(150, 50, Kind::Device));
        assert!(map.covers(100, 50, Protection::ReadWrite));
        assert!(map.covers(150, 50, Protection::ReadWrite));
        assert!(!map.covers(100, 51, Protection::Read));
    }
}
