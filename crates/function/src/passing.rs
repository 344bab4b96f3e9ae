//! The body of an answer on its way from an instance to the client. The instance is free when its last byte has come;
//! one that breaks off, takes too long, or whose client has gone or does not read is thrown away.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::pool::Lease;

/// What can go wrong with a body.
pub type BodyError = Box<dyn Error + Send + Sync>;

/// The body of an answer.
pub struct Passing {
    from: Incoming,
    lease: Arc<Mutex<Option<Lease>>>,
    watch: AbortHandle,
}

impl Passing {
    /// The body `from` the instance of `lease`. All of it must have gone to the client by `until`; else the instance is
    /// ended, and `cut` is notified: a client that does not read is not asked for anything else.
    pub fn new(from: Incoming, lease: Lease, until: Instant, cut: Arc<Notify>) -> Self {
        let lease = Arc::new(Mutex::new(Some(lease)));
        let held = Arc::clone(&lease);
        let watch = tokio::spawn(async move {
            // A clock is what is waited for.
            tokio::time::sleep_until(until.into()).await;
            let late = held.lock().take();
            if late.is_some() {
                cut.notify_one();
            }
        });
        let new = Self {
            from,
            lease,
            watch: watch.abort_handle(),
        };
        new.release_at_end();
        new
    }

    /// A body at its end is not asked for more.
    fn release_at_end(&self) {
        if self.from.is_end_stream() {
            self.release();
        }
    }

    fn release(&self) {
        let lease = self.lease.lock().take();
        if let Some(lease) = lease {
            lease.release();
        }
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        self.watch.abort();
        let lease = self.lease.lock().take();
        drop(lease);
    }
}

impl Body for Passing {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = Pin::new(&mut self.from).poll_frame(context);
        match &polled {
            Poll::Ready(Some(Ok(_))) => self.release_at_end(),
            Poll::Ready(Some(Err(_))) => drop(self.lease.lock().take()),
            Poll::Ready(None) => self.release(),
            Poll::Pending => {}
        }
        polled.map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.from.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.from.size_hint()
    }
}
