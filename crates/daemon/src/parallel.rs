//! Threads of one checkpoint or restore: what is done for several processes, or parts of one, at the same time.

use std::io;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use fermata_control::worker::FailureKind;

use crate::failure::{OrFail, Result, fail};

/// How long the system is left alone once it has refused a descriptor or memory.
const BREATH: Duration = Duration::from_millis(20);

/// A pause after the system has refused a descriptor or memory, for others to give some back. Nothing tells when they have.
pub fn breathe() {
    std::thread::sleep(BREATH);
}

/// A thread, or why there is none.
pub type Beside<'scope, T> = io::Result<ScopedJoinHandle<'scope, Result<T>>>;

/// Starts a thread with a name. One that cannot be started must not end the others in the middle: see [`joined`].
pub fn beside<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> Result<T> + Send + 'scope,
) -> Beside<'scope, T> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn_scoped(scope, work)
}

/// What a thread has come to.
///
/// # Errors
/// Its own; or there was no thread, or it has failed in the middle.
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

/// As [`all_at_once`], with what each item has come to.
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
        // What could not get a thread of its own has not begun, and says so.
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
