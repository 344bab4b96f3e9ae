//! Which pieces of large objects are read by one request.

/// Longest range that is read at once, in bytes.
const READ: u64 = 8 << 20;

/// Where a piece is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Number of the object.
    pub pack: u32,
    /// Its first byte there.
    pub offset: u64,
    /// Its bytes.
    pub length: u64,
}

/// Pieces in the order of their places, in groups that lie side by side and are read at once.
pub fn reads<T>(wanted: &[T], place: impl Fn(&T) -> Place) -> Vec<&[T]> {
    let mut bytes = 0;
    let reads = wanted.chunk_by(|piece, next| {
        let (piece, next) = (place(piece), place(next));
        bytes += piece.length;
        let follows = next.pack == piece.pack && next.offset == piece.offset + piece.length;
        let fits = follows && bytes + next.length <= READ;
        bytes *= u64::from(fits);
        fits
    });
    reads.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_side_by_side_is_read_at_once_as_far_as_it_is_short() {
        let place = |pack, offset, length| Place {
            pack,
            offset,
            length,
        };
        let half = READ / 2;
        let wanted = [
            place(0, 0, half),
            place(0, half, half),
            place(0, READ, 1),
            place(0, READ + 2, 1),
            place(1, READ + 3, 1),
            place(1, READ + 4, 2 * READ),
        ];
        let groups = reads(&wanted, |it| *it);
        let lengths: Vec<usize> = groups.iter().map(|it| it.len()).collect();
        assert_eq!(lengths, [2, 1, 1, 1, 1]);
        assert_eq!(groups.concat(), wanted);
    }
}
