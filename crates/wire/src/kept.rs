//! What threads have staged, while the program has no memory file: bytes in private memory, for the next file.
//!
//! A stop waits for both copies of it. So each byte is copied once in either direction, the pages of the private memory are made with
//! one call, and the next file is written by system calls, which need no pages of a mapping. A program that goes on with its worker
//! comes back to the file that it has let go of, where the bytes still are. It knows it by a name, made anew each time, that is in the
//! header from then on until it comes back.

use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::layout::{KEPT_AT, KEPT_BYTES};
use crate::shm::write_at;
use crate::{StagedArea, WireError};

/// Of the processors; with larger pages none of memory that was made ready is given back early.
const PAGE: usize = 4096;

/// Of what was kept; 0 is none.
type Name = [u8; KEPT_BYTES];

/// A name that nothing else has; none if the system has no random numbers.
fn new_name() -> Name {
    let mut name = Name::default();
    match getrandom(&mut name[..], GetRandomFlags::NONBLOCK) {
        Ok(KEPT_BYTES) => name,
        _ => Name::default(),
    }
}

/// Names what lies in a staging area; `Name::default()`: it may change from now on.
pub(crate) fn name(area: &StagedArea, name: Name) {
    area.0.write(KEPT_AT as u64, &name);
}

fn name_of(area: &StagedArea) -> Name {
    let mut name = Name::default();
    area.0.read(KEPT_AT as u64, &mut name);
    name
}

/// What a producer keeps, and memory for it.
#[derive(Debug, Default)]
pub(crate) struct Keeping {
    /// What is staged, while there is no memory file.
    pub kept: Option<Kept>,
    /// Memory for the next stop, made while threads ran.
    pub ready: Option<Private>,
    /// What has been written to a memory file again, until somebody has time to free it.
    pub spent: Option<Kept>,
}

/// Ranges of a staging area, with their bytes.
#[derive(Debug)]
pub(crate) struct Kept {
    /// In the file that it was copied from.
    name: Name,
    /// Offset of each range in the area, and its bytes, which lie in `memory` in this order.
    ranges: Vec<(u64, usize)>,
    /// None if there are no ranges.
    memory: Option<Private>,
}

impl Kept {
    /// Copies these ranges, offset and bytes each, into memory that is `ready`, if that is enough, and names what lies in `area`, which
    /// nobody may write to any more.
    ///
    /// # Errors
    /// A range is not in the area, or the system has no memory left.
    pub fn copy(
        area: &StagedArea,
        ranges: &[(u64, u64)],
        ready: &mut Option<Private>,
    ) -> Result<Self, WireError> {
        let ranges: Vec<(u64, usize)> = ranges.iter().map(|it| (it.0, it.1 as usize)).collect();
        let total = NonZeroUsize::new(ranges.iter().map(|it| it.1).sum());
        let mut memory = match total {
            None => None,
            Some(total) => {
                // What is not used is freed when nobody waits for it.
                let enough = ready.take_if(|it| it.bytes >= total.get());
                let cut = enough.and_then(|it| it.cut_to(total));
                Some(cut.map_or_else(|| Private::new(total), Ok)?)
            }
        };
        let mut rest = memory.as_mut().map_or(&mut [][..], Private::bytes_mut);
        for (offset, len) in &ranges {
            let (bytes, behind) = rest.split_at_mut(*len);
            area.read(*offset, bytes)?;
            rest = behind;
        }
        let made = new_name();
        name(area, made);
        Ok(Self {
            name: made,
            ranges,
            memory,
        })
    }

    /// Whether the file of `area` is the one that this was copied from, and has not changed since.
    pub fn is_in(&self, area: &StagedArea) -> bool {
        self.name != Name::default() && name_of(area) == self.name
    }

    /// Writes the ranges to a memory file whose staging area is at `staging`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_to(&self, file: BorrowedFd<'_>, staging: u64) -> Result<(), WireError> {
        let mut rest = self.memory.as_ref().map_or(&[][..], Private::bytes);
        for (offset, len) in &self.ranges {
            let (bytes, behind) = rest.split_at(*len);
            write_at(file, bytes, staging + offset, "write what is staged")?;
            rest = behind;
        }
        Ok(())
    }
}

/// Memory of this process alone.
#[derive(Debug)]
pub(crate) struct Private {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: plain memory owned by this value.
unsafe impl Send for Private {}
// SAFETY: it is written through `&mut` only.
unsafe impl Sync for Private {}

impl Private {
    /// Pages for so many bytes.
    ///
    /// # Errors
    /// The system has no memory left.
    pub fn new(bytes: NonZeroUsize) -> Result<Self, WireError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes.get(),
                protection,
                MapFlags::PRIVATE,
            )
        }
        .map_err(|errno| WireError::io("keep what is staged", errno))?;
        // No huge pages: a system that has to move memory for them took 40 ms.
        let advice = rustix::mm::Advice::LinuxPopulateWrite;
        // SAFETY: the range is the new mapping. A system that does not know the advice makes pages as they are touched.
        let _ = unsafe { rustix::mm::madvise(start, bytes.get(), advice) };
        let start = NonNull::new(start.cast());
        let start = start.ok_or(WireError::Layout("it was mapped at address 0"))?;
        Ok(Self {
            start,
            bytes: bytes.get(),
        })
    }

    /// So many of its first bytes, of as many or more, without the pages behind them; `None` if those cannot be given back.
    fn cut_to(mut self, bytes: NonZeroUsize) -> Option<Self> {
        let whole = bytes.get().checked_next_multiple_of(PAGE)?;
        let mapped = self.bytes.next_multiple_of(PAGE);
        if whole < mapped {
            // SAFETY: the pages behind the first `whole` bytes are of the mapping, and nothing borrows from it. If it fails, they
            // stay until the mapping goes.
            let cut = unsafe {
                rustix::mm::munmap(self.start.as_ptr().add(whole).cast(), mapped - whole)
            };
            if cut.is_err() {
                return None;
            }
        }
        self.bytes = bytes.get();
        Some(self)
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has that many bytes, and is never written through another reference meanwhile.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; this reference is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::layout::Layout;
    use crate::{Config, create};

    #[test]
    fn ranges_come_back_in_another_file() {
        let config = Config::default();
        let files = [(); 2].map(|()| create(&config).expect("a file"));
        let [from, to] = files
            .each_ref()
            .map(|file| StagedArea::open(file.as_fd()).expect("mapped"));
        let staging = Layout::new(&config).expect("sizes in range").staging;
        let byte = |at: u64| (at * 7 + (at >> 12)) as u8;
        let all: Vec<u8> = (0..from.bytes()).map(byte).collect();
        from.write(0, &all).expect("in the area");
        let ranges = [
            (64, 1),
            (4096, 0),
            (10_000, (5 << 20) + 3),
            (from.bytes() - 64, 64),
        ];
        let kept = Kept::copy(&from, &ranges, &mut None).expect("copied");
        kept.write_to(files[1].as_fd(), staging).expect("written");
        let mut found = vec![0; all.len()];
        to.read(0, &mut found).expect("in the area");
        for (at, byte) in found.iter().enumerate() {
            let kept = ranges
                .iter()
                .any(|(start, len)| (*start..start + len).contains(&(at as u64)));
            assert_eq!(*byte, if kept { all[at] } else { 0 }, "at {at}");
        }
    }

    #[test]
    fn memory_that_was_made_before_is_used_if_it_is_enough() {
        let file = create(&Config::default()).expect("a file");
        let area = StagedArea::open(file.as_fd()).expect("mapped");
        area.write(0, &[7; 100_000]).expect("in the area");
        for (ready, used) in [(1_000_000, true), (100_000, true), (99_999, false)] {
            let ready = Private::new(NonZeroUsize::new(ready).expect("not 0")).expect("made");
            let (start, mut ready) = (ready.start, Some(ready));
            let kept = Kept::copy(&area, &[(0, 100_000)], &mut ready);
            let memory = kept.expect("copied").memory.expect("not nothing");
            assert_eq!((memory.start == start, ready.is_none()), (used, used));
            assert_eq!((memory.bytes, memory.bytes()), (100_000, &[7; 100_000][..]));
        }
    }

    #[test]
    fn a_file_is_known_until_its_staging_area_may_change() {
        let config = Config::default();
        let (file, other) = (
            create(&config).expect("a file"),
            create(&config).expect("a file"),
        );
        let [area, elsewhere] =
            [&file, &other].map(|it| StagedArea::open(it.as_fd()).expect("mapped"));
        let kept = Kept::copy(&area, &[(0, 100)], &mut None).expect("copied");
        assert!(kept.is_in(&area) && !kept.is_in(&elsewhere));
        crate::renew(file.as_fd(), &config).expect("made new");
        assert!(kept.is_in(&area));
        // Another program has let go of it since.
        let others = Kept::copy(&area, &[(0, 100)], &mut None).expect("copied");
        assert!(others.is_in(&area) && !kept.is_in(&area));
        crate::touch(file.as_fd(), &config);
        assert!(!others.is_in(&area));
        let nameless = Kept {
            name: Name::default(),
            ..others
        };
        assert!(!nameless.is_in(&elsewhere));
    }

    #[test]
    fn nothing_takes_no_memory() {
        let file = create(&Config::default()).expect("a file");
        let area = StagedArea::open(file.as_fd()).expect("mapped");
        let kept = Kept::copy(&area, &[], &mut None).expect("copied");
        assert!(kept.memory.is_none());
        kept.write_to(file.as_fd(), 0).expect("nothing to write");
    }
}
