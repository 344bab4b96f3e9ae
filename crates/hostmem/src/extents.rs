//! What of a process's memory is where in the file of a copy.

use std::ops::Range;

/// Pages of the copy that follow each other in memory and in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// Their addresses.
    pub range: Range<u64>,
    /// Where they are in the file.
    pub offset: u64,
}

/// Where in copies, of which these are the extents, `pages` are: what each has of them. All ascend, and no page is in two copies.
///
/// # Errors
/// The first address that none of them has.
pub fn select<const N: usize>(
    copies: [&[Extent]; N],
    pages: &[Range<u64>],
) -> Result<[Vec<Extent>; N], u64> {
    let mut selected = [const { Vec::new() }; N];
    for wanted in pages {
        let mut at = wanted.start;
        while at < wanted.end {
            let found = copies
                .iter()
                .zip(&mut selected)
                .find_map(|(extents, into)| {
                    let next = extents.partition_point(|it| it.range.end <= at);
                    let extent = extents.get(next).filter(|it| it.range.start <= at)?;
                    let range = at..wanted.end.min(extent.range.end);
                    let offset = extent.offset + (at - extent.range.start);
                    into.push(Extent {
                        range: range.clone(),
                        offset,
                    });
                    Some(range.end)
                });
            at = found.ok_or(at)?;
        }
    }
    Ok(selected)
}

/// The parts of `pages` that are not in a copy of which these are the extents.
pub(crate) fn lacking(extents: &[Extent], pages: &Range<u64>) -> Vec<Range<u64>> {
    let first = extents.partition_point(|it| it.range.end <= pages.start);
    let inside = extents[first..].iter().map(|it| &it.range);
    let (mut lacking, mut at) = (Vec::new(), pages.start);
    for range in inside.take_while(|it| it.start < pages.end) {
        if at < range.start {
            lacking.push(at..range.start);
        }
        at = range.end;
    }
    if at < pages.end {
        lacking.push(at..pages.end);
    }
    lacking
}

/// Where the exact copy of a process is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exact {
    /// In its own file, by ascending address.
    pub own: Vec<Extent>,
    /// In the file of the process that has forked it, likewise.
    pub parents: Vec<Extent>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE;

    #[test]
    fn parts_of_a_copy_are_found_or_named() {
        let extent = |pages: Range<u64>, at: u64| Extent {
            range: pages.start * PAGE..pages.end * PAGE,
            offset: at * PAGE,
        };
        let pages = |pages: Range<u64>| pages.start * PAGE..pages.end * PAGE;
        let all = [extent(10..14, 0), extent(14..16, 8), extent(20..22, 4)];
        let found = select([&all], &[pages(11..15), pages(20..21)]);
        let expected = vec![extent(11..14, 1), extent(14..15, 8), extent(20..21, 4)];
        assert_eq!(found, Ok([expected]));
        assert_eq!(select([&all], &[]), Ok([Vec::new()]));
        for (lacking, first) in [(9..11, 9), (15..21, 16), (21..23, 22), (30..31, 30)] {
            assert_eq!(select([&all], &[pages(lacking)]), Err(first * PAGE));
        }
        let lacks = |wanted| lacking(&all, &pages(wanted));
        assert_eq!(lacks(8..24), [pages(8..10), pages(16..20), pages(22..24)]);
        assert_eq!([lacks(11..15), lacks(20..22)], [[], []]);
        assert_eq!(
            [lacks(16..19), lacks(30..31)],
            [[pages(16..19)], [pages(30..31)]]
        );
        let second = [extent(8..10, 20), extent(16..20, 30)];
        let found = select([&all, &second], &[pages(9..22)]);
        let first = vec![extent(10..14, 0), extent(14..16, 8), extent(20..22, 4)];
        let others = vec![extent(9..10, 21), extent(16..20, 30)];
        assert_eq!(found, Ok([first, others]));
    }
}
