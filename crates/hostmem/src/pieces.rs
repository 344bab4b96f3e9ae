//! Questions about many pages of a process, asked on several threads.
//!
//! The kernel looks at each page, more than a millisecond for each GiB, and takes some microseconds more for each question. While a program stands
//! still it waits for that.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::PAGE;
use crate::maps::Maps;
use crate::scan::{self, Pagemap};
use crate::threads::with_helpers;

/// Bytes that are asked about at once. Of larger mappings there are no more pieces than [`MOST`].
const PIECE: u64 = 64 << 20;
const MOST: u64 = 256;
/// Questions that a thread takes at once.
const TOGETHER: usize = 8;

/// What `ask` finds out about each of `items` from the pages of process `pid`, in their order, on up to `threads` threads.
///
/// # Errors
/// One of its errors, or the process has ended.
pub fn each<I: Send + Sync + 'static, T: Send + 'static>(
    pid: u32,
    items: Vec<I>,
    threads: usize,
    ask: fn(&mut Pagemap, &I) -> io::Result<T>,
) -> io::Result<Vec<T>> {
    let count = items.len();
    let next = AtomicUsize::new(0);
    let found = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&found);
    let work = move || {
        let mut pagemap = Pagemap::open(pid);
        loop {
            let first = next.fetch_add(TOGETHER, Ordering::Relaxed);
            let last = items.len().min(first.saturating_add(TOGETHER));
            let Some(some) = items.get(first..last).filter(|it| !it.is_empty()) else {
                return;
            };
            let ask = |item| match &mut pagemap {
                Ok(pagemap) => ask(pagemap, item),
                Err(error) => Err(io::Error::from(error.kind())),
            };
            let some = some.iter().map(ask).collect::<io::Result<Vec<T>>>();
            told.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push((first, some));
        }
    };
    with_helpers(threads.min(count.div_ceil(TOGETHER)), work);
    let mut found = std::mem::take(&mut *found.lock().unwrap_or_else(PoisonError::into_inner));
    found.sort_unstable_by_key(|(first, _)| *first);
    let mut all = Vec::with_capacity(count);
    for (_, some) in found {
        all.append(&mut some?);
    }
    match all.len() == count {
        true => Ok(all),
        false => Err(io::Error::other("a thread has panicked")),
    }
}

/// `range` in pieces that one question each is about.
pub fn pieces(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let Range { start, end } = *range;
    let least = (end - start).div_ceil(MOST).next_multiple_of(PAGE);
    let long = PIECE.max(least);
    (start..end)
        .step_by(long as usize)
        .map(move |at| at..end.min(at + long))
}

/// The pages of process `pid` that it has made inaccessible (`MADV_GUARD_INSTALL`), ascending, as the kernel tells them; none if this
/// kernel does not. The process stands still. Up to `threads` threads look for them.
///
/// # Errors
/// It has ended, or may not be examined.
pub fn guards(pid: u32, threads: usize) -> io::Result<Option<Vec<Range<u64>>>> {
    if !scan::knows_guards() {
        return Ok(None);
    }
    let maps = Maps::of(pid)?;
    // The kernel's own page, which is behind the address space, has none.
    let own = maps.entries().filter(|it| it.name != "[vsyscall]");
    let ranges = covered(own.map(|it| it.range));
    let found = each(pid, ranges, threads, Pagemap::guards)?;
    let mut guards: Vec<Range<u64>> = Vec::new();
    for range in found.into_iter().flatten() {
        match guards.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => guards.push(range),
        }
    }
    Ok(Some(guards))
}

/// Ranges that cover `mappings`, which ascend, of about as many bytes of them each: the kernel passes over what lies between two mappings.
fn covered(mappings: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut bytes = 0;
    for piece in mappings.flat_map(|it| pieces(&it)) {
        let long = piece.end - piece.start;
        bytes += long;
        match ranges.last_mut() {
            Some(last) if bytes <= PIECE => last.end = piece.end,
            _ => {
                bytes = long;
                ranges.push(piece);
            }
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_in_the_order_of_the_questions() {
        let items = || (0..100).collect::<Vec<usize>>();
        let pid = std::process::id();
        for threads in [0, 1, 4] {
            let told = each(pid, items(), threads, |_, it| Ok(2 * it)).expect("told");
            assert_eq!(told, items().iter().map(|it| 2 * it).collect::<Vec<_>>());
        }
        let told = each(pid, items(), 4, |_, it| match it {
            77 => Err(io::ErrorKind::InvalidData.into()),
            _ => Ok(()),
        });
        assert_eq!(
            told.map_err(|it| it.kind()),
            Err(io::ErrorKind::InvalidData)
        );
        assert_eq!(
            each(pid, vec![], 4, |_, (): &()| Ok(()))
                .expect("told")
                .len(),
            0
        );
        each(u32::MAX, items(), 4, |_, _| Ok(())).expect_err("there is no such process");
        each(pid, vec![()], 1, |pagemap, ()| {
            pagemap.frames(&(PAGE..2 * PAGE))
        })
        .expect("it is opened");
    }

    #[test]
    fn pieces_are_the_whole_range_and_not_too_many() {
        for (start, end) in [
            (PAGE, 2 * PAGE),
            (PAGE, PIECE),
            (PAGE, 5 * PIECE),
            (0, 1 << 46),
        ] {
            let all: Vec<_> = pieces(&(start..end)).collect();
            assert!(all.len() as u64 <= MOST);
            assert_eq!((all[0].start, all[all.len() - 1].end), (start, end));
            assert!(all.windows(2).all(|it| it[0].end == it[1].start));
            assert!(all.iter().all(|it| (it.end - it.start) % PAGE == 0));
        }
        assert_eq!(pieces(&(PAGE..PAGE)).count(), 0);
    }

    #[test]
    fn small_mappings_are_asked_about_together() {
        let small = (1..=40).map(|it| it << 32..(it << 32) + (16 << 20));
        let ranges = covered(small);
        assert_eq!(ranges.len(), 10);
        assert_eq!(ranges[0], 1 << 32..(4 << 32) + (16 << 20));
        let large = covered(std::iter::once(0..3 * PIECE + PAGE));
        assert_eq!(large.last(), Some(&(3 * PIECE..3 * PIECE + PAGE)));
    }
}
