//! A file that lies in memory, mapped and registered with the driver, so that devices copy from and to it
//! at the link's speed.
//!
//! ```text
//!   file:      0 ....... SLICE ....... 2 SLICE ....... len
//!   registered: one slice at a time, so that nobody waits long for the driver
//!   spans:     [claimed: one user]   [shared: many readers]
//! ```
//! The maker of a window guarantees that no other code writes to what is claimed or shared here: packs of a
//! store are the writer's alone until they are published, and never change afterwards.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::{ContextHandle, Driver, DriverError};

/// Bytes registered with the driver in one call; see [`slice_end`].
const SLICE: u64 = 64 << 20;

/// Where the slice ends that begins at `from`, in a window of `len` bytes. The last one may have half as many bytes more: a call
/// of its own would take as long for a few pages.
fn slice_end(from: u64, len: u64) -> u64 {
    match len - from {
        left if left < SLICE + SLICE / 2 => len,
        _ => from + SLICE,
    }
}

/// See the module.
pub struct Window {
    driver: Arc<Driver>,
    context: ContextHandle,
    file: File,
    address: u64,
    len: u64,
    /// Registered from the front up to here, the end of a slice.
    registered: AtomicU64,
    /// Ranges in use, by offset: length, and readers or 0 for one exclusive user.
    uses: Mutex<BTreeMap<u64, (u64, u32)>>,
}

impl Window {
    /// Maps the first `len` bytes of `file` (opened for reading and writing) at `address`, where nothing may
    /// be mapped yet. Registrations are made in `context`, for all contexts.
    ///
    /// # Errors
    /// What the system says.
    pub fn map(
        driver: &Arc<Driver>,
        context: ContextHandle,
        file: File,
        address: u64,
        len: u64,
    ) -> std::io::Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::FIXED_NOREPLACE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let start = address as *mut c_void;
        // SAFETY: NOREPLACE makes the kernel refuse addresses that are in use.
        let mapped = unsafe { mmap(start, len as usize, access, flags, &file, 0)? };
        let window = Self {
            driver: Arc::clone(driver),
            context,
            file,
            address: mapped as u64,
            len,
            registered: AtomicU64::new(0),
            uses: Mutex::default(),
        };
        if window.address != address {
            return Err(std::io::Error::from(std::io::ErrorKind::AddrInUse));
        }
        Ok(window)
    }

    /// Bytes mapped.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes registered.
    pub fn registered(&self) -> u64 {
        self.registered.load(Ordering::Acquire)
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Registers the next slice; false if all are. Takes some milliseconds, and makes the context current
    /// for the calling thread. One thread only.
    ///
    /// # Errors
    /// What the driver says; what was registered before stays.
    pub fn register_next(&self) -> Result<bool, DriverError> {
        let from = self.registered();
        if from >= self.len {
            return Ok(false);
        }
        let end = slice_end(from, self.len);
        let bytes = end - from;
        self.driver.set_current(self.context)?;
        // SAFETY: the range is mapped by this object, which unregisters it before it unmaps.
        unsafe {
            self.driver
                .register_range((self.address + from) as *mut u8, bytes as usize)?;
        }
        self.registered.store(end, Ordering::Release);
        Ok(end < self.len)
    }

    fn take(self: &Arc<Self>, offset: u64, len: u64, share: bool) -> Option<Range> {
        let end = offset.checked_add(len)?;
        let held = rustix::fs::fstat(&self.file).ok()?.st_size;
        if len == 0 || end > self.registered() || u64::try_from(held).ok()? < end {
            return None;
        }
        let mut uses = self.uses.lock();
        let (before, within) = (
            uses.range(..offset).next_back(),
            uses.range(offset..end).next(),
        );
        let clear = before.is_none_or(|(at, (bytes, _))| at + bytes <= offset);
        let readers = match within {
            None if clear => 0,
            Some((at, (bytes, readers)))
                if clear && share && (*at, *bytes) == (offset, len) && *readers > 0 =>
            {
                *readers
            }
            _ => return None,
        };
        uses.insert(offset, (len, readers + u32::from(share)));
        Some(Range {
            window: Arc::clone(self),
            offset,
            len,
        })
    }

    /// A range for one user, who may write to it. `None` if part of it is in use, not registered, or not in
    /// the file any more.
    pub fn claim(self: &Arc<Self>, offset: u64, len: u64) -> Option<Span> {
        self.take(offset, len, false).map(Span)
    }

    /// A range that is only read; the same range can be shared again. `None` as for [`Window::claim`].
    pub fn share(self: &Arc<Self>, offset: u64, len: u64) -> Option<SharedSpan> {
        self.take(offset, len, true).map(SharedSpan)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // A dead context cannot give anything back, and ends with the process.
        let _ = self.driver.set_current(self.context);
        let mut at = 0;
        let mut left = false;
        while at < self.registered() {
            let start = (self.address + at) as *mut u8;
            left |= self.driver.unregister_range(start).is_err();
            at = slice_end(at, self.len);
        }
        // What is still registered is left to the driver.
        if !left {
            // SAFETY: the mapping is this object's own; spans keep the window alive.
            let _ = unsafe { munmap(self.address as *mut c_void, self.len as usize) };
        }
    }
}

/// A range in use.
struct Range {
    window: Arc<Window>,
    offset: u64,
    len: u64,
}

impl Range {
    fn start(&self) -> u64 {
        self.window.address + self.offset
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the range is mapped, was within the file when it was taken, and the window outlives it.
        // Nobody writes to it but the one who holds it: see the module. A file that is cut all the same
        // ends the process by a signal.
        unsafe { std::slice::from_raw_parts(self.start() as *const u8, self.len as usize) }
    }

    /// Whether it begins where another ends, in the same registration.
    fn follows(&self, other: &Self) -> bool {
        let end = other.offset + other.len;
        let slice = (end - 1) / SLICE * SLICE;
        Arc::ptr_eq(&self.window, &other.window)
            && self.offset == end
            && slice_end(slice, self.window.len) > end
    }

    /// Address and length of its parts in registrations of their own.
    fn parts(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let end = self.offset + self.len;
        let mut at = self.offset;
        std::iter::from_fn(move || {
            let from = at;
            // Also right within what the last slice has more.
            at = slice_end(from / SLICE * SLICE, self.window.len).min(end);
            (from < end).then(|| (self.window.address + from, at - from))
        })
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        let mut uses = self.window.uses.lock();
        match uses.get_mut(&self.offset) {
            Some((_, readers)) if *readers > 1 => *readers -= 1,
            _ => drop(uses.remove(&self.offset)),
        }
    }
}

/// A range of a window that one user has for itself.
pub struct Span(Range);

/// A range of a window that is only read.
pub struct SharedSpan(Range);

impl Span {
    /// Address and length of the parts of spans that follow each other, each within one registration.
    pub(crate) fn parts_of(spans: &[Self]) -> Vec<(u64, u64)> {
        let mut parts: Vec<(u64, u64)> = Vec::new();
        let mut before: Option<&Range> = None;
        for Self(range) in spans {
            let mut joins = before.is_some_and(|it| range.follows(it));
            for (at, len) in range.parts() {
                match parts.last_mut().filter(|_| joins) {
                    Some((_, bytes)) => *bytes += len,
                    None => parts.push((at, len)),
                }
                joins = false;
            }
            before = Some(range);
        }
        parts
    }
}

impl SharedSpan {
    pub(crate) fn parts(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.parts()
    }
}

impl std::ops::Deref for Span {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl std::ops::DerefMut for Span {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `Range::bytes`; a claimed range has one holder, which is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.0.start() as *mut u8, self.0.len as usize) }
    }
}

impl std::ops::Deref for SharedSpan {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_a_window_and_the_last_is_never_short() {
        for len in [
            1,
            SLICE,
            SLICE + 4096,
            4 * SLICE + 4096,
            4 * SLICE + SLICE / 2,
        ] {
            let (mut at, mut ends) = (0, Vec::new());
            while at < len {
                at = slice_end(at, len);
                ends.push(at);
            }
            let wanted = (len / SLICE).max(1) + u64::from(len % SLICE >= SLICE / 2);
            assert_eq!((at, ends.len() as u64), (len, wanted), "{len}");
            // As a part of it is cut, wherever in a slice it begins.
            for from in [0, len / 2, len - 1] {
                let end = slice_end(from / SLICE * SLICE, len);
                assert_eq!(
                    ends.iter().find(|it| **it > from),
                    Some(&end),
                    "{len} {from}"
                );
            }
        }
    }
}
