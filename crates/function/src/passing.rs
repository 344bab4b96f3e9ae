//! The body of an answer on its way from an instance to the client. The instance is free when its last byte has come;
//! one that breaks off, takes too long, or whose client has gone is thrown away.

use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::Sleep;

use crate::pool::Lease;

/// What can go wrong with a body.
pub type BodyError = Box<dyn Error + Send + Sync>;

/// The body of an answer.
pub struct Passing {
    from: Incoming,
    lease: Option<Lease>,
    until: Pin<Box<Sleep>>,
}

impl Passing {
    /// The body `from` the instance of `lease`, all of which must have come when `until` ends.
    pub fn new(from: Incoming, lease: Lease, until: Sleep) -> Self {
        let mut new = Self {
            from,
            lease: Some(lease),
            until: Box::pin(until),
        };
        new.release_at_end();
        new
    }

    /// A body at its end is not asked for more.
    fn release_at_end(&mut self) {
        if self.from.is_end_stream()
            && let Some(lease) = self.lease.take()
        {
            lease.release();
        }
    }
}

impl Body for Passing {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match Pin::new(&mut self.from).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                self.release_at_end();
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                self.lease = None;
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Ready(None) => {
                if let Some(lease) = self.lease.take() {
                    lease.release();
                }
                Poll::Ready(None)
            }
            Poll::Pending => match self.until.as_mut().poll(context) {
                Poll::Ready(()) => {
                    self.lease = None;
                    Poll::Ready(Some(Err("the instance takes too long".into())))
                }
                Poll::Pending => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.from.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.from.size_hint()
    }
}
