//! A thread whose end can be waited for with a deadline, which `std` does not offer.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle, Result};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// A thread. Dropped, it goes on by itself.
#[derive(Debug)]
pub struct Thread<T> {
    handle: JoinHandle<T>,
    end: Arc<End>,
}

/// Whether the thread is done with its work.
#[derive(Debug, Default)]
struct End {
    has_come: Mutex<bool>,
    came: Condvar,
}

/// Signals the end when it is dropped, also when the work panics.
struct Working(Arc<End>);

impl Drop for Working {
    fn drop(&mut self) {
        *self.0.has_come.lock() = true;
        self.0.came.notify_all();
    }
}

impl<T: Send + 'static> Thread<T> {
    /// Starts a thread that does `work`.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(builder: Builder, work: impl FnOnce() -> T + Send + 'static) -> io::Result<Self> {
        let end = Arc::<End>::default();
        let working = Working(Arc::clone(&end));
        let handle = builder.spawn(move || {
            let _working = working;
            work()
        })?;
        Ok(Self { handle, end })
    }

    /// Whether its work is done; what that owned is gone by then.
    pub fn is_done(&self) -> bool {
        *self.end.has_come.lock()
    }

    /// Waits until its work is done; false if it is not within `limit`.
    pub fn ends_within(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut has_come = self.end.has_come.lock();
        while !*has_come {
            if self.end.came.wait_until(&mut has_come, until).timed_out() {
                return *has_come;
            }
        }
        true
    }

    /// Waits for its end, however long that takes; returns the result of its work.
    ///
    /// # Errors
    /// It has panicked.
    pub fn join(self) -> Result<T> {
        self.handle.join()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const LONG: Duration = Duration::from_secs(300);

    #[test]
    fn the_end_of_a_thread_is_waited_for_with_a_deadline() {
        let (go_on, goes_on) = channel::<()>();
        let work = move || goes_on.recv().is_ok();
        let thread = Thread::start(Builder::new(), work).unwrap();
        assert!(!thread.is_done() && !thread.ends_within(Duration::from_millis(1)));
        go_on.send(()).unwrap();
        assert!(thread.ends_within(LONG) && thread.is_done());
        assert!(thread.join().unwrap());
    }

    #[test]
    fn a_thread_that_panics_has_ended() {
        let thread = Thread::start(Builder::new(), || panic!("as the test wants")).unwrap();
        assert!(thread.ends_within(LONG));
        assert!(thread.join().is_err());
    }
}
