//! What is parked, and which streams are held.

use std::collections::HashSet;

use fermata_abi::op::StreamRef;
use fermata_control::worker::Meeting;
use fermata_wire::Ticket;

/// An operation that waits.
pub(crate) struct Parked {
    pub bytes: Vec<u8>,
    pub ticket: Option<Ticket>,
}

/// Which streams get nothing for now, for a stop that is coming.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) enum Hold {
    /// None.
    #[default]
    Off,
    /// These: what they are at takes long, and the others go on meanwhile.
    Some(HashSet<StreamRef>),
    /// These, and each other stream once it has been given something that may wait for others.
    Step(HashSet<StreamRef>, Meeting),
    /// All.
    All,
    /// All, and everything is taken off the ring: the program's threads are about to be parked.
    Closing,
}

impl Hold {
    /// Whether no stream gets anything.
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
