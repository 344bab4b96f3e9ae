//! Buffers in which captured data waits to be written: pinned ones for device data, plain ones for host
//! data, both bounded.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_device::HostEnd;
use fermata_store::AlignedBuf;
use parking_lot::{Condvar, Mutex};

/// Bytes of a buffer: data is copied in pieces of at most this length.
pub(crate) const PIECE: usize = 4 << 20;

/// A buffer with a piece of a variable.
pub(crate) enum Buffer {
    Pinned(HostEnd),
    Plain(PlainBuffer),
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Pinned(b) => b.bytes(),
            Self::Plain(b) => b,
        }
    }
}

struct Shared {
    /// Buffers that are free, and how many more may be made.
    free: Mutex<(Vec<AlignedBuf>, usize)>,
    returned: Condvar,
}

/// Plain buffers, made as needed up to a number.
#[derive(Clone)]
pub(crate) struct PlainPool {
    shared: Arc<Shared>,
}

/// A plain buffer; it goes back when dropped.
pub(crate) struct PlainBuffer {
    buffer: Option<AlignedBuf>,
    shared: Arc<Shared>,
}

impl PlainPool {
    /// At most as many buffers as `bytes` hold, four at least.
    pub(crate) fn new(bytes: u64) -> Self {
        let count = (bytes as usize / PIECE).max(4);
        Self {
            shared: Arc::new(Shared {
                free: Mutex::new((Vec::new(), count)),
                returned: Condvar::new(),
            }),
        }
    }

    /// A buffer, waited for until `until`.
    pub(crate) fn take(&self, limit: Duration) -> Option<PlainBuffer> {
        let until = Instant::now() + limit;
        let mut free = self.shared.free.lock();
        loop {
            if let Some(buffer) = free.0.pop() {
                return Some(self.wrap(buffer));
            }
            if free.1 > 0 {
                free.1 -= 1;
                drop(free);
                return Some(self.wrap(AlignedBuf::new(PIECE)));
            }
            if self
                .shared
                .returned
                .wait_until(&mut free, until)
                .timed_out()
            {
                return None;
            }
        }
    }

    fn wrap(&self, buffer: AlignedBuf) -> PlainBuffer {
        PlainBuffer {
            buffer: Some(buffer),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl Deref for PlainBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.buffer.as_deref().unwrap_or(&[])
    }
}

impl DerefMut for PlainBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buffer.as_deref_mut().unwrap_or(&mut [])
    }
}

impl Drop for PlainBuffer {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.shared.free.lock().0.push(buffer);
            self.shared.returned.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_buffers_than_agreed() {
        let pool = PlainPool::new(0);
        let short = Duration::from_millis(20);
        let held: Vec<_> = (0..4).map(|_| pool.take(short).unwrap()).collect();
        assert!(pool.take(short).is_none());
        drop(held);
        assert_eq!(pool.take(short).unwrap().len(), PIECE);
    }
}
