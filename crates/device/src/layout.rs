//! Which device address an allocation gets. Pure: no driver, no physical memory.
//!
//! ```text
//!  DEVICE_BASE                                                                  DEVICE_END
//!  │ device 0, 320 GiB │ device 1 │ ... │ device 7 │ reservations made by the program     │
//!    ├ large: pages of their own, 2 MiB granularity
//!    └ small: 512-byte pieces of shared 2 MiB slabs
//! ```
//! An address tells its device. A layout is rebuilt from the live allocations alone.

use std::collections::BTreeMap;

use fermata_abi::op::{DEVICE_BASE, DEVICE_END};

use crate::ranges::Ranges;

/// Most devices in one session.
pub const MAX_DEVICES: u32 = 8;
/// Addresses of one device.
pub const DEVICE_SPAN: u64 = 320 << 30;
/// First address of reservations.
pub const RESERVED_BASE: u64 = DEVICE_BASE.raw() + MAX_DEVICES as u64 * DEVICE_SPAN;
/// Physical memory is mapped in multiples of this.
pub const PAGE: u64 = 2 << 20;
/// Allocations of at least this size have pages of their own.
pub const LARGE: u64 = 1 << 20;
const SMALL_ALIGN: u64 = 512;

/// Where an allocation lies, and which pages must be mapped before it can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Its address.
    pub address: u64,
    /// Address and length of pages to be mapped now.
    pub map: Option<(u64, u64)>,
}

/// Why an address cannot be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// No room for that many bytes.
    #[error("no room for {0} bytes in the device's address range")]
    Full(u64),
    /// Not an allocation.
    #[error("{0:#x} is not an allocation")]
    Unknown(u64),
    /// The address asked for is taken or out of range.
    #[error("{size} bytes at {address:#x} are taken or out of range")]
    Taken {
        /// The address.
        address: u64,
        /// Bytes.
        size: u64,
    },
}

/// Layout of one device's addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    device: u32,
    pages: Ranges,
    small: Ranges,
    /// Bytes in use in each slab.
    slabs: BTreeMap<u64, u64>,
    /// Address and bytes as asked for.
    live: BTreeMap<u64, u64>,
    /// One slab that is mapped with nothing in it, so that a program that makes and frees one small
    /// buffer in a loop does not map and unmap each time.
    spare: Option<u64>,
}

/// The device whose allocations lie at `address`.
pub fn device_of(address: u64) -> Option<u32> {
    let index = address.checked_sub(DEVICE_BASE.raw())? / DEVICE_SPAN;
    (index < u64::from(MAX_DEVICES)).then_some(index as u32)
}

/// Bytes that an allocation of `size` takes.
pub(crate) fn footprint(size: u64) -> Option<u64> {
    size.max(1)
        .checked_next_multiple_of(if size >= LARGE { PAGE } else { SMALL_ALIGN })
}

impl Layout {
    /// An empty layout of device `device`, which must be below [`MAX_DEVICES`].
    pub fn new(device: u32) -> Self {
        let base = DEVICE_BASE.raw() + u64::from(device) * DEVICE_SPAN;
        Self {
            device,
            pages: Ranges::new(base, DEVICE_SPAN),
            small: Ranges::within(PAGE),
            slabs: BTreeMap::new(),
            live: BTreeMap::new(),
            spare: None,
        }
    }

    /// The device.
    pub fn device(&self) -> u32 {
        self.device
    }

    /// Live allocations: address and bytes asked for.
    pub fn live(&self) -> impl Iterator<Item = (u64, u64)> {
        self.live.iter().map(|(address, size)| (*address, *size))
    }

    /// The allocation that contains `address`.
    pub fn containing(&self, address: u64) -> Option<(u64, u64)> {
        let (start, size) = self.live.range(..=address).next_back()?;
        (address - start < (*size).max(1)).then_some((*start, *size))
    }

    /// Places `size` bytes.
    ///
    /// # Errors
    /// [`LayoutError::Full`].
    pub fn place(&mut self, size: u64) -> Result<Placement, LayoutError> {
        let full = LayoutError::Full(size);
        let room = footprint(size).ok_or(full)?;
        let placement = if size >= LARGE {
            let address = self.pages.take(room, PAGE).ok_or(full)?;
            Placement {
                address,
                map: Some((address, room)),
            }
        } else if let Some(address) = self.small.take(room, SMALL_ALIGN) {
            Placement { address, map: None }
        } else {
            let slab = self.pages.take(PAGE, PAGE).ok_or(full)?;
            self.slabs.insert(slab, 0);
            self.small.insert(slab, PAGE);
            let address = self.small.take(room, SMALL_ALIGN).ok_or(full)?;
            Placement {
                address,
                map: Some((slab, PAGE)),
            }
        };
        self.record(placement.address, size, room);
        Ok(placement)
    }

    /// Places `size` bytes at `address`, as in an earlier life.
    ///
    /// # Errors
    /// [`LayoutError::Taken`].
    pub fn place_at(&mut self, address: u64, size: u64) -> Result<Placement, LayoutError> {
        let taken = LayoutError::Taken { address, size };
        let room = footprint(size).ok_or(taken)?;
        let align = if size >= LARGE { PAGE } else { SMALL_ALIGN };
        if device_of(address) != Some(self.device) || !address.is_multiple_of(align) {
            return Err(taken);
        }
        let mut map = None;
        if size >= LARGE {
            if !self.pages.take_at(address, room) {
                return Err(taken);
            }
            map = Some((address, room));
        } else {
            let slab = address / PAGE * PAGE;
            if address + room > slab + PAGE {
                return Err(taken);
            }
            if !self.slabs.contains_key(&slab) {
                if !self.pages.take_at(slab, PAGE) {
                    return Err(taken);
                }
                self.slabs.insert(slab, 0);
                self.small.insert(slab, PAGE);
                map = Some((slab, PAGE));
            }
            if !self.small.take_at(address, room) {
                return Err(taken);
            }
        }
        self.record(address, size, room);
        Ok(Placement { address, map })
    }

    fn record(&mut self, address: u64, size: u64, room: u64) {
        self.live.insert(address, size);
        if size < LARGE
            && let Some(used) = self.slabs.get_mut(&(address / PAGE * PAGE))
        {
            *used += room;
            self.spare = self.spare.filter(|slab| *slab != address / PAGE * PAGE);
        }
    }

    /// Undoes a placement whose pages at `pages` could not be mapped.
    pub(crate) fn abandon(&mut self, address: u64, pages: u64) {
        let spare = self.spare.replace(0);
        let removed = self.remove(address);
        debug_assert!(
            matches!(removed, Ok((_, Some((at, _)))) if at == pages),
            "a fresh page has one user"
        );
        self.spare = spare;
    }

    /// Takes an allocation out; the answer is its size and the pages to be unmapped now, if any.
    ///
    /// # Errors
    /// [`LayoutError::Unknown`].
    pub fn remove(&mut self, address: u64) -> Result<(u64, Option<(u64, u64)>), LayoutError> {
        let size = self
            .live
            .remove(&address)
            .ok_or(LayoutError::Unknown(address))?;
        let room = footprint(size).ok_or(LayoutError::Unknown(address))?;
        if size >= LARGE {
            self.pages.insert(address, room);
            return Ok((size, Some((address, room))));
        }
        let slab = address / PAGE * PAGE;
        self.small.insert(address, room);
        let used = self
            .slabs
            .get_mut(&slab)
            .ok_or(LayoutError::Unknown(address))?;
        *used -= room;
        if *used > 0 {
            return Ok((size, None));
        }
        if self.spare.is_none() {
            self.spare = Some(slab);
            return Ok((size, None));
        }
        self.slabs.remove(&slab);
        self.small.remove(slab, PAGE);
        self.pages.insert(slab, PAGE);
        Ok((size, Some((slab, PAGE))))
    }
}

/// Layout of the addresses that programs reserve themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservations {
    free: Ranges,
    live: BTreeMap<u64, u64>,
}

impl Default for Reservations {
    fn default() -> Self {
        Self {
            free: Ranges::new(RESERVED_BASE, DEVICE_END.raw() - RESERVED_BASE),
            live: BTreeMap::new(),
        }
    }
}

impl Reservations {
    /// Reserves `size` bytes (rounded up to whole pages) at a multiple of `align`.
    ///
    /// # Errors
    /// [`LayoutError::Full`].
    pub fn reserve(&mut self, size: u64, align: u64) -> Result<u64, LayoutError> {
        let full = LayoutError::Full(size);
        let align = align.max(PAGE).checked_next_power_of_two().ok_or(full)?;
        let room = size.max(1).checked_next_multiple_of(PAGE).ok_or(full)?;
        let address = self.free.take(room, align).ok_or(full)?;
        self.live.insert(address, room);
        Ok(address)
    }

    /// Reserves exactly there.
    ///
    /// # Errors
    /// [`LayoutError::Taken`].
    pub fn reserve_at(&mut self, address: u64, size: u64) -> Result<(), LayoutError> {
        let taken = LayoutError::Taken { address, size };
        let room = size.max(1).checked_next_multiple_of(PAGE).ok_or(taken)?;
        if !address.is_multiple_of(PAGE) || !self.free.take_at(address, room) {
            return Err(taken);
        }
        self.live.insert(address, room);
        Ok(())
    }

    /// Gives a reservation back.
    ///
    /// # Errors
    /// [`LayoutError::Unknown`].
    pub fn release(&mut self, address: u64) -> Result<(), LayoutError> {
        let room = self
            .live
            .remove(&address)
            .ok_or(LayoutError::Unknown(address))?;
        self.free.insert(address, room);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn overlaps(live: &[(u64, u64)]) -> bool {
        live.windows(2)
            .any(|pair| pair[0].0 + footprint(pair[0].1).unwrap_or(0) > pair[1].0)
    }

    #[test]
    fn addresses_tell_their_device() {
        for device in [0, 3, 7] {
            let placed = Layout::new(device).place(100).expect("room");
            assert_eq!(device_of(placed.address), Some(device));
        }
        assert_eq!(device_of(RESERVED_BASE), None);
        assert_eq!(device_of(DEVICE_BASE.raw() - 1), None);
    }

    #[test]
    fn small_allocations_share_a_slab_and_do_not_cross_slabs() {
        let mut layout = Layout::new(0);
        let sizes = LARGE - 512;
        let placed: Vec<u64> = (0..5)
            .map(|_| layout.place(sizes).expect("room").address)
            .collect();
        assert!(
            placed
                .iter()
                .all(|address| address / PAGE == (address + sizes - 1) / PAGE)
        );
        assert_eq!(placed[0] / PAGE, placed[1] / PAGE);
        assert_ne!(placed[1] / PAGE, placed[2] / PAGE);
    }

    #[test]
    fn a_taken_address_is_refused() {
        let mut layout = Layout::new(0);
        let placed = layout.place(4 * PAGE).expect("room").address;
        assert!(layout.place_at(placed + PAGE, PAGE).is_err());
        assert!(layout.place_at(placed, 100).is_err());
        assert!(
            layout
                .place_at(DEVICE_BASE.raw() + DEVICE_SPAN - PAGE, 2 * PAGE)
                .is_err()
        );
        assert!(layout.place_at(DEVICE_BASE.raw() + 1, 100).is_err());
    }

    proptest! {
        #[test]
        fn live_allocations_never_overlap_and_can_be_placed_again(
            steps in prop::collection::vec((any::<bool>(), 0usize..64, prop_oneof![0u64..2000, 0u64..(9 << 20)]), 1..200),
        ) {
            let mut layout = Layout::new(1);
            let mut mapped: BTreeMap<u64, u64> = BTreeMap::new();
            for (free, pick, size) in steps {
                let live: Vec<_> = layout.live().collect();
                if free && !live.is_empty() {
                    let (address, size) = live[pick % live.len()];
                    let (freed, unmap) = layout.remove(address).expect("live");
                    prop_assert_eq!(freed, size);
                    if let Some((at, len)) = unmap {
                        prop_assert_eq!(mapped.remove(&at), Some(len));
                    }
                } else {
                    let placed = layout.place(size).expect("room");
                    if let Some((at, len)) = placed.map {
                        prop_assert!(mapped.insert(at, len).is_none());
                    }
                    let page = mapped.range(..=placed.address).next_back();
                    prop_assert!(page.is_some_and(|(at, len)| placed.address + size <= at + len));
                }
                let live: Vec<_> = layout.live().collect();
                prop_assert!(!overlaps(&live));
            }
            let mut again = Layout::new(1);
            for (address, size) in layout.live() {
                prop_assert_eq!(again.place_at(address, size).expect("free").address, address);
            }
            prop_assert_eq!(again.live().collect::<Vec<_>>(), layout.live().collect::<Vec<_>>());
        }

        #[test]
        fn everything_freed_is_one_range_again(sizes in prop::collection::vec(0u64..(5 << 20), 1..60)) {
            let mut layout = Layout::new(0);
            let placed: Vec<u64> = sizes.iter().map(|size| layout.place(*size).expect("room").address).collect();
            for address in placed {
                layout.remove(address).expect("live");
            }
            if let Some(slab) = layout.spare {
                layout.pages.insert(slab, PAGE);
            }
            prop_assert!(layout.pages.take(DEVICE_SPAN, PAGE).is_some());
        }
    }

    #[test]
    fn reservations_keep_to_their_part_and_alignment() {
        let mut reservations = Reservations::default();
        let a = reservations.reserve(3 * PAGE, 0).expect("room");
        let b = reservations.reserve(PAGE, 1 << 30).expect("room");
        assert!(a >= RESERVED_BASE && b % (1 << 30) == 0);
        assert!(reservations.reserve_at(a, PAGE).is_err());
        reservations.release(a).expect("live");
        reservations.reserve_at(a, PAGE).expect("free again");
        assert!(reservations.release(a + PAGE).is_err());
    }
}
