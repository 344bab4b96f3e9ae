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

/// Takes the locks that the child needs, so that no other thread holds them at the fork. A stop waits until they are free.
extern "C" fn before() {
    gate::freeze();
    if let Some(session) = session::begun() {
        session.memory.freeze();
    }
    alloc::freeze();
}

extern "C" fn in_parent() {
    alloc::thaw();
    mirror::thaw(|_| ());
    gate::thaw();
}

extern "C" fn in_child() {
    alloc::thaw();
    gate::after_fork();
    leave_session();
    gate::thaw();
}

fn leave_session() {
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
    use std::time::Duration;

    use fermata_abi::sys::driver::{CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_UNKNOWN, CUDA_SUCCESS};

    use super::*;
    use crate::frame::entry;
    use crate::thread::scene::alone;
    use crate::thread::signal;

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
            let good = status == CUDA_ERROR_NOT_INITIALIZED && !gate::is_current_inside();
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!good)) };
        }
        let mut status = -1;
        // SAFETY: the child is the test's own, the status a live variable.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert!(!gate::is_current_inside());
        drop(release);
        assert_eq!(begins.join().expect("an answer"), Err(CUDA_ERROR_UNKNOWN));
        assert_eq!(status, 0, "the child's call has another answer, or none");
        assert_eq!(entry::call("test", || Ok(())), CUDA_SUCCESS);
    }

    #[test]
    #[ignore = "closes the gate; run by the test below"]
    fn is_signalled_while_it_holds_the_locks_of_a_fork() {
        signal::install().expect("a handler");
        let (tell, told) = std::sync::mpsc::channel();
        let forks = std::thread::spawn(move || {
            gate::freeze();
            gate::close();
            // Comes before the call returns.
            signal::send(gate::gettid());
            tell.send(gate::gettid()).expect("the test");
            gate::thaw();
            signal::send(gate::gettid());
        });
        let told = told.recv_timeout(Duration::from_secs(60));
        while let Ok(tid) = told
            && !gate::is_parked(tid)
        {
            gate::await_parked(1, Duration::from_millis(1));
        }
        gate::open();
        forks.join().expect("it ends");
        told.expect("it is not parked before it has freed them");
    }

    #[test]
    fn a_child_of_a_fork_during_the_first_call_has_no_cuda() {
        alone("frame::fork::tests::forks_while_another_thread_begins");
    }

    #[test]
    fn a_thread_that_forks_is_parked_when_it_has_freed_the_locks() {
        alone("frame::fork::tests::is_signalled_while_it_holds_the_locks_of_a_fork");
    }
}
