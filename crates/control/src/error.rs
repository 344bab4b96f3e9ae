//! What can go wrong on a control connection.

use std::io;
use std::time::Duration;

use crate::trust::TrustError;

/// A failed step of a conversation; the message names the peer and the step.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No process listens there.
    #[error("cannot connect to {peer} at `{path}`")]
    Connect {
        /// Who was called.
        peer: String,
        /// The socket's path.
        path: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The socket, or who listens there, is not to be trusted; nothing was sent.
    #[error("the socket of {peer} is not used")]
    Untrusted {
        /// Who was called.
        peer: String,
        /// The reason.
        #[source]
        source: TrustError,
    },
    /// The kernel refused a read, write or wait.
    #[error("cannot {step} {peer}")]
    Io {
        /// Who is at the other end.
        peer: String,
        /// Such as "send to".
        step: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Nothing came in time; the connection is still good.
    #[error("no message from {peer} within {waited:?}")]
    Timeout {
        /// Who is at the other end.
        peer: String,
        /// How long was waited.
        waited: Duration,
    },
    /// A message stopped in the middle for too long; the connection is useless.
    #[error("{peer} stalled in the middle of a message ({step})")]
    Stalled {
        /// Who is at the other end.
        peer: String,
        /// Such as "receive from".
        step: &'static str,
    },
    /// The peer is gone.
    #[error("{peer} closed the connection")]
    Closed {
        /// Who was at the other end.
        peer: String,
    },
    /// A length beyond the bound.
    #[error("a message of {bytes} bytes exchanged with {peer} exceeds the limit of {limit}")]
    TooLong {
        /// Who is at the other end.
        peer: String,
        /// The length announced or asked for.
        bytes: usize,
        /// The bound.
        limit: usize,
    },
    /// More descriptors than a message may carry.
    #[error("too many descriptors in one message exchanged with {peer}")]
    TooManyDescriptors {
        /// Who is at the other end.
        peer: String,
    },
    /// Not a message of this conversation.
    #[error("a message exchanged with {peer} cannot be understood")]
    Malformed {
        /// Who is at the other end.
        peer: String,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
}

impl ControlError {
    /// Whether this is a [`ControlError::Timeout`], after which the connection can be used further.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout { .. })
    }

    /// Whether the peer closed the connection.
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Closed { .. })
    }
}
