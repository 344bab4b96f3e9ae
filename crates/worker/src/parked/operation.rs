//! A parked operation, and which streams are held.

use std::collections::HashSet;

use fermata_abi::op::StreamRef;
use fermata_control::worker::Meeting;
use fermata_wire::Ticket;

/// An operation that waits.
pub(crate) struct Parked {
    pub bytes: Vec<u8>,
    pub ticket: Option<Ticket>,
}

/// Which streams get no work, because a stop is coming.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) enum Hold {
    /// None.
    #[default]
    Off,
    /// These, whose current work takes long; the others go on meanwhile.
    Some(HashSet<StreamRef>),
    /// These, and each other stream once it has been given work that may wait for other ranks.
    Step(HashSet<StreamRef>, Meeting),
    /// All.
    All,
    /// All, while everything is taken off the ring: the program's threads are about to be parked.
    Closing,
}

impl Hold {
    /// Whether all streams are held.
    pub fn is_whole(&self) -> bool {
        matches!(self, Self::All | Self::Closing)
    }

    pub fn holds(&self, stream: StreamRef) -> bool {
        match self {
            Self::Off => false,
            Self::Some(streams) | Self::Step(streams, _) => streams.contains(&stream),
            Self::All | Self::Closing => true,
        }
    }
}
