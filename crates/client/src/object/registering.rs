//! Registrations, one at a time, and the pages that one changes, which a forked child makes its own.
//!
//! ```text
//!   register:    begin ─► change ─► pages become shared ─► mirror: block ─► end
//!   unregister:  begin ─► change ─► mirror: no block ─► pages become private ─► end
//! ```
//! Between the two steps the mirror does not say that the pages are shared. A fork takes no lock for them: a registration waits for
//! the worker, which may wait for the program, and the forking thread may be in a registration itself, in a handler for a signal.

use std::sync::atomic::{AtomicU64, Ordering};

use fermata_abi::op::Address;
use parking_lot::{Mutex, MutexGuard};

use crate::object::exchange;

/// Held while memory is registered or unregistered, because two calls may concern the same pages.
static ALONE: Mutex<()> = Mutex::new(());

/// The pages that change, written only with [`ALONE`] held. `SIZE` is written last; it is 0 if there are none. No mapping changes
/// while the kernel copies the process, so a child that shares pages with its parent has these words, too.
static START: AtomicU64 = AtomicU64::new(0);
static SIZE: AtomicU64 = AtomicU64::new(0);

/// While this lives, no other memory is registered or unregistered.
pub struct Registering {
    _alone: MutexGuard<'static, ()>,
}

impl Registering {
    /// Waits until the registrations of other threads are complete.
    pub fn begin() -> Self {
        let _alone = ALONE.lock();
        Self { _alone }
    }

    /// To be called before private pages of the program become shared, or the mirror forgets that they are.
    pub fn change(&self, (start, mapped): (Address, u64)) {
        START.store(start.raw(), Ordering::Relaxed);
        SIZE.store(mapped, Ordering::Release);
    }
}

impl Drop for Registering {
    fn drop(&mut self) {
        SIZE.store(0, Ordering::Release);
    }
}

/// In a forked child: makes the pages its own that were changing, with the same content.
pub fn after_fork() {
    let size = SIZE.swap(0, Ordering::Acquire);
    if size > 0 {
        let start = Address::from_raw(START.load(Ordering::Relaxed));
        exchange::by_private(start, size);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use rustix::fs::MemfdFlags;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    use super::*;
    use crate::object::mirror::PAGE;

    /// The test takes the part of the child.
    #[test]
    fn a_child_does_not_share_the_pages_of_a_registration_that_goes_on_in_its_parent() {
        let size = PAGE as usize;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), size, both, MapFlags::PRIVATE) };
        let memory = memory.expect("mapped");
        let start = Address::from_raw(memory.expose_provenance() as u64);
        let file = rustix::fs::memfd_create(c"test", MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::ftruncate(&file, PAGE).expect("bytes");
        let write = |byte: u8| {
            // SAFETY: the page is the test's own, and mapped.
            unsafe { memory.cast::<u8>().write_volatile(byte) };
            let mut seen = [0];
            rustix::io::pread(&file, &mut seen, 0).expect("read");
            seen[0]
        };
        let registering = Registering::begin();
        registering.change((start, PAGE));
        exchange::by_file(start, PAGE, file.as_fd()).expect("replaced");
        assert_eq!(write(1), 1, "the file is the memory");
        after_fork();
        assert_eq!(write(2), 1, "the file is no longer the memory");
        drop(registering);
        // A registration that is complete is the mirror's.
        exchange::by_file(start, PAGE, file.as_fd()).expect("replaced");
        let registering = Registering::begin();
        registering.change((start, PAGE));
        drop(registering);
        after_fork();
        assert_eq!(write(3), 3, "the file is the memory");
        // SAFETY: the mapping is the test's own.
        unsafe { munmap(memory, size).expect("unmapped") };
    }
}
