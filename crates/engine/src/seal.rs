//! Seals: by which the processor checks copies of device memory that come faster than it can hash them.
//!
//! A seal is a keyed sum over all of a piece, which the device computes before the copy at the speed of its memory, and the
//! processor over what has arrived, several times as fast as the digest. Two different pieces have the same seal with a
//! probability of about 2^-64 over the key, which is drawn for each save: the hash of each 64 KiB block is a pair of sums of
//! products with the key (`kernels/change.cu`), and a seal is the sum of those, each times an odd number of its own. So
//! a copy that has not come, is cut, lies elsewhere or has a flipped bit is found as by its digest. What a seal cannot show is
//! that the device's digest is the piece's: for that the processor hashes as many pieces as it can.

use fermata_device::hash::{CHANGE_BLOCK, CHANGE_KEY_BYTES, change_hash};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::CHUNK;

/// Blocks of the longest piece that gets a seal.
const MOST_BLOCKS: usize = (CHUNK / CHANGE_BLOCK) as usize;

/// The key of a save's seals.
pub(crate) struct SealKey {
    key: Box<[u8; CHANGE_KEY_BYTES]>,
    /// Odd numbers, two for each block of a piece.
    weights: Box<[[u64; 2]; MOST_BLOCKS]>,
}

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seal([u64; 2]);

impl SealKey {
    /// A new key; `None` if the system gives no random bytes, so that all copies are hashed.
    pub fn draw() -> Option<Self> {
        let mut seed = [0; 32];
        let got = getrandom(&mut seed[..], GetRandomFlags::empty()).ok()?;
        if got < seed.len() {
            return None;
        }
        let mut stream = blake3::Hasher::new_keyed(&seed).finalize_xof();
        let mut key = Box::new([0; CHANGE_KEY_BYTES]);
        stream.fill(&mut key[..]);
        let mut weights = Box::new([[0; 2]; MOST_BLOCKS]);
        for weight in weights.as_flattened_mut() {
            let mut bytes = [0; 8];
            stream.fill(&mut bytes);
            *weight = u64::from_le_bytes(bytes) | 1;
        }
        Some(Self { key, weights })
    }

    /// For the device.
    pub fn bytes(&self) -> &[u8; CHANGE_KEY_BYTES] {
        &self.key
    }

    /// The seal of a piece whose blocks have these hashes ([`fermata_device::hash::Hasher::changes`]).
    pub fn seal(&self, hashes: impl IntoIterator<Item = [u8; 16]>) -> Seal {
        let mut sums = [0u64; 2];
        for (hash, weights) in hashes.into_iter().zip(self.weights.iter()) {
            let halves = hash.as_chunks::<8>().0;
            for ((sum, half), weight) in sums.iter_mut().zip(halves).zip(weights) {
                *sum = sum.wrapping_add(u64::from_le_bytes(*half).wrapping_mul(*weight));
            }
        }
        Seal(sums)
    }

    /// Whether these bytes, of a length that [`has_seal`], have the seal.
    pub fn fits(&self, seal: &Seal, bytes: &[u8]) -> bool {
        let blocks = bytes.chunks(CHANGE_BLOCK as usize);
        has_seal(bytes.len() as u64)
            && self.seal(blocks.map(|block| change_hash(block, &self.key))) == *seal
    }
}

/// Whether a piece of so many bytes gets a seal: it consists of whole blocks, and is no longer than a chunk.
pub(crate) fn has_seal(bytes: u64) -> bool {
    (1..=CHUNK).contains(&bytes) && bytes.is_multiple_of(CHANGE_BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = CHANGE_BLOCK as usize;

    fn sealed(key: &SealKey, piece: &[u8]) -> Seal {
        let blocks = piece.chunks(BLOCK);
        key.seal(blocks.map(|block| change_hash(block, key.bytes())))
    }

    #[test]
    fn a_copy_that_is_not_what_it_was_has_another_seal() {
        let key = SealKey::draw().expect("random bytes");
        for len in [BLOCK, 3 * BLOCK, CHUNK as usize] {
            let piece: Vec<u8> = (0..len).map(|at| (at / 7 % 251) as u8).collect();
            let seal = sealed(&key, &piece);
            assert!(key.fits(&seal, &piece));
            for at in [0, BLOCK - 1, len / 2, len - 1] {
                let mut other = piece.clone();
                other[at] ^= 1;
                assert!(!key.fits(&seal, &other), "byte {at} of {len}");
            }
            assert!(!key.fits(&seal, &piece[..len - 1]));
            assert!(!key.fits(&seal, &piece[..len - BLOCK]));
            assert!(!key.fits(&seal, &vec![0; len]));
            let other = SealKey::draw().expect("random bytes");
            assert!(!other.fits(&seal, &piece), "another save's key");
        }
    }

    #[test]
    fn blocks_that_have_changed_places_are_noticed() {
        let key = SealKey::draw().expect("random bytes");
        let (ones, twos) = ([1; BLOCK], [2; BLOCK]);
        let seal = sealed(&key, &[ones, twos].concat());
        assert!(!key.fits(&seal, &[twos, ones].concat()));
    }

    #[test]
    fn whole_blocks_up_to_a_chunk_have_seals() {
        let lengths = [
            0,
            1,
            CHANGE_BLOCK,
            CHANGE_BLOCK + 1,
            CHUNK,
            CHUNK + CHANGE_BLOCK,
        ];
        assert_eq!(
            lengths.map(has_seal),
            [false, false, true, false, true, false]
        );
    }
}
