//! The same work on several threads.

use std::io;

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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn each_thread_gives_something() {
        let taken = AtomicUsize::new(0);
        for (threads, expected) in [(0, 1), (1, 1), (4, 4)] {
            let all = side_by_side(threads, || taken.fetch_add(1, Ordering::Relaxed));
            assert_eq!(all.expect("none has panicked").len(), expected);
        }
    }
}
