//! The Reed-Solomon code over one stripe; the only place that knows the library which computes it.

use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};

use crate::{AppError, Result};

fn fault(_: reed_solomon_simd::Error) -> AppError {
    AppError::Fault("the erasure code")
}

/// The parity rows of a stripe's data blocks, which are all equally long.
pub(crate) fn encode(data: &[Vec<u8>], losses: usize) -> Result<Vec<Vec<u8>>> {
    let bytes = data.first().map_or(0, Vec::len);
    let mut encoder = ReedSolomonEncoder::new(data.len(), losses, bytes).map_err(fault)?;
    for block in data {
        encoder.add_original_shard(block).map_err(fault)?;
    }
    let rows = encoder.encode().map_err(fault)?;
    Ok(rows.recovery_iter().map(<[u8]>::to_vec).collect())
}

/// Computes the missing data blocks of a stripe: those that are `None`. There must be as many blocks and
/// rows as the stripe has data blocks.
pub(crate) fn decode(
    data: &mut [Option<Vec<u8>>],
    rows: &[Option<Vec<u8>>],
    bytes: usize,
) -> Result<()> {
    let mut decoder = ReedSolomonDecoder::new(data.len(), rows.len(), bytes).map_err(fault)?;
    for (i, block) in data.iter().enumerate() {
        if let Some(block) = block {
            decoder.add_original_shard(i, block).map_err(fault)?;
        }
    }
    for (i, row) in rows.iter().enumerate() {
        if let Some(row) = row {
            decoder.add_recovery_shard(i, row).map_err(fault)?;
        }
    }
    let found = decoder.decode().map_err(fault)?;
    for (i, block) in found.restored_original_iter() {
        data[i] = Some(block.to_vec());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_losses_are_computed_again() {
        for (count, losses) in [(1, 1), (1, 3), (3, 1), (4, 2), (6, 2)] {
            let block = |i: usize| (0..128).map(|b| (b * 7 + i * 31) as u8).collect::<Vec<_>>();
            let data: Vec<_> = (0..count).map(block).collect();
            let rows = encode(&data, losses).unwrap();
            assert_eq!(rows.len(), losses);
            for first in 0..count {
                let lost = |i: usize| i >= first && i < first + losses;
                let mut left: Vec<_> = data
                    .iter()
                    .enumerate()
                    .map(|(i, b)| (!lost(i)).then(|| b.clone()))
                    .collect();
                let gone = left.iter().filter(|b| b.is_none()).count();
                // As many rows as blocks are gone, the last ones.
                let kept: Vec<_> = rows
                    .iter()
                    .enumerate()
                    .map(|(i, r)| (i >= losses - gone).then(|| r.clone()))
                    .collect();
                decode(&mut left, &kept, 128).unwrap();
                let back: Vec<_> = left.into_iter().map(Option::unwrap).collect();
                assert_eq!(back, data);
            }
        }
    }
}
