//! Writing a pack of a checkpoint's chunks.

use fermata_object::{Client, put_parts};

use crate::Result;
use crate::checkpoint::transfer::Outgoing;

/// Writes these chunks one after the other as object `key`.
pub(super) fn put_pack(client: &Client, key: &str, out: &Outgoing, chunks: &[usize]) -> Result<()> {
    let mut starts = Vec::with_capacity(chunks.len());
    let mut total = 0;
    for chunk in chunks {
        starts.push((*chunk, total));
        total += u64::from(out.table().records()[*chunk].length);
    }
    put_parts(client, key, total, |start, end| {
        content(out, &starts, start, end)
    })
}

/// The pack's bytes from `start` to `end`.
fn content(out: &Outgoing, starts: &[(usize, u64)], start: u64, end: u64) -> Result<Vec<u8>> {
    let mut content = Vec::with_capacity((end - start) as usize);
    let first = starts
        .partition_point(|(_, at)| *at <= start)
        .saturating_sub(1);
    for (chunk, at) in &starts[first..] {
        if *at >= end {
            break;
        }
        let bytes = out.message(&[*chunk])?;
        let from = start.saturating_sub(*at) as usize;
        let to = bytes.len().min((end - at) as usize);
        content.extend_from_slice(&bytes[from..to]);
    }
    Ok(content)
}
