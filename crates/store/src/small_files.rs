//! The same work for many small files, by several threads: most of the time goes to opening each.

use std::panic::resume_unwind;

use parking_lot::Mutex;

use crate::threads::{cores, side_by_side};

/// The most threads, and for how many files there is one more.
const THREADS: usize = 8;
const WORTH: usize = 24;

/// What `work` gives for each file, in their order.
pub(crate) fn of_each<F: Send, T: Send>(files: Vec<F>, work: impl Fn(F) -> T + Sync) -> Vec<T> {
    let threads = cores().min(THREADS).min(files.len().div_ceil(WORTH));
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
    let all = side_by_side(threads, "files", some).into_iter();
    let mut done: Vec<_> = all
        .flat_map(|it| it.unwrap_or_else(|panic| resume_unwind(panic)))
        .collect();
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
