//! Fork handlers: a forked child has no part in the session.
//!
//! The ring, the side socket and pinned memory are not inherited; registered memory, which is the
//! program's own, becomes private memory with the same content. Every CUDA call of the child fails with
//! `CUDA_ERROR_NOT_INITIALIZED`, as with the real driver; also if another thread of the parent was still beginning the
//! session at the fork. A child of a program that had not used CUDA yet begins its own session.

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

/// Whether this process is a forked child of one that had a session, or was beginning one.
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
        if session::is_beginning() {
            ORPHAN.store(true, Ordering::Relaxed);
        }
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use fermata_abi::sys::driver::{CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_UNKNOWN, CUDA_SUCCESS};

    use super::*;
    use crate::frame::entry;

    #[test]
    #[ignore = "a program for the test below"]
    fn forks_while_another_thread_begins() {
        watch();
        let (tell, told) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let begins = std::thread::spawn(move || {
            session::begin(|| {
                tell.send(()).expect("the other thread");
                let _ = released.recv();
                Err(CUDA_ERROR_UNKNOWN)
            })
        });
        told.recv().expect("it begins");
        // SAFETY: the child makes a call that touches nothing of the parent's, and ends without running anything of it.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: sets a timer, which ends a child whose call waits for ever.
            unsafe { libc::alarm(60) };
            let status = entry::call("test", || session::begin(|| Err(CUDA_ERROR_UNKNOWN)));
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(status != CUDA_ERROR_NOT_INITIALIZED)) };
        }
        let mut status = -1;
        // SAFETY: the child is the test's own, the status a live variable.
        unsafe { libc::waitpid(child, &mut status, 0) };
        drop(release);
        assert_eq!(begins.join().expect("an answer"), Err(CUDA_ERROR_UNKNOWN));
        assert_eq!(status, 0, "the child's call has another answer, or none");
        assert_eq!(entry::call("test", || Ok(())), CUDA_SUCCESS);
    }

    #[test]
    fn a_child_of_a_fork_during_the_first_call_has_no_cuda() {
        let test = std::env::current_exe().expect("a path");
        let mut program = Command::new(test);
        program.args([
            "--exact",
            "frame::fork::tests::forks_while_another_thread_begins",
            "--ignored",
        ]);
        let said = program.output().expect("it runs");
        assert!(said.status.success(), "{said:?}");
    }
}
