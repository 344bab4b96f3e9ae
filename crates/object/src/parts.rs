//! Writing an object: a small one at once, a large one in parts, several under way. A part is put together when its turn
//! comes, so memory holds a few parts, whatever the object's size.

use parking_lot::Mutex;

use crate::ObjectError;
use crate::at_once::at_once;
use crate::client::Client;

/// Bytes of a part; services take 5 MiB to 5 GiB, the last one may be shorter.
const PART: u64 = 8 << 20;
/// Bytes after which another object should begin. Services take 10,000 parts.
pub const LARGE: u64 = 1 << 30;

/// Writes `total` bytes as object `key`; `content` returns those from one offset to another.
///
/// # Errors
/// The service's, or what `content` says; then there is no such object.
pub fn put_parts<E: From<ObjectError> + Send>(
    client: &Client,
    key: &str,
    total: u64,
    content: impl Fn(u64, u64) -> Result<Vec<u8>, E> + Sync,
) -> Result<(), E> {
    let parts = total.div_ceil(PART) as usize;
    if parts <= 1 {
        return Ok(client.put(key, &content(0, total)?)?);
    }
    let upload = client.begin_parts(key)?;
    let tags = Mutex::new(vec![String::new(); parts]);
    let written = at_once(parts, |part| {
        let start = part as u64 * PART;
        let bytes = content(start, total.min(start + PART))?;
        let tag = client.part(key, &upload, part as u16 + 1, &bytes)?;
        tags.lock()[part] = tag;
        Ok(())
    });
    let ended = written.and_then(|()| Ok(client.end_parts(key, &upload, &tags.into_inner())?));
    if ended.is_err() {
        client.abort_parts(key, &upload);
    }
    ended
}

/// Writes pieces of these lengths, one after the other, as object `key`; `piece` returns the bytes of one by its number, and
/// `done` hears how many bytes have been put together.
///
/// # Errors
/// As [`put_parts`].
pub fn put_pieces<E: From<ObjectError> + Send>(
    client: &Client,
    key: &str,
    lengths: impl Iterator<Item = u64>,
    piece: impl Fn(usize) -> Result<Vec<u8>, E> + Sync,
    done: impl Fn(u64) + Sync,
) -> Result<(), E> {
    let mut total = 0;
    let starts: Vec<u64> = lengths
        .map(|length| {
            total += length;
            total - length
        })
        .collect();
    put_parts(client, key, total, |start, end| {
        let mut content = Vec::with_capacity((end - start) as usize);
        let first = starts.partition_point(|at| *at <= start).saturating_sub(1);
        for (number, at) in starts.iter().enumerate().skip(first) {
            if *at >= end {
                break;
            }
            let bytes = piece(number)?;
            let from = start.saturating_sub(*at) as usize;
            let to = bytes.len().min((end - at) as usize);
            content.extend_from_slice(&bytes[from..to]);
        }
        done(end - start);
        Ok(content)
    })
}
