//! Several requests at the same time.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Requests under way at once.
const REQUESTS: usize = 4;

/// Does `work` for each number below `count`, a few at the same time. After a failure nothing more is begun.
///
/// # Errors
/// The first failure.
pub fn at_once<E: Send>(
    count: usize,
    work: impl Fn(usize) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let next = AtomicUsize::new(0);
    let failure: Mutex<Option<E>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..REQUESTS.min(count) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count || failure.lock().is_some() {
                        return;
                    }
                    if let Err(error) = work(number) {
                        failure.lock().get_or_insert(error);
                    }
                }
            });
        }
    });
    failure.into_inner().map_or(Ok(()), Err)
}
