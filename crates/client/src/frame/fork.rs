//! Fork handlers: a forked child has no part in the session.
//!
//! The ring, the side socket and pinned memory are not inherited; registered memory, which is the
//! program's own, becomes private memory with the same content. Every CUDA call of the child fails with
//! `CUDA_ERROR_NOT_INITIALIZED`, as with the real driver. A child of a program that had not used CUDA yet
//! begins its own session.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use fermata_abi::op::HostKind;

use crate::agent;
use crate::link;
use crate::object::exchange;
use crate::object::mirror::{self, Kind};
use crate::object::registering;
use crate::object::session;
use crate::thread::alloc;
use crate::thread::gate;

static ORPHAN: AtomicBool = AtomicBool::new(false);

/// Whether this process is a forked child of one that had a session.
#[inline]
pub fn is_orphan() -> bool {
    ORPHAN.load(Ordering::Relaxed)
}

/// Installs the fork handlers.
pub fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers are plain functions that stay loaded as long as the process: the library is never
        // unloaded (`build.rs`).
        let _ = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

/// Takes the locks that the child needs, so that no other thread holds them at the fork.
extern "C" fn before() {
    if let Some(session) = session::begun() {
        session.memory.freeze();
    }
    alloc::freeze();
}

extern "C" fn in_parent() {
    alloc::thaw();
    mirror::thaw(|_| ());
}

extern "C" fn in_child() {
    alloc::thaw();
    gate::after_fork();
    // Even if no session has begun: a thread of the parent may be beginning one, or may have failed to.
    agent::close_descriptor();
    if let Some(link) = link::abandon() {
        link.close_descriptors();
    }
    if session::begun().is_none() {
        return;
    }
    if ORPHAN.swap(true, Ordering::Relaxed) {
        // Its parent has made the memory its own, and may have unmapped it since.
        mirror::thaw(|_| ());
        return;
    }
    let mut last = None;
    mirror::thaw(|block| {
        let (start, mapped) = block.pages();
        // Several blocks may lie on the same pages.
        let is_other = last.replace(start) != Some(start);
        if is_other && block.kind == Kind::Host(HostKind::Registered) {
            exchange::by_private(start, mapped);
        }
    });
    registering::after_fork();
}
