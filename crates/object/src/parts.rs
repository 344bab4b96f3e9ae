//! Writing an object: a small one at once, a large one in parts, several under way. A part is put together when its turn
//! comes, so memory holds a few parts, whatever the object's size.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::ObjectError;
use crate::client::{Client, REQUESTS};

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
    let failure: Mutex<Option<E>> = Mutex::new(None);
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
                    let bytes = content(start, total.min(start + PART));
                    let tag = bytes.and_then(|bytes| {
                        Ok(client.part(key, &upload, part as u16 + 1, &bytes)?)
                    });
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
        None => client
            .end_parts(key, &upload, &tags.into_inner())
            .map_err(E::from),
    };
    if ended.is_err() {
        client.abort_parts(key, &upload);
    }
    ended
}
