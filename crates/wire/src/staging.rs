//! The allocator of the staging area. It lives in the program; the worker only sees ranges.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::layout::STAGED_AT;
use crate::{StagedArea, WireError};

/// Ranges begin at multiples of this.
const ALIGN: u64 = 64;

/// Bytes of the area that a range of `len` takes.
fn size_of(len: u64) -> u64 {
    len.max(1)
        .checked_next_multiple_of(ALIGN)
        .unwrap_or(u64::MAX)
}

/// Hands out ranges of the staging area.
#[derive(Debug)]
pub(crate) struct StagingPool {
    area: StagedArea,
    free: Mutex<FreeList>,
    returned: Condvar,
    /// The end of the part that has been used.
    most: AtomicU64,
}

impl StagingPool {
    pub(crate) fn new(area: StagedArea) -> Self {
        let free = Mutex::new(FreeList::new(area.bytes()));
        Self {
            area,
            free,
            returned: Condvar::new(),
            most: AtomicU64::new(0),
        }
    }

    /// Bytes of the whole area.
    pub fn bytes(&self) -> u64 {
        self.area.bytes()
    }

    /// A range of `len` bytes; waits until enough has been given back. `alive` is asked now and then.
    ///
    /// A thread that holds a range must not wait for another: each of several threads could hold a part of the area and wait for more.
    ///
    /// # Errors
    /// [`WireError::TooLarge`] if the area is smaller than that; whatever `alive` says.
    pub fn alloc(
        &self,
        len: u64,
        alive: impl Fn() -> Result<(), WireError>,
    ) -> Result<Staged<'_>, WireError> {
        self.fits(len, size_of(len))?;
        self.wait_for(alive, |free| {
            Some(self.staged(free.take(size_of(len))?, len))
        })
    }

    /// As [`StagingPool::alloc`], without waiting; `None` if there is no room now.
    pub fn try_alloc(&self, len: u64) -> Result<Option<Staged<'_>>, WireError> {
        self.fits(len, size_of(len))?;
        let offset = self.lock().take(size_of(len));
        Ok(offset.map(|offset| self.staged(offset, len)))
    }

    /// As [`StagingPool::alloc`], for two ranges that come at the same moment.
    pub fn alloc_both(
        &self,
        (first, second): (u64, u64),
        alive: impl Fn() -> Result<(), WireError>,
    ) -> Result<(Staged<'_>, Staged<'_>), WireError> {
        let together = size_of(first).saturating_add(size_of(second));
        self.fits(first.saturating_add(second), together)?;
        self.wait_for(alive, |free| {
            // One range of the whole first: what is there in two parts only will join.
            let at = free.take(together)?;
            Some((
                self.staged(at, first),
                self.staged(at + size_of(first), second),
            ))
        })
    }

    fn fits(&self, bytes: u64, size: u64) -> Result<(), WireError> {
        let limit = self.area.bytes();
        if size > limit {
            let what = "staged range";
            return Err(WireError::TooLarge { what, bytes, limit });
        }
        Ok(())
    }

    /// A range that has been taken; the list is locked.
    fn staged(&self, offset: u64, len: u64) -> Staged<'_> {
        let pool = self;
        let end = offset + size_of(len);
        if end > self.most.load(Ordering::Relaxed) {
            self.most.store(end, Ordering::Relaxed);
            self.tell();
        }
        Staged { pool, offset, len }
    }

    fn wait_for<T>(
        &self,
        alive: impl Fn() -> Result<(), WireError>,
        take: impl Fn(&mut FreeList) -> Option<T>,
    ) -> Result<T, WireError> {
        let mut free = self.lock();
        loop {
            if let Some(taken) = take(&mut free) {
                return Ok(taken);
            }
            let slice = Duration::from_millis(40);
            let (guard, _) = self
                .returned
                .wait_timeout(free, slice)
                .unwrap_or_else(PoisonError::into_inner);
            // Others give ranges back meanwhile, however long that takes.
            drop(guard);
            alive()?;
            free = self.lock();
        }
    }

    /// Offsets and bytes of all that is handed out.
    pub fn in_use(&self) -> Vec<(u64, u64)> {
        self.lock().taken(self.area.bytes())
    }

    /// Tells in the memory file, which may be another one than the last time, how much has been used.
    pub fn tell(&self) {
        let word = self.area.0.fixed64::<STAGED_AT>();
        word.store(self.most.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Makes threads that wait for room look again, at the worker and for room.
    pub fn nudge(&self) {
        self.returned.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, FreeList> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A range of the staging area, given back when dropped: not before the worker has answered the
/// operation it went with.
#[derive(Debug)]
pub struct Staged<'p> {
    pool: &'p StagingPool,
    offset: u64,
    len: u64,
}

impl Staged<'_> {
    /// Offset in the area.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte; `len` bytes may be used until the range is dropped.
    pub fn address(&self) -> *mut u8 {
        self.pool
            .area
            .at(self.offset, self.len)
            .unwrap_or(std::ptr::null_mut())
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        self.pool.lock().give_back(self.offset, size_of(self.len));
        self.pool.returned.notify_all();
    }
}

/// Free ranges by offset, neighbours always joined. First fit.
#[derive(Debug)]
struct FreeList(BTreeMap<u64, u64>);

impl FreeList {
    fn new(bytes: u64) -> Self {
        Self(BTreeMap::from([(0, bytes)]))
    }

    fn take(&mut self, size: u64) -> Option<u64> {
        let (&offset, &len) = self.0.iter().find(|(_, len)| **len >= size)?;
        self.0.remove(&offset);
        if len > size {
            self.0.insert(offset + size, len - size);
        }
        Some(offset)
    }

    /// What is not free of an area of so many bytes.
    fn taken(&self, bytes: u64) -> Vec<(u64, u64)> {
        let (mut taken, mut at) = (Vec::new(), 0);
        let ends = self.0.iter().map(|(offset, len)| (*offset, *len));
        for (offset, len) in ends.chain([(bytes, 0)]) {
            if offset > at {
                taken.push((at, offset - at));
            }
            at = offset + len;
        }
        taken
    }

    fn give_back(&mut self, offset: u64, size: u64) {
        let (mut start, mut end) = (offset, offset + size);
        if let Some((&before, &len)) = self.0.range(..offset).next_back()
            && before + len == start
        {
            self.0.remove(&before);
            start = before;
        }
        if let Some(len) = self.0.remove(&end) {
            end += len;
        }
        self.0.insert(start, end - start);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_never_overlap_and_all_come_back(steps in prop::collection::vec((any::<bool>(), 1u64..40), 1..200)) {
            const BYTES: u64 = 64 * 256;
            let mut list = FreeList::new(BYTES);
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (take, n) in steps {
                if take {
                    let size = n * 64;
                    let Some(offset) = list.take(size) else { continue };
                    prop_assert!(offset + size <= BYTES);
                    prop_assert!(held.iter().all(|(o, s)| offset + size <= *o || o + s <= offset));
                    held.push((offset, size));
                } else if !held.is_empty() {
                    let (offset, size) = held.swap_remove(n as usize % held.len());
                    list.give_back(offset, size);
                }
            }
            let bytes = |ranges: &[(u64, u64)]| ranges.iter().map(|it| it.1).sum::<u64>();
            let taken = list.taken(BYTES);
            prop_assert_eq!(bytes(&taken), bytes(&held));
            prop_assert!(held.iter().all(|(o, s)| taken.iter().any(|(at, len)| at <= o && o + s <= at + len)));
            for (offset, size) in held {
                list.give_back(offset, size);
            }
            prop_assert_eq!(list.0, BTreeMap::from([(0, BYTES)]));
        }
    }
}
