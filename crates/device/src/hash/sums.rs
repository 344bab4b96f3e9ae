//! The change hash on the processor, where it has AVX2 as fast as it reads memory.

/// Bytes of a block of the change hash.
pub const CHANGE_BLOCK: u64 = 65_536;
/// Bytes of the change hash's key.
pub const CHANGE_KEY_BYTES: usize = 65_536 + 16;

/// The two sums of a whole block, as the kernel computes them (`kernels/change.cu`).
pub(super) fn sums(block: &[u8; CHANGE_BLOCK as usize], key: &[u8; CHANGE_KEY_BYTES]) -> [u64; 2] {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { wide(block, key) };
    }
    plain(block, key)
}

/// As [`sums`], on any processor.
fn plain(block: &[u8; CHANGE_BLOCK as usize], key: &[u8; CHANGE_KEY_BYTES]) -> [u64; 2] {
    let (pairs, keys) = (block.as_chunks::<8>().0, key.as_chunks::<8>().0);
    [0, 1].map(|pass| {
        // Each pass begins 16 bytes further in the key.
        let pairs = pairs.iter().zip(&keys[2 * pass..]);
        pairs.fold(0, |sum: u64, (pair, key)| {
            sum.wrapping_add(product(*pair, *key))
        })
    })
}

fn product(pair: [u8; 8], key: [u8; 8]) -> u64 {
    let (pair, key) = (u64::from_le_bytes(pair), u64::from_le_bytes(key));
    let low = (pair as u32).wrapping_add(key as u32);
    let high = ((pair >> 32) as u32).wrapping_add((key >> 32) as u32);
    u64::from(low).wrapping_mul(u64::from(high))
}

/// As [`sums`], four pairs at a time.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn wide(block: &[u8; CHANGE_BLOCK as usize], key: &[u8; CHANGE_KEY_BYTES]) -> [u64; 2] {
    use std::arch::x86_64::{
        __m256i, _mm256_add_epi32, _mm256_add_epi64, _mm256_extract_epi64, _mm256_loadu_si256,
        _mm256_mul_epu32, _mm256_setzero_si256, _mm256_srli_epi64,
    };
    let load = |bytes: &[u8; 32]| {
        // SAFETY: the 32 bytes can be read, and the address need not be aligned.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    };
    let add = |sum: __m256i, words: __m256i, key: &[u8; 32]| {
        let words = _mm256_add_epi32(words, load(key));
        let products = _mm256_mul_epu32(words, _mm256_srli_epi64::<32>(words));
        _mm256_add_epi64(sum, products)
    };
    let (blocks, first, second) = (
        block.as_chunks::<32>().0,
        key.as_chunks::<32>().0,
        key[16..].as_chunks::<32>().0,
    );
    let mut sums = [_mm256_setzero_si256(); 2];
    for ((words, first), second) in blocks.iter().zip(first).zip(second) {
        let words = load(words);
        sums = [add(sums[0], words, first), add(sums[1], words, second)];
    }
    sums.map(|sum| {
        let lanes = [
            _mm256_extract_epi64::<0>(sum),
            _mm256_extract_epi64::<1>(sum),
            _mm256_extract_epi64::<2>(sum),
            _mm256_extract_epi64::<3>(sum),
        ];
        lanes
            .into_iter()
            .fold(0, |sum: u64, lane| sum.wrapping_add(lane as u64))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled<const N: usize>(mut state: u64) -> Box<[u8; N]> {
        let mut bytes = vec![0; N];
        for byte in &mut bytes {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
        bytes.try_into().expect("its length")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn both_ways_give_the_same_sums(seed: u64) {
            let (block, key) = (filled(seed), filled(!seed));
            prop_assert_eq!(sums(&block, &key), plain(&block, &key));
        }
    }

    #[test]
    fn words_that_overflow_do_so_in_both_ways() {
        let (block, key) = (
            Box::new([0xFF; CHANGE_BLOCK as usize]),
            Box::new([0xFE; CHANGE_KEY_BYTES]),
        );
        assert_eq!(sums(&block, &key), plain(&block, &key));
        let product = 0xFEFE_FEFD_u64.wrapping_mul(0xFEFE_FEFD);
        assert_eq!(
            plain(&block, &key),
            [product.wrapping_mul(CHANGE_BLOCK / 8); 2]
        );
    }
}
