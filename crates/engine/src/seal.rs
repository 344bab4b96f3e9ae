//! Seals: by which the processor checks, where a stop waits for it, that a copy of device memory has come and lies where it
//! belongs.
//!
//! A seal is a keyed hash of each end of a piece, which the device computes before the copy. Two different ends have the same
//! hash with a probability of at most 2^-64, because the key is drawn for the save (`kernels/change.cu`). So a copy that has
//! not come, is cut, lies elsewhere or is written over is found at once. What lies between the ends is not read: the link and
//! both memories correct flipped bits, and whoever reads the chunk later holds it against its digest.

use std::io::Read as _;

use fermata_device::hash::{CHANGE_BLOCK, CHANGE_KEY_BYTES, Piece, change_hash};

/// The shortest piece that gets a seal: its ends do not overlap.
pub(crate) const SHORTEST: u64 = 2 * CHANGE_BLOCK;

/// The key of a save's seals.
pub(crate) struct SealKey(Box<[u8; CHANGE_KEY_BYTES]>);

/// The hashes of a piece's ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seal([[u8; 16]; 2]);

impl SealKey {
    /// A new key; `None` if the system gives no random bytes, so that copies are checked by their digests.
    pub fn draw() -> Option<Self> {
        let mut seed = [0; 32];
        let mut random = std::fs::File::open("/dev/urandom").ok()?;
        random.read_exact(&mut seed).ok()?;
        let mut key = Box::new([0; CHANGE_KEY_BYTES]);
        blake3::Hasher::new_keyed(&seed)
            .finalize_xof()
            .fill(&mut key[..]);
        Some(Self(key))
    }

    /// For the device.
    pub fn bytes(&self) -> &[u8; CHANGE_KEY_BYTES] {
        &self.0
    }

    /// Whether these bytes, [`SHORTEST`] at least, have the seal.
    pub fn fits(&self, seal: &Seal, bytes: &[u8]) -> bool {
        let last = last(bytes.len() as u64) as usize;
        let ends = [bytes.get(..CHANGE_BLOCK as usize), bytes.get(last..)];
        ends.iter()
            .zip(seal.0)
            .all(|(end, hash)| end.is_some_and(|end| change_hash(end, self.bytes()) == hash))
    }
}

impl Seal {
    /// What a device has to hash for the seal of a piece.
    pub fn ends((address, bytes): Piece) -> [Piece; 2] {
        let last = last(bytes);
        [(address, CHANGE_BLOCK), (address + last, bytes - last)]
    }

    /// The seals of pieces, of whose ends a device has found these hashes.
    pub fn of(hashes: &[[u8; 16]]) -> impl Iterator<Item = Self> {
        hashes.as_chunks::<2>().0.iter().copied().map(Self)
    }
}

/// Where the last block of a piece begins, which may be shorter.
fn last(bytes: u64) -> u64 {
    bytes.saturating_sub(1) / CHANGE_BLOCK * CHANGE_BLOCK
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = CHANGE_BLOCK as usize;

    /// As a device makes it.
    fn sealed(key: &SealKey, piece: &[u8]) -> Seal {
        let ends = Seal::ends((0, piece.len() as u64));
        let hashes = ends.map(|(from, bytes)| {
            let from = from as usize;
            change_hash(&piece[from..from + bytes as usize], key.bytes())
        });
        Seal::of(&hashes).next().expect("a seal")
    }

    #[test]
    fn a_copy_that_is_not_what_it_was_at_either_end_has_another_seal() {
        let key = SealKey::draw().expect("random bytes");
        for len in [2 * BLOCK, 2 * BLOCK + 5, 64 * BLOCK] {
            let piece: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let seal = sealed(&key, &piece);
            assert!(key.fits(&seal, &piece));
            for at in [0, BLOCK - 1, len - 1] {
                let mut other = piece.clone();
                other[at] ^= 1;
                assert!(!key.fits(&seal, &other), "byte {at} of {len}");
            }
            assert!(!key.fits(&seal, &piece[..BLOCK - 1]));
            assert!(!key.fits(&seal, &piece[..len - 1]));
            assert!(!key.fits(&seal, &vec![0; len]));
            let other = SealKey::draw().expect("random bytes");
            assert!(!other.fits(&seal, &piece), "another save's key");
        }
    }
}
