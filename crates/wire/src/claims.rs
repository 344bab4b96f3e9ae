//! Which worker of a session stores which chunk of the image that all of them write: a table in shared memory.
//!
//! ```text
//!  daemon: create ─► descriptor ─► every worker: Claims::open with a number of its own
//!  worker: claim(id) ─┬─ nobody's yet ─► its own: it stores the chunk
//!                     └─ another's ────► that one does
//! ```
//! A claim lasts as long as the table, which serves one attempt at one image. The table is a hint: that every chunk of the image is
//! there must be checked when all workers have stored theirs. It has 48 bits of each id, and where many of those meet, no claim is made.

use std::num::NonZeroUsize;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};

use crate::WireError;
use crate::shm::map_shared;

/// Words of the smallest and the largest table; each is a power of two.
const LEAST: u64 = 1 << 12;
const MOST: u64 = 1 << 24;
const WORD: u64 = 8;
/// Places at which an id may be.
const PROBES: usize = 32;
/// The bits of a word that say whose it is.
const OWNER: u64 = 0xffff;

/// Memory for the claims of about `chunks` chunks, for [`Claims::open`].
///
/// # Errors
/// The system has no memory or descriptors left.
pub fn create(chunks: u64) -> Result<OwnedFd, WireError> {
    let words = chunks
        .saturating_mul(2)
        .clamp(LEAST, MOST)
        .next_power_of_two();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(c"fermata-claims", flags)
        .map_err(|errno| WireError::io("create the table of claims", errno))?;
    rustix::fs::ftruncate(&fd, words * WORD)
        .map_err(|errno| WireError::io("size the table of claims", errno))?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(|errno| WireError::io("seal the table of claims", errno))?;
    Ok(fd)
}

/// A table, as one worker sees it.
#[derive(Debug)]
pub struct Claims {
    words: NonNull<AtomicU64>,
    count: usize,
    owner: u64,
}

// SAFETY: the memory is this value's own, and is reached through atomics only, which any thread may do.
unsafe impl Send for Claims {}
// SAFETY: as above.
unsafe impl Sync for Claims {}

impl Claims {
    /// Maps the table; `owner` is this worker's number, not 0, which no other worker has.
    ///
    /// # Errors
    /// The descriptor is not one of [`create`], or cannot be mapped.
    pub fn open(fd: BorrowedFd<'_>, owner: u16) -> Result<Self, WireError> {
        let seals = rustix::fs::fcntl_get_seals(fd)
            .map_err(|errno| WireError::io("read the seals of the table of claims", errno))?;
        let stat = rustix::fs::fstat(fd)
            .map_err(|errno| WireError::io("size the table of claims", errno))?;
        let bytes = u64::try_from(stat.st_size).unwrap_or(0);
        let words = bytes / WORD;
        let fits = bytes.is_multiple_of(WORD) && words.is_power_of_two();
        if !seals.contains(SealFlags::SHRINK) || !fits || !(LEAST..=MOST).contains(&words) {
            return Err(WireError::Layout("it is no table of claims"));
        }
        if owner == 0 {
            return Err(WireError::Layout("a claim needs an owner"));
        }
        let length = usize::try_from(bytes)
            .ok()
            .and_then(NonZeroUsize::new)
            .ok_or(WireError::Layout("it is too large to map"))?;
        let base = map_shared(fd, length, "map the table of claims")?;
        Ok(Self {
            words: base.cast(),
            count: length.get() / WORD as usize,
            owner: u64::from(owner),
        })
    }

    /// Whether this worker is to store the chunk `id`: it claims it, unless another has.
    pub fn claim(&self, id: &[u8; 32]) -> bool {
        let (key, first) = parts(id);
        let own = key | self.owner;
        for probe in 0..PROBES {
            let word = self.word(first.wrapping_add(probe));
            // Nothing else is told by a word, so that no order of memory matters.
            let found = match word.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(found) => found,
            };
            if found & !OWNER == key {
                return found == own;
            }
        }
        true
    }

    /// Whether another worker has claimed the chunk `id`.
    pub fn is_of_another(&self, id: &[u8; 32]) -> bool {
        let (key, first) = parts(id);
        let words = (0..PROBES).map(|probe| self.word(first.wrapping_add(probe)));
        let words = words.map(|it| it.load(Ordering::Relaxed));
        let mut used = words.take_while(|it| *it != 0);
        let found = used.find(|it| it & !OWNER == key);
        found.is_some_and(|it| it & OWNER != self.owner)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: the index is below the number of words that are mapped, as long as this value lives.
        unsafe { self.words.add(at & (self.count - 1)).as_ref() }
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        // SAFETY: the range is this value's own mapping, and nothing refers to it any more.
        let _ =
            unsafe { rustix::mm::munmap(self.words.as_ptr().cast(), self.count * WORD as usize) };
    }
}

/// What a word has of an id, and where it is first looked for.
fn parts(id: &[u8; 32]) -> (u64, usize) {
    let number = |from: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&id[from..from + 8]);
        u64::from_le_bytes(bytes)
    };
    (number(0) & !OWNER, number(8) as usize)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn id(n: u32) -> [u8; 32] {
        let mut id = [0; 32];
        for (at, byte) in id.iter_mut().enumerate() {
            // Any mixture that spreads over all bytes.
            *byte = (n.wrapping_mul(2_654_435_761).rotate_left(at as u32) >> 7) as u8;
        }
        id
    }

    #[test]
    fn each_chunk_is_stored_by_one() {
        let fd = create(2000).expect("made");
        let workers: Vec<_> = (1..=4)
            .map(|owner| Claims::open(fd.as_fd(), owner).expect("opened"))
            .collect();
        let mut all = Vec::new();
        std::thread::scope(|scope| {
            let own = |worker: &Claims| -> Vec<u32> {
                (0..2000).filter(|n| worker.claim(&id(*n))).collect()
            };
            let threads = workers.iter().map(|it| scope.spawn(move || own(it)));
            let threads: Vec<_> = threads.collect();
            for thread in threads {
                all.extend(thread.join().expect("joined"));
            }
        });
        all.sort_unstable();
        assert_eq!(all, (0..2000).collect::<Vec<_>>());
        for n in 0..2000 {
            let id = id(n);
            let owners: Vec<_> = workers.iter().filter(|it| it.claim(&id)).collect();
            assert_eq!(owners.len(), 1, "it stays whose it is");
            let others = workers.iter().filter(|it| it.is_of_another(&id)).count();
            assert_eq!(others, 3);
        }
        assert!(!workers[0].is_of_another(&id(5000)), "nobody's");
    }

    #[test]
    fn where_many_ids_meet_each_worker_stores_its_own() {
        let fd = create(0).expect("made");
        let [one, other] = [1, 2].map(|owner| Claims::open(fd.as_fd(), owner).expect("opened"));
        let crowded = |n: u64| {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&(n << 16).to_le_bytes());
            id
        };
        for n in 1..=PROBES as u64 {
            assert!(one.claim(&crowded(n)) && !other.claim(&crowded(n)));
        }
        let late = crowded(1000);
        assert!(one.claim(&late) && other.claim(&late));
        assert!(!one.is_of_another(&late) && !other.is_of_another(&late));
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let fd = create(1).expect("made");
        Claims::open(fd.as_fd(), 0).expect_err("no owner");
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let other = rustix::fs::memfd_create(c"other", flags).expect("made");
        rustix::fs::ftruncate(&other, LEAST * WORD).expect("sized");
        Claims::open(other.as_fd(), 1).expect_err("it may shrink");
        rustix::fs::ftruncate(&other, 24).expect("sized");
        rustix::fs::fcntl_add_seals(&other, SealFlags::SHRINK).expect("sealed");
        Claims::open(other.as_fd(), 1).expect_err("too small");
    }
}
