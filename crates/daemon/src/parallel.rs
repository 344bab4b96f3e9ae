//! Threads of one checkpoint or restore, for work on several processes, or parts of one, at the same time.

use std::io;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use fermata_control::worker::FailureKind;

use crate::failure::{OrFail, Result, fail};

/// How long to wait once the system has refused a descriptor or memory.
const BREATH: Duration = Duration::from_millis(20);

/// Waits after the system has refused a descriptor or memory, until others may have released some; no event reports that.
pub fn breathe() {
    std::thread::sleep(BREATH);
}

/// How many processors there are.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A thread, or why it could not be started.
pub type Beside<'scope, T> = io::Result<ScopedJoinHandle<'scope, Result<T>>>;

/// Starts a thread with a name. If it cannot be started, the others still run to their ends: see [`joined`].
pub fn beside<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> Result<T> + Send + 'scope,
) -> Beside<'scope, T> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn_scoped(scope, work)
}

/// Waits for a thread and returns its result.
///
/// # Errors
/// The thread's own failure; or it could not be started, or has panicked.
pub fn joined<T>(thread: Beside<'_, T>) -> Result<T> {
    let crashed = |_| {
        let message = "a thread of the daemon has failed";
        Err(fail(FailureKind::Internal, message))
    };
    let thread = thread.or_fail(FailureKind::Host, || "cannot start a thread".into())?;
    thread.join().unwrap_or_else(crashed)
}

/// Does `work` for every item, at the same time, and returns when all have ended: the results in the order of the items.
/// `what` names the threads. A single item needs none.
///
/// # Errors
/// The first failure, in the order of the items.
pub fn all_at_once<I: Send, T: Send>(
    items: Vec<I>,
    what: &str,
    work: impl Fn(I) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    each_at_once(items, what, work).into_iter().collect()
}

/// As [`all_at_once`], but returns the result of each item.
pub fn each_at_once<I: Send, T: Send>(
    items: Vec<I>,
    what: &str,
    work: impl Fn(I) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let work = &work;
    if items.len() <= 1 {
        return items.into_iter().map(work).collect();
    }
    std::thread::scope(|scope| {
        // An item whose thread cannot be started is not worked on, and its result says so.
        let start = |item| beside(scope, what, move || work(item));
        let threads: Vec<_> = items.into_iter().map(start).collect();
        threads.into_iter().map(joined).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        let done = all_at_once(vec![3, 1, 2], "x", |n: u32| Ok(n * 2)).expect("done");
        assert_eq!(done, [6, 2, 4]);
    }

    #[test]
    fn the_first_failure_is_told_after_all_have_ended() {
        let ended = std::sync::atomic::AtomicU32::new(0);
        let failed = all_at_once(vec![0, 1, 2], "x", |n: u32| {
            ended.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            match n {
                0 => Ok(()),
                n => Err(fail(FailureKind::User, format!("{n}"))),
            }
        });
        assert_eq!(failed.expect_err("two fail").message, "1");
        assert_eq!(ended.into_inner(), 3);
    }
}
