//! What can go wrong between program and worker.

use std::io;

/// A failure of the wire. After any but [`WireError::Timeout`], [`WireError::TooLarge`] and [`WireError::NoSlot`] the
/// session's ring is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The other process is gone or has closed its end.
    #[error("the {0} has closed the session's ring")]
    PeerGone(&'static str),
    /// Nothing came within the time given.
    #[error("no answer within {0} ms")]
    Timeout(u64),
    /// The shared memory does not look as it must.
    #[error("the ring's memory is not usable: {0}")]
    Layout(&'static str),
    /// A message or reply from the peer breaks a rule.
    #[error("malformed {what} at position {position}: {why}")]
    Malformed {
        /// Message, reply, staged range or frame.
        what: &'static str,
        /// Ring position, slot number or offset.
        position: u64,
        /// The rule.
        why: &'static str,
    },
    /// The bytes are framed well but do not decode.
    #[error("cannot decode the {what} at position {position}")]
    Decode {
        /// Message, reply or frame.
        what: &'static str,
        /// Ring position or slot number.
        position: u64,
        /// The decoder's reason.
        #[source]
        source: postcard::Error,
    },
    /// An operation does not fit into a message, a reply not into its slot, a range not into staging.
    #[error("{what} of {bytes} bytes is larger than the {limit} bytes there are")]
    TooLarge {
        /// What was to be sent.
        what: &'static str,
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// Every reply slot is in use, also the one that is kept for a drain.
    #[error("every reply slot is in use")]
    NoSlot,
    /// An operation could not be encoded.
    #[error("cannot encode the {what}")]
    Encode {
        /// Operation, reply or frame.
        what: &'static str,
        /// The encoder's reason.
        #[source]
        source: postcard::Error,
    },
    /// A system call failed.
    #[error("cannot {what}")]
    Io {
        /// The step.
        what: &'static str,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
}

impl WireError {
    pub(crate) fn io(what: &'static str, errno: rustix::io::Errno) -> Self {
        Self::Io {
            what,
            source: errno.into(),
        }
    }
}
