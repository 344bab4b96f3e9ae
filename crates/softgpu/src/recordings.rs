//! The progress of an event that several processes record: counters in memory that these processes share.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | recordings that have begun; the number of each is what it has made of this |
//! | 8 | 4 | changes with every recording that is passed: what waits, waits for a change |
//! | 64 | 8 each | recordings that were passed: number `n` is in place `n % PLACES` |
//!
//! A recording has begun when the call that makes it returns, so another process that is told of the call afterwards waits for
//! this recording or a later one. A process that ends in the middle of a recording leaves it open, and waits for it go on.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex;

use crate::error::{INVALID_VALUE, OPERATING_SYSTEM, Result};

/// Recordings of which it is known whether they were passed, unless as many later ones were.
const PLACES: usize = 8184;
/// Bytes of the memory.
const LENGTH: usize = size_of::<Words>();
/// What its file is called.
const NAME: &str = "softgpu-event";

#[repr(C)]
struct Words {
    begun: AtomicU64,
    changes: AtomicU32,
    _reserved: [u32; 13],
    passed: [AtomicU64; PLACES],
}

/// See the module.
#[derive(Debug)]
pub struct Recordings {
    file: File,
    words: NonNull<Words>,
}

// SAFETY: the memory is reached only through atomics, and mapped as long as this lives.
unsafe impl Send for Recordings {}
// SAFETY: as above.
unsafe impl Sync for Recordings {}

impl Recordings {
    /// Those of a new event: none.
    ///
    /// # Errors
    /// The operating system has no memory.
    pub fn create() -> Result<Self> {
        let file = crate::memory::memory_file(NAME, LENGTH as u64);
        Self::map(File::from(file.map_err(|_| OPERATING_SYSTEM)?))
    }

    /// Those of an event of another process, whose [`Recordings::file`] and [`Recordings::number`] these are.
    ///
    /// # Errors
    /// The descriptor is another file's by now, or never was an event's.
    pub fn open(file: OwnedFd, number: u64) -> Result<Self> {
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let target = std::fs::read_link(link).map_err(|_| INVALID_VALUE)?;
        let file = File::from(file);
        let known = file.metadata().map_err(|_| INVALID_VALUE)?;
        let is_event = target
            .to_string_lossy()
            .starts_with(&format!("/memfd:{NAME} "));
        match is_event && known.len() == LENGTH as u64 && known.ino() == number {
            true => Self::map(file),
            false => Err(INVALID_VALUE),
        }
    }

    fn map(file: File) -> Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let anywhere = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let at = unsafe { mmap(anywhere, LENGTH, access, MapFlags::SHARED, &file, 0) };
        let at = at.map_err(|_| OPERATING_SYSTEM)?;
        let words = NonNull::new(at.cast()).ok_or(OPERATING_SYSTEM)?;
        Ok(Self { file, words })
    }

    fn words(&self) -> &Words {
        // SAFETY: the mapping has the size of this, begins at a page, was zeroed, which is a value of each atomic, and lives as
        // long as `self`.
        unsafe { self.words.as_ref() }
    }

    /// The file of the memory, for other processes.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The number of the file, which tells it from others that have its descriptor later.
    ///
    /// # Errors
    /// The operating system does not say.
    pub fn number(&self) -> Result<u64> {
        let known = self.file.metadata().map_err(|_| OPERATING_SYSTEM)?;
        Ok(known.ino())
    }

    /// Begins a recording; its number.
    pub fn begin(&self) -> u64 {
        self.words().begun.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The number of the last recording that has begun, 0 if there was none.
    pub fn last(&self) -> u64 {
        self.words().begun.load(Ordering::Acquire)
    }

    fn place(&self, number: u64) -> &AtomicU64 {
        &self.words().passed[(number % PLACES as u64) as usize]
    }

    /// A stream has passed this recording.
    pub fn pass(&self, number: u64) {
        self.place(number).fetch_max(number, Ordering::AcqRel);
        self.words().changes.fetch_add(1, Ordering::AcqRel);
        // It fails for no memory that is mapped.
        let _ = futex::wake(
            &self.words().changes,
            futex::Flags::empty(),
            i32::MAX as u32,
        );
    }

    /// Whether a stream has passed it.
    pub fn is_passed(&self, number: u64) -> bool {
        self.place(number).load(Ordering::Acquire) >= number
    }

    /// Waits until a stream has passed it.
    pub fn wait(&self, number: u64) {
        loop {
            let changes = self.words().changes.load(Ordering::Acquire);
            if self.is_passed(number) {
                return;
            }
            // A signal, and a change in between, end it early.
            let _ = futex::wait(&self.words().changes, futex::Flags::empty(), changes, None);
        }
    }
}

impl Drop for Recordings {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `map`, and nothing refers to it any more.
        let _ = unsafe { munmap(self.words.as_ptr().cast(), LENGTH) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(own: &Recordings) -> Result<Recordings> {
        let file = own.file().try_clone_to_owned().unwrap();
        Recordings::open(file, own.number()?)
    }

    #[test]
    fn a_recording_in_one_process_is_waited_for_in_another() {
        let own = Recordings::create().unwrap();
        let other = again(&own).unwrap();
        assert_eq!(other.last(), 0);
        let number = own.begin();
        assert!(other.last() == number && !other.is_passed(number));
        let waits = std::thread::spawn(move || {
            other.wait(number);
            other
        });
        own.pass(number);
        let other = waits.join().unwrap();
        other.pass(other.begin());
        assert!(own.is_passed(own.last()));
    }

    #[test]
    fn a_recording_is_not_passed_with_a_later_one() {
        let own = Recordings::create().unwrap();
        let (first, second) = (own.begin(), own.begin());
        own.pass(second);
        assert!(own.is_passed(second) && !own.is_passed(first));
        own.pass(first);
        assert!(own.is_passed(second) && own.is_passed(first));
    }

    #[test]
    fn a_descriptor_that_has_become_another_files_is_refused() {
        let (own, other) = (Recordings::create().unwrap(), Recordings::create().unwrap());
        let file = other.file().try_clone_to_owned().unwrap();
        assert!(Recordings::open(file, own.number().unwrap()).is_err());
        let no_event = File::open("/dev/null").unwrap();
        let number = no_event.metadata().unwrap().ino();
        assert!(Recordings::open(no_event.into(), number).is_err());
    }
}
