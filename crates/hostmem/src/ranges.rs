//! Files of pages of a process, by their addresses.
//!
//! | bytes | what |
//! | --- | --- |
//! | 8 | which kind of file it is |
//! | each: 8, 8 | address, and bytes, of pages |
//!
//! All numbers are little-endian.

use std::ops::Range;

use crate::PAGE;

/// What begins a file.
pub type Magic = [u8; 8];

/// The file of these ranges.
pub fn encode(magic: &Magic, ranges: &[Range<u64>]) -> Vec<u8> {
    let mut bytes = magic.to_vec();
    for range in ranges {
        bytes.extend(range.start.to_le_bytes());
        bytes.extend((range.end - range.start).to_le_bytes());
    }
    bytes
}

/// The ranges of a file, each none if it is not of whole pages; none at all if it is a file of another kind.
pub fn decode(
    magic: &Magic,
    bytes: &[u8],
) -> Option<impl ExactSizeIterator<Item = Option<Range<u64>>>> {
    let (words, _) = bytes.strip_prefix(magic)?.as_chunks::<8>();
    let pages = |pair: &[[u8; 8]; 2]| {
        let [start, bytes] = pair.map(u64::from_le_bytes);
        let end = start.checked_add(bytes)?;
        let whole = start.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE);
        (whole && bytes > 0).then_some(start..end)
    };
    Some(words.as_chunks::<2>().0.iter().map(pages))
}
