//! Writing a pack: small ones at once, others in parts, several under way. A part is put together when its
//! turn comes, so memory holds a few parts, whatever the pack's size.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::client::{Client, REQUESTS};
use crate::checkpoint::transfer::Outgoing;
use crate::{AppError, Result};

/// Bytes of a part; services take 5 MiB to 5 GiB, the last one may be shorter.
const PART: u64 = 8 << 20;
/// Bytes after which a new pack begins. Services take 10,000 parts.
pub(super) const PACK: u64 = 1 << 30;

/// Writes these chunks one after the other as object `key`. Its bytes.
pub(super) fn put_pack(
    client: &Client,
    key: &str,
    out: &Outgoing,
    chunks: &[usize],
) -> Result<u64> {
    let mut starts = Vec::with_capacity(chunks.len());
    let mut total = 0;
    for chunk in chunks {
        starts.push((*chunk, total));
        total += u64::from(out.table().records()[*chunk].length);
    }
    let parts = total.div_ceil(PART) as usize;
    if parts <= 1 {
        client.put(key, &content(out, &starts, 0, total)?)?;
        return Ok(total);
    }
    let upload = client.begin_parts(key)?;
    let tags = Mutex::new(vec![String::new(); parts]);
    let failure: Mutex<Option<AppError>> = Mutex::default();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..REQUESTS.min(parts) {
            scope.spawn(|| {
                loop {
                    let part = next.fetch_add(1, Ordering::Relaxed);
                    if part >= parts || failure.lock().is_some() {
                        return;
                    }
                    let start = part as u64 * PART;
                    let bytes = content(out, &starts, start, total.min(start + PART));
                    let tag =
                        bytes.and_then(|bytes| client.part(key, &upload, part as u16 + 1, &bytes));
                    match tag {
                        Ok(tag) => tags.lock()[part] = tag,
                        Err(e) => {
                            failure.lock().get_or_insert(e);
                        }
                    }
                }
            });
        }
    });
    let ended = match failure.into_inner() {
        Some(e) => Err(e),
        None => client.end_parts(key, &upload, &tags.into_inner()),
    };
    if let Err(e) = ended {
        client.abort_parts(key, &upload);
        return Err(e);
    }
    Ok(total)
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
