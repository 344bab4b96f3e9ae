//! Reads a library's image out of its file, on a thread beside the decode loop: the program goes on, and what first needs the image
//! waits for it.
//!
//! ```text
//!  decode loop: ImageHold ─► looks at the file, answers
//!                  └─► thread: reads ─► loop: the session's records ─► modules, checkpoints
//! ```
//! The file may change at any time. So it is read, never mapped, and only if it is a regular file that is long enough. One that
//! has been cut meanwhile fails the operations that use the library, not the one that loads it.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::thread::Builder;

use fermata_abi::op::HeldImageId;
use fermata_engine::Thread;
use fermata_state::{IMAGE_PADDING, ImageBytes};
use rustix::io::{pread, retry_on_intr};
use rustix::mm::{Advice, madvise};

use crate::threads::serving_thread;

const PAGE: usize = 4096;
/// Bytes that each reading thread gets at least.
const SHARE: usize = 16 << 20;
/// The most threads that read one file.
const READERS: usize = 8;

/// A part of a regular file.
pub(crate) struct Part {
    file: File,
    offset: u64,
    len: usize,
}

impl Part {
    /// `len` bytes from `offset` on.
    ///
    /// # Errors
    /// The file is not a regular one, is too short, or cannot be asked.
    pub fn of(file: OwnedFd, offset: u64, len: u64) -> io::Result<Self> {
        let file = File::from(file);
        let about = file.metadata()?;
        if !about.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        let end = offset.checked_add(len);
        if end.is_none_or(|end| end > about.len()) {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        let len = usize::try_from(len).map_err(io::Error::other)?;
        Ok(Self { file, offset, len })
    }

    /// Its bytes, read with several threads if they are many.
    ///
    /// # Errors
    /// The file has become too short or cannot be read, or memory is short.
    pub fn read(&self) -> io::Result<ImageBytes> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(self.len + IMAGE_PADDING)?;
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let readers = self.len.div_ceil(SHARE).clamp(1, READERS.min(cores));
        let part = self.len.div_ceil(readers).max(1);
        // Not filled with zeros first: of hundreds of megabytes that takes longer than to read them.
        let room = &mut bytes.spare_capacity_mut()[..self.len];
        ask_for_large_pages(room);
        let parts = room.chunks_mut(part).enumerate();
        let read = |(n, into)| self.fill((n * part) as u64, into);
        if readers == 1 {
            parts.into_iter().try_for_each(read)?;
        } else {
            std::thread::scope(|scope| {
                let begin = |it| Builder::new().spawn_scoped(scope, move || read(it));
                let all: Vec<_> = parts.map(begin).collect::<io::Result<_>>()?;
                let lost = |_| Err(io::Error::other("a thread that reads has panicked"));
                all.into_iter()
                    .try_for_each(|it| it.join().unwrap_or_else(lost))
            })?;
        }
        // SAFETY: every part has been filled.
        unsafe { bytes.set_len(self.len) };
        bytes.resize(self.len + IMAGE_PADDING, 0);
        ImageBytes::from_padded(bytes).ok_or_else(|| io::Error::other("no room behind the image"))
    }

    /// Fills all of `into` with what lies so many bytes behind the part's begin.
    fn fill(&self, mut from: u64, mut into: &mut [MaybeUninit<u8>]) -> io::Result<()> {
        while !into.is_empty() {
            let at = self.offset + from;
            let got = retry_on_intr(|| {
                let read = pread(&self.file, &mut *into, at);
                read.map(|(got, _)| got.len())
            })?;
            if got == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            into = into.split_at_mut(got).1;
            from += got as u64;
        }
        Ok(())
    }
}

/// Has memory come in pages of 2 MiB, if the system likes: one fault for each of 4 KiB takes longer than the reading.
fn ask_for_large_pages(room: &mut [MaybeUninit<u8>]) {
    let start = room.as_mut_ptr();
    let before = start.align_offset(PAGE);
    if let Some(bytes) = room.len().checked_sub(before) {
        // SAFETY: the range, which begins with a page, is this buffer's, and its content stays what it is. The system may refuse.
        let _ = unsafe { madvise(start.add(before).cast(), bytes, Advice::LinuxHugepage) };
    }
}

/// An image under way.
pub(crate) struct Reading {
    /// By which the program will refer to it.
    pub image: HeldImageId,
    /// Its bytes.
    pub len: u64,
    thread: Thread<io::Result<ImageBytes>>,
}

impl Reading {
    /// Begins to read.
    ///
    /// # Errors
    /// No thread can be made.
    pub fn begin(image: HeldImageId, part: Part) -> io::Result<Self> {
        let len = part.len as u64;
        let thread = serving_thread().name("image".to_owned());
        Ok(Self {
            image,
            len,
            thread: Thread::start(thread, move || part.read())?,
        })
    }

    /// Whether it has been read.
    pub fn is_done(&self) -> bool {
        self.thread.is_done()
    }

    /// Waits for it.
    ///
    /// # Errors
    /// As [`Part::read`].
    pub fn end(self) -> io::Result<ImageBytes> {
        let lost = |_| Err(io::Error::other("the thread that reads has panicked"));
        self.thread.join().unwrap_or_else(lost)
    }
}
