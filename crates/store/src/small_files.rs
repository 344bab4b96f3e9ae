//! The same work for many small files, by several threads: most of the time goes to opening each.

use std::panic::resume_unwind;
use std::thread::{self, Builder};

use parking_lot::Mutex;

/// The most threads, and for how many files there is one more.
const THREADS: usize = 8;
const WORTH: usize = 24;

/// What `work` gives for each file, in their order.
pub(crate) fn of_each<F: Send, T: Send>(files: Vec<F>, work: impl Fn(F) -> T + Sync) -> Vec<T> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(THREADS).min(files.len().div_ceil(WORTH));
    let left = Mutex::new(files.into_iter().enumerate());
    let some = || {
        let mut done = Vec::new();
        loop {
            let next = left.lock().next();
            match next {
                Some((number, file)) => done.push((number, work(file))),
                None => return done,
            }
        }
    };
    let mut done = thread::scope(|scope| {
        let start = |_| {
            let named = Builder::new().name("files".to_owned());
            // Without it the others do more.
            named.spawn_scoped(scope, some).ok()
        };
        let others: Vec<_> = (1..threads).filter_map(start).collect();
        let mut done = some();
        for it in others {
            done.extend(it.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, it)| it).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_worked_on_once_and_what_it_gives_is_in_order() {
        for count in [0, 1, WORTH, 20 * WORTH + 1] {
            let mut files = vec![0; count];
            let numbered = files.iter_mut().enumerate().collect();
            let given = of_each(numbered, |(number, file): (usize, &mut usize)| {
                *file += 1;
                number
            });
            assert!(given.into_iter().eq(0..count));
            assert!(files.iter().all(|it| *it == 1));
        }
    }
}
