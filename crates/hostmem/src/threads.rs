//! The same work on several threads.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Runs `work` on this thread and up to `threads - 1` others, until all have ended; what each gives. Without one of them there is one
/// less.
///
/// # Errors
/// One has panicked.
pub fn side_by_side<T: Send>(threads: usize, work: impl Fn() -> T + Sync) -> io::Result<Vec<T>> {
    std::thread::scope(|scope| {
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, &work).ok();
        let others: Vec<_> = (1..threads).filter_map(start).collect();
        let own = work();
        let ends: Vec<_> = others.into_iter().map(|it| it.join()).collect();
        let ends = ends.into_iter().collect::<Result<Vec<T>, _>>();
        let mut all = ends.map_err(|_| io::Error::other("a thread has panicked"))?;
        all.push(own);
        Ok(all)
    })
}

/// Runs `work` on this thread and up to `threads - 1` others. When this thread is done with it, those are waited for that are at it, but not
/// those that have not begun: one may take milliseconds to start. So all there is to do must be done when `work` has returned here, but for what
/// others have begun.
pub fn with_helpers(threads: usize, work: impl Fn() + Send + Sync + 'static) {
    let shared = Arc::new((work, Turnstile::default()));
    for _ in 1..threads {
        let shared = Arc::clone(&shared);
        // Without it there is one less.
        let _ = std::thread::Builder::new().spawn(move || {
            let (work, turnstile) = &*shared;
            if let Some(_inside) = turnstile.enter() {
                work();
            }
        });
    }
    let (work, turnstile) = &*shared;
    work();
    turnstile.close();
}

/// Lets threads in until it is closed.
#[derive(Default)]
struct Turnstile {
    state: Mutex<Inside>,
    left: Condvar,
}

#[derive(Default)]
struct Inside {
    count: usize,
    is_closed: bool,
}

/// A thread inside; it leaves when this is dropped.
struct Visitor<'a>(&'a Turnstile);

impl Turnstile {
    fn enter(&self) -> Option<Visitor<'_>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_closed {
            return None;
        }
        state.count += 1;
        Some(Visitor(self))
    }

    /// Lets nobody in any more, and waits until all have left.
    fn close(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_closed = true;
        while state.count > 0 {
            state = self
                .left
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Visitor<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.count -= 1;
        self.0.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_thread_gives_something() {
        let taken = AtomicUsize::new(0);
        for (threads, expected) in [(0, 1), (1, 1), (4, 4)] {
            let all = side_by_side(threads, || taken.fetch_add(1, Ordering::Relaxed));
            assert_eq!(all.expect("none has panicked").len(), expected);
        }
    }

    #[test]
    fn what_helpers_have_begun_is_done_when_the_first_is_done() {
        for threads in [0, 1, 4] {
            let (begun, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let counts = (Arc::clone(&begun), Arc::clone(&done));
            let caller = std::thread::current().id();
            with_helpers(threads, move || {
                counts.0.fetch_add(1, Ordering::SeqCst);
                if std::thread::current().id() != caller {
                    std::thread::sleep(Duration::from_millis(20));
                }
                counts.1.fetch_add(1, Ordering::SeqCst);
            });
            let done = done.load(Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(begun.load(Ordering::SeqCst), done, "nobody begins later");
            assert!((1..=threads.max(1)).contains(&done));
        }
    }

    #[test]
    fn a_helper_that_panics_is_not_waited_for() {
        let caller = std::thread::current().id();
        with_helpers(2, move || {
            let is_caller = std::thread::current().id() == caller;
            assert!(is_caller, "on purpose");
            std::thread::sleep(Duration::from_millis(20));
        });
    }
}
