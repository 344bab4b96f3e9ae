//! Bytes of pages that were read before the process had a place for them. CRIU takes tens of milliseconds to make a process, and has
//! its mappings where they belong for the last few of them.

use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Parts of a file with pages, by where they begin.
#[derive(Debug, Clone, Default)]
pub struct Ahead(BTreeMap<u64, Arc<[u8]>>);

/// Some bytes of a part.
#[derive(Debug)]
pub struct Part {
    bytes: Arc<[u8]>,
    range: Range<usize>,
}

impl Ahead {
    /// The bytes of the file from `offset` on are these.
    pub fn insert(&mut self, offset: u64, bytes: Vec<u8>) {
        self.0.insert(offset, bytes.into());
    }

    /// So many bytes of the file from `offset` on, if one part has all of them.
    pub fn get(&self, offset: u64, bytes: usize) -> Option<Part> {
        let (start, part) = self.0.range(..=offset).next_back()?;
        let from = usize::try_from(offset - start).ok()?;
        let range = from..from.checked_add(bytes)?;
        (range.end <= part.len()).then(|| Part {
            bytes: Arc::clone(part),
            range,
        })
    }
}

impl Deref for Part {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_part_has_is_found_and_nothing_else() {
        let mut ahead = Ahead::default();
        ahead.insert(100, (0..50).collect());
        ahead.insert(150, (50..60).collect());
        let get = |offset, bytes| ahead.get(offset, bytes).map(|it| it.to_vec());
        assert_eq!(get(100, 50), Some((0..50).collect()));
        assert_eq!(get(110, 3), Some(vec![10, 11, 12]));
        assert_eq!(get(155, 5), Some((55..60).collect()));
        for (offset, bytes) in [(99, 1), (149, 2), (155, 6), (160, 1), (155, usize::MAX)] {
            assert_eq!(get(offset, bytes), None, "{bytes} at {offset}");
        }
    }
}
