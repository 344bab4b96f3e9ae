//! The file that a copy is kept in: a page of memory has a place of its own there, and is written there again when it has
//! changed.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use crate::places::Places;

/// Pages of a process and their places in the file.
#[derive(Debug)]
pub struct Slots {
    file: File,
    places: Places,
}

impl Slots {
    /// None yet; `file` is empty.
    pub fn new(file: File) -> Self {
        Self {
            file,
            places: Places::new(u64::MAX),
        }
    }

    /// The file.
    pub fn into_file(self) -> File {
        self.file
    }

    /// Gives `range` its place; what is there is undefined until it is written.
    pub fn reserve(&mut self, range: &Range<u64>) {
        self.places.reserve(range);
    }

    /// Writes `bytes`, those of `ranges` one behind the other; what follows each other in the file, too, at once.
    pub fn write(&mut self, ranges: &[Range<u64>], bytes: &[u8]) -> io::Result<()> {
        for range in ranges {
            self.reserve(range);
        }
        // Where in the file, and which of the bytes.
        let (mut place, mut part) = (0, 0..0);
        for range in ranges {
            for (inside, at) in self.within(range) {
                if at != place + part.len() as u64 {
                    self.file.write_all_at(&bytes[part.clone()], place)?;
                    (place, part) = (at, part.end..part.end);
                }
                part.end += (inside.end - inside.start) as usize;
            }
        }
        self.file.write_all_at(&bytes[part], place)
    }

    /// Forgets what lies in `range`.
    pub fn forget(&mut self, range: &Range<u64>) {
        self.places.forget(range);
    }

    /// Whether all of `range` is here.
    pub fn has(&self, range: &Range<u64>) -> bool {
        self.places.has(range)
    }

    /// The parts of `range` that are here, and where in the file.
    pub fn within(&self, range: &Range<u64>) -> impl Iterator<Item = (Range<u64>, u64)> {
        self.places.within(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(slots: &mut Slots, range: Range<u64>, bytes: &[u8]) -> io::Result<()> {
        slots.write(std::slice::from_ref(&range), bytes)
    }

    #[test]
    fn a_page_keeps_its_place() {
        let mut slots = Slots::new(tempfile::tempfile().expect("a file"));
        write(&mut slots, 100..110, b"0123456789").expect("written");
        write(&mut slots, 95..105, b"abcdefghij").expect("written again");
        let at = |range: Range<u64>| -> Vec<(Range<u64>, u64)> { slots.within(&range).collect() };
        assert_eq!(at(90..200), [(95..100, 10), (100..110, 0)]);
        assert_eq!(at(103..106), [(103..106, 3)]);
        assert!(slots.has(&(96..110)) && !slots.has(&(96..111)));
        slots.forget(&(98..102));
        assert!(!slots.has(&(96..110)));
        write(&mut slots, 98..102, b"wxyz").expect("written where they were");
        let at = slots.within(&(98..102)).collect::<Vec<_>>();
        assert_eq!(at, [(98..100, 0), (100..102, 13)]);
        let mut bytes = [0; 15];
        slots
            .into_file()
            .read_exact_at(&mut bytes, 0)
            .expect("read");
        assert_eq!(&bytes, b"wxhij56789abcyz");
    }
    #[test]
    fn ranges_are_written_together_where_they_follow_each_other() {
        let mut slots = Slots::new(tempfile::tempfile().expect("a file"));
        slots.write(&[], b"").expect("nothing is written");
        slots.write(&[20..23, 50..54], b"abcdefg").expect("written");
        // A new one, one that is known in two parts, one that is behind it in the file, and another new one.
        let ranges = [10..12, 22..24, 50..51, 60..61];
        slots.write(&ranges, b"hijklm").expect("written");
        let all: Vec<_> = [10..12, 20..24, 50..54, 60..61]
            .iter()
            .flat_map(|it| slots.within(it))
            .collect();
        let expected = [
            (10..12, 7),
            (20..23, 0),
            (23..24, 9),
            (50..54, 3),
            (60..61, 10),
        ];
        assert_eq!(all, expected);
        let mut bytes = [0; 11];
        let file = slots.into_file();
        file.read_exact_at(&mut bytes, 0).expect("read");
        assert_eq!(&bytes, b"abjlefghikm");
    }
}
