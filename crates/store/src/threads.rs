//! The same work on several threads.

use std::thread::{self, Builder};

/// How many processors this process may use.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Runs `work` on this thread and up to `threads - 1` others of this name, until all have ended; what each gives, this one first, or
/// with what it has panicked. Where one of them cannot be started there is one less.
pub(crate) fn side_by_side<T: Send>(
    threads: usize,
    name: &str,
    work: impl Fn() -> T + Sync,
) -> Vec<thread::Result<T>> {
    thread::scope(|scope| {
        let start = |_| {
            let named = Builder::new().name(name.to_owned());
            named.spawn_scoped(scope, &work).ok()
        };
        let others: Vec<_> = (1..threads).filter_map(start).collect();
        let mut all = vec![Ok(work())];
        all.extend(others.into_iter().map(|it| it.join()));
        all
    })
}
