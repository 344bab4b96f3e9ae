//! Maps by handle with a fast hash, for the path of every launch.
//!
//! Handles are consecutive numbers that a program's own library gives out. No other program chooses them, so a hash that
//! resists chosen keys would only cost time.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map whose keys are made of handles.
pub type HandleMap<K, V> = HashMap<K, V, BuildHasherDefault<HandleHasher>>;

/// Multiplies and folds; good for few distinct words.
#[derive(Debug, Default, Clone, Copy)]
pub struct HandleHasher(u64);

/// An odd number without pattern (the golden ratio's digits).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for HandleHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        let mixed = u128::from(self.0.rotate_left(23) ^ word) * u128::from(SPREAD);
        self.0 = (mixed as u64) ^ ((mixed >> 64) as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_in_a_row_spread_over_buckets() {
        let mut seen = [0u32; 64];
        for handle in 0x100..0x100 + 6400u64 {
            let mut hasher = HandleHasher::default();
            hasher.write_u64(handle);
            seen[(hasher.finish() % 64) as usize] += 1;
        }
        assert!(
            seen.iter().all(|count| (50..200).contains(count)),
            "{seen:?}"
        );
    }
}
