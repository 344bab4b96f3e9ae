//! The memory file and its mapping: with `claims`, which maps a table of its own by the same means, the only place that touches shared
//! memory.
//!
//! Everything outside deals in offsets. Words are atomics; everything else is copied in or out as
//! bytes, never borrowed, because the peer may write at any moment.

use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::WireError;
use crate::layout::{Config, FIXED_BYTES, HEADER_BYTES, KEPT_AT, KEPT_BYTES, Layout, STAGED_AT};

/// A new memory file for one session, of sealed size, with its header written.
///
/// # Errors
/// A size in `config` is out of range, or the system has no memory or descriptors left.
pub fn create(config: &Config) -> Result<OwnedFd, WireError> {
    let layout = Layout::new(config)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(c"fermata-ring", flags)
        .map_err(|errno| WireError::io("create the ring's memory", errno))?;
    rustix::fs::ftruncate(&fd, layout.total())
        .map_err(|errno| WireError::io("size the ring's memory", errno))?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(|errno| WireError::io("seal the ring's memory", errno))?;
    write_header(fd.as_fd(), &layout)?;
    Ok(fd)
}

/// Makes the pages of a memory file's staging area, 64 MiB by default: a process that registers them with a driver later has
/// less to wait for. No process may be attached.
pub fn touch(fd: BorrowedFd<'_>, config: &Config) {
    const PART: u64 = 1 << 20;
    let Ok(layout) = Layout::new(config) else {
        return;
    };
    let forgotten = write_at(fd, &[0; KEPT_BYTES], KEPT_AT as u64, "forget a name");
    if forgotten.is_err() {
        return;
    }
    // Pages that are only set aside are cleared when they are used, which is what takes time.
    let zeros = vec![0; PART as usize];
    let end = layout.staging + layout.staging_bytes;
    let mut at = layout.staging;
    while at < end {
        let part = &zeros[..PART.min(end - at) as usize];
        if write_at(fd, part, at, "make pages").is_err() {
            // What is not made now is when it is used.
            return;
        }
        at += part.len() as u64;
    }
}

/// Makes a memory file that has been used as [`create`] made it, but for the staging area: its pages stay, so that a worker that has
/// registered them with a driver can go on with them. What lies there stays, too, with the name that the last program gave it. No
/// process may be attached.
///
/// # Errors
/// It is not one of this `config`, or cannot be written.
pub fn renew(fd: BorrowedFd<'_>, config: &Config) -> Result<(), WireError> {
    let layout = Layout::new(config)?;
    let stat =
        rustix::fs::fstat(fd).map_err(|errno| WireError::io("size the ring's memory", errno))?;
    if u64::try_from(stat.st_size) != Ok(layout.total()) {
        return Err(WireError::Layout("it was made with other sizes"));
    }
    let mut name = [0; KEPT_BYTES];
    let read = rustix::io::pread(fd, &mut name, KEPT_AT as u64)
        .map_err(|errno| WireError::io("read the ring's header", errno))?;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(fd, flags, 0, layout.staging)
        .map_err(|errno| WireError::io("empty the ring", errno))?;
    write_header(fd, &layout)?;
    write_at(fd, &name[..read], KEPT_AT as u64, "name what is staged")
}

fn write_header(fd: BorrowedFd<'_>, layout: &Layout) -> Result<(), WireError> {
    write_at(fd, &layout.encode(), 0, "write the ring's header")
}

/// Writes all of `bytes` at `at`, not through a mapping, whose pages would have to be made first; `what` is what an error says
/// that could not be done.
pub(crate) fn write_at(
    fd: BorrowedFd<'_>,
    mut bytes: &[u8],
    mut at: u64,
    what: &'static str,
) -> Result<(), WireError> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(fd, bytes, at) {
            Ok(0) => return Err(WireError::Layout("it takes no more bytes")),
            Ok(written) => (bytes, at) = (&bytes[written..], at + written as u64),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(WireError::io(what, errno)),
        }
    }
    Ok(())
}

/// How much of the staging area the attached program has used so far, all from its start on; as far as the program tells.
pub fn staged(fd: BorrowedFd<'_>, config: &Config) -> u64 {
    let mut word = [0; 8];
    match rustix::io::pread(fd, &mut word, STAGED_AT as u64) {
        Ok(read) if read == word.len() => u64::from_ne_bytes(word).min(config.staging),
        _ => 0,
    }
}

/// Layout of a memory file, checked; and device and number of the file.
fn inspect(fd: BorrowedFd<'_>) -> Result<(Layout, (u64, u64)), WireError> {
    let seals = rustix::fs::fcntl_get_seals(fd)
        .map_err(|errno| WireError::io("read the seals of the ring's memory", errno))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(WireError::Layout("its size is not sealed"));
    }
    let stat =
        rustix::fs::fstat(fd).map_err(|errno| WireError::io("size the ring's memory", errno))?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let mut header = [0; FIXED_BYTES];
    let read = rustix::io::pread(fd, &mut header, 0)
        .map_err(|errno| WireError::io("read the ring's header", errno))?;
    if read != header.len() {
        return Err(WireError::Layout("it is shorter than its header"));
    }
    Ok((Layout::decode(&header, size)?, (stat.st_dev, stat.st_ino)))
}

/// Maps `length` bytes of a file, shared, anywhere; `what` is what an error says that could not be done.
pub(crate) fn map_shared(
    fd: BorrowedFd<'_>,
    length: NonZeroUsize,
    what: &'static str,
) -> Result<NonNull<u8>, WireError> {
    // SAFETY: a fresh shared mapping at an address of the kernel's choice overlaps nothing.
    let base = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            length.get(),
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            fd.as_fd(),
            0,
        )
    }
    .map_err(|errno| WireError::io(what, errno))?;
    NonNull::new(base.cast()).ok_or(WireError::Layout("it was mapped at address 0"))
}

/// A mapped memory file.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    /// Device and number of the file.
    file: (AtomicU64, AtomicU64),
    layout: Layout,
}

// SAFETY: the mapping is plain memory owned by this value; it is reached through atomics and byte
// copies only, which any thread may do.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps and checks a memory file made by [`create`].
    ///
    /// # Errors
    /// It is not one, may still shrink, or cannot be mapped.
    pub fn open(fd: BorrowedFd<'_>) -> Result<Self, WireError> {
        let (layout, file) = inspect(fd)?;
        let bytes = usize::try_from(layout.total())
            .map_err(|_| WireError::Layout("it is too large to map"))?;
        let length = NonZeroUsize::new(bytes).ok_or(WireError::Layout("it is empty"))?;
        let base = map_shared(fd, length, "map the ring's memory")?;
        let mapping = Self {
            base,
            bytes,
            file: (AtomicU64::new(file.0), AtomicU64::new(file.1)),
            layout,
        };
        mapping.keep_from_children();
        Ok(mapping)
    }

    /// Puts private memory, all zero, in the place of the memory file; addresses stay valid.
    ///
    /// # Errors
    /// The system has no memory left; then nothing has changed.
    pub fn leave(&self) -> Result<(), WireError> {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the range is this mapping's own, and stays mapped throughout; it is reached only through
        // atomics and byte copies, which private memory allows as well.
        unsafe {
            rustix::mm::mmap_anonymous(self.base.as_ptr().cast(), self.bytes, protection, flags)
        }
        .map_err(|errno| WireError::io("let go of the ring's memory", errno))?;
        Ok(())
    }

    /// Puts a memory file of the same layout in this mapping's place; addresses stay valid.
    ///
    /// # Errors
    /// The file is not usable, has another layout, or cannot be mapped; then nothing has changed.
    pub fn enter(&self, fd: BorrowedFd<'_>) -> Result<(), WireError> {
        let (layout, file) = inspect(fd)?;
        if layout != self.layout {
            return Err(WireError::Layout("it has other sizes than the last one"));
        }
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let start = self.base.as_ptr().cast();
        // SAFETY: as in `leave`; the file is as long as the mapping, for its layout is the same.
        unsafe { rustix::mm::mmap(start, self.bytes, protection, flags, fd.as_fd(), 0) }
            .map_err(|errno| WireError::io("map the ring's memory", errno))?;
        self.file.0.store(file.0, Ordering::Relaxed);
        self.file.1.store(file.1, Ordering::Relaxed);
        self.keep_from_children();
        Ok(())
    }

    fn keep_from_children(&self) {
        let advice = rustix::mm::Advice::LinuxDontFork;
        // SAFETY: the advice changes what a fork copies, nothing in this process. A child must not reach
        // its parent's ring; without the advice it could, which is no error here.
        let _ = unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.bytes, advice) };
    }

    /// Whether it maps the memory file `fd`.
    pub fn is_of(&self, fd: BorrowedFd<'_>) -> bool {
        let file = [&self.file.0, &self.file.1].map(|it| it.load(Ordering::Relaxed));
        rustix::fs::fstat(fd).is_ok_and(|stat| [stat.st_dev, stat.st_ino] == file)
    }

    #[inline]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The word at `offset`, which the caller has derived from the checked layout.
    #[inline]
    pub fn word32(&self, offset: usize) -> &AtomicU32 {
        assert!(
            offset.is_multiple_of(4) && offset.checked_add(4).is_some_and(|end| end <= self.bytes)
        );
        // SAFETY: in bounds and aligned by the line above; the mapping lives as long as `self`, and
        // every bit pattern is a u32. Both processes access it atomically.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// As [`Mapping::word32`], for eight bytes.
    #[inline]
    pub fn word64(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset.checked_add(8).is_some_and(|end| end <= self.bytes)
        );
        // SAFETY: as in `word32`.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// As [`Mapping::word32`], of a word of the header page, which every mapping has.
    #[inline(always)]
    pub fn fixed32<const AT: usize>(&self) -> &AtomicU32 {
        const { assert!(AT.is_multiple_of(4) && AT + 4 <= HEADER_BYTES as usize) }
        // SAFETY: as in `word32`: a checked layout has at least the header page.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(AT).cast()) }
    }

    /// As [`Mapping::fixed32`], for eight bytes.
    #[inline(always)]
    pub fn fixed64<const AT: usize>(&self) -> &AtomicU64 {
        const { assert!(AT.is_multiple_of(8) && AT + 8 <= HEADER_BYTES as usize) }
        // SAFETY: as in `fixed32`.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(AT).cast()) }
    }

    /// Copies `from` into the memory at `offset`.
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) {
        let to = self.range(offset, from.len());
        // SAFETY: `range` has checked the bounds; private and shared memory do not overlap. The peer may
        // read meanwhile: it sees bytes, and believes none of them before the head has moved.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }

    /// Copies bytes at `offset` out.
    #[inline]
    pub fn read(&self, offset: u64, to: &mut [u8]) {
        let from = self.range(offset, to.len());
        // SAFETY: as in `write`. A peer that writes meanwhile can only spoil the bytes it sends.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
    }

    /// Has the system make the pages of a range now, where it can; `offset` is at a page's start.
    pub fn populate(&self, offset: u64, len: u64) {
        let start = self.range(offset, len as usize);
        // SAFETY: the range lies in our mapping; the advice changes no byte of it. A system that does not
        // know it makes the pages when they are touched.
        let _ = unsafe {
            rustix::mm::madvise(
                start.cast(),
                len as usize,
                rustix::mm::Advice::LinuxPopulateWrite,
            )
        };
    }

    /// `len` bytes at `offset`, to be written one after the other.
    #[inline]
    pub fn window(&self, offset: u64, len: usize) -> Window<'_> {
        let start = self.range(offset, len);
        Window {
            start,
            len,
            at: 0,
            map: PhantomData,
        }
    }

    /// Brings the cache line at `offset` here, to be read soon; outside the mapping it does nothing.
    #[inline]
    pub fn prefetch(&self, offset: u64) {
        let line = self.base.as_ptr().wrapping_add(offset as usize);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint: it changes nothing, and does not fault, wherever it points.
        unsafe {
            std::arch::asm!("prefetcht0 [{}]", in(reg) line, options(nostack, preserves_flags));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }

    /// As [`Mapping::prefetch`], of a line that will be written.
    #[inline]
    pub fn prefetch_to_write(&self, offset: u64) {
        let line = self.base.as_ptr().wrapping_add(offset as usize);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as in `prefetch`.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }

    /// Address of a range that lies in the mapping.
    #[inline]
    fn range(&self, offset: u64, len: usize) -> *mut u8 {
        let end = offset.checked_add(len as u64);
        assert!(
            end.is_some_and(|end| end <= self.bytes as u64),
            "range outside the ring's memory"
        );
        // SAFETY: in bounds by the line above.
        unsafe { self.base.as_ptr().add(offset as usize) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Room in the mapping that is filled from its start.
pub(crate) struct Window<'m> {
    start: *mut u8,
    len: usize,
    at: usize,
    map: PhantomData<&'m Mapping>,
}

impl Window<'_> {
    /// Appends a byte; false if there is no room for it.
    #[inline]
    pub fn push(&mut self, byte: u8) -> bool {
        if self.at == self.len {
            return false;
        }
        // SAFETY: `at` is within the `len` bytes from `start`; see `extend`.
        unsafe { self.start.add(self.at).write(byte) };
        self.at += 1;
        true
    }

    /// Appends bytes; false if there is no room for all of them.
    #[inline]
    pub fn extend(&mut self, bytes: &[u8]) -> bool {
        // Most numbers of an operation take one byte: a call of `memcpy` would cost more than the rest.
        if let [byte] = bytes {
            return self.push(*byte);
        }
        if bytes.len() > self.len - self.at {
            return false;
        }
        // SAFETY: `at + bytes.len()` is within the `len` bytes from `start`, which lie in a mapping that is
        // borrowed for the window's life; private and shared memory do not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(self.at), bytes.len());
        }
        self.at += bytes.len();
        true
    }

    /// Appends the `len` lowest bytes of `word`, at most 8; false if there is no room for a whole word. Those above
    /// are written too, and overwritten by what follows.
    #[inline]
    pub fn append(&mut self, word: u64, len: usize) -> bool {
        if self.len - self.at < 8 {
            return false;
        }
        // SAFETY: eight bytes from `at` are within the window; see `extend`.
        unsafe {
            self.start
                .add(self.at)
                .cast::<u64>()
                .write_unaligned(word.to_le());
        }
        self.at += len.min(8);
        true
    }

    /// Bytes written so far.
    pub fn written(&self) -> usize {
        self.at
    }
}

/// The staging area, for handing ranges of it to the driver or to system calls.
///
/// The memory stays mapped as long as a clone of this lives.
#[derive(Debug, Clone)]
pub struct StagedArea(pub(crate) Arc<Mapping>);

impl StagedArea {
    /// The area of a memory file made by [`create`], for a worker that makes it ready before it attaches: see
    /// [`crate::Consumer::again`].
    ///
    /// # Errors
    /// The memory is not usable.
    pub fn open(fd: BorrowedFd<'_>) -> Result<Self, WireError> {
        Ok(Self(Arc::new(Mapping::open(fd)?)))
    }

    /// Has the system make the area's pages now, where it can.
    pub fn populate(&self) {
        // Bit by bit: other threads' mappings, even new stacks, wait for as long as one call takes.
        const STEP: u64 = 1 << 20;
        let layout = self.0.layout();
        for from in (0..layout.staging_bytes).step_by(STEP as usize) {
            let len = STEP.min(layout.staging_bytes - from);
            self.0.populate(layout.staging + from, len);
        }
    }

    /// Address of the area's first byte.
    pub fn base(&self) -> *mut u8 {
        self.0.range(self.0.layout().staging, 0)
    }

    /// Whether it lies in the memory file `fd`.
    pub fn is_of(&self, fd: BorrowedFd<'_>) -> bool {
        self.0.is_of(fd)
    }

    /// Bytes of the area.
    pub fn bytes(&self) -> u64 {
        self.0.layout().staging_bytes
    }

    /// Address of `len` bytes at `offset`. They may change at any moment: copy before judging.
    ///
    /// # Errors
    /// The range does not lie in the area.
    pub fn at(&self, offset: u64, len: u64) -> Result<*mut u8, WireError> {
        let start = self.check(offset, len)?;
        Ok(self.0.range(start, len as usize))
    }

    /// Copies bytes at `offset` out.
    ///
    /// # Errors
    /// The range does not lie in the area.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), WireError> {
        let start = self.check(offset, to.len() as u64)?;
        self.0.read(start, to);
        Ok(())
    }

    /// Copies bytes in at `offset`.
    ///
    /// # Errors
    /// The range does not lie in the area.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), WireError> {
        let start = self.check(offset, from.len() as u64)?;
        self.0.write(start, from);
        Ok(())
    }

    fn check(&self, offset: u64, len: u64) -> Result<u64, WireError> {
        let layout = self.0.layout();
        let fits = offset
            .checked_add(len)
            .is_some_and(|end| end <= layout.staging_bytes);
        if !fits {
            let why = "it does not lie in the staging area";
            return Err(WireError::Malformed {
                what: "staged range",
                position: offset,
                why,
            });
        }
        Ok(layout.staging + offset)
    }
}
