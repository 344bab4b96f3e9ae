//! The allocator of the staging area. It lives in the program; the worker only sees ranges.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{StagedArea, WireError};

/// Ranges begin at multiples of this.
const ALIGN: u64 = 64;

/// Hands out ranges of the staging area.
#[derive(Debug)]
pub(crate) struct StagingPool {
    area: StagedArea,
    free: Mutex<FreeList>,
    returned: Condvar,
}

impl StagingPool {
    pub(crate) fn new(area: StagedArea) -> Self {
        let free = Mutex::new(FreeList::new(area.bytes()));
        Self {
            area,
            free,
            returned: Condvar::new(),
        }
    }

    /// Bytes of the whole area.
    pub fn bytes(&self) -> u64 {
        self.area.bytes()
    }

    /// A range of `len` bytes; waits until enough has been given back. `alive` is asked now and then.
    ///
    /// # Errors
    /// [`WireError::TooLarge`] if the area is smaller than that; whatever `alive` says.
    pub fn alloc(
        &self,
        len: u64,
        alive: impl Fn() -> Result<(), WireError>,
    ) -> Result<Staged<'_>, WireError> {
        let size = len.max(1).next_multiple_of(ALIGN);
        if size > self.area.bytes() {
            let limit = self.area.bytes();
            return Err(WireError::TooLarge {
                what: "staged range",
                bytes: len,
                limit,
            });
        }
        let mut free = self.lock();
        loop {
            if let Some(offset) = free.take(size) {
                return Ok(Staged {
                    pool: self,
                    offset,
                    len,
                });
            }
            let slice = Duration::from_millis(40);
            let (guard, _) = self
                .returned
                .wait_timeout(free, slice)
                .unwrap_or_else(PoisonError::into_inner);
            free = guard;
            alive()?;
        }
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
        self.pool
            .lock()
            .give_back(self.offset, self.len.max(1).next_multiple_of(ALIGN));
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
            for (offset, size) in held {
                list.give_back(offset, size);
            }
            prop_assert_eq!(list.0, BTreeMap::from([(0, BYTES)]));
        }
    }
}
