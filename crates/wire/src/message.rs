//! The header of a message in the ring.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 4 | length of the encoded operation that follows |
//! | 4 | 2 | kind: 1 operation, 2 padding to the end of the ring |
//! | 6 | 2 | reply slot, 0xffff if no answer is wanted |
//! | 8 | 4 | sequence number of the request within its slot |
//! | 12 | 4 | length of the overflow range, 0 if none |
//! | 16 | 8 | offset of the overflow range in the staging area |
//! | 24 | 8 | number of the message, counted from 0 |

use crate::layout::{ALIGN, MESSAGE_HEADER};
use crate::reply::Ticket;

/// Kind: an operation follows.
pub(crate) const KIND_OP: u16 = 1;
/// Kind: nothing until the end of the ring.
pub(crate) const KIND_PAD: u16 = 2;
/// Slot number of a message that wants no answer.
pub(crate) const NO_SLOT: u16 = 0xffff;

/// A message's header, as written; nothing in it has been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub len: u32,
    pub kind: u16,
    pub slot: u16,
    pub sequence: u32,
    pub overflow_len: u32,
    pub overflow: u64,
    pub number: u64,
}

impl Header {
    /// The header of operation `number`.
    #[inline]
    pub fn operation(len: u32, ticket: Option<Ticket>, number: u64) -> Self {
        let none = Ticket {
            slot: NO_SLOT,
            sequence: 0,
            overflow: 0,
            overflow_len: 0,
        };
        let Ticket {
            slot,
            sequence,
            overflow,
            overflow_len,
        } = ticket.unwrap_or(none);
        Self {
            len,
            kind: KIND_OP,
            slot,
            sequence,
            overflow_len,
            overflow,
            number,
        }
    }

    /// The header of padding that takes `bytes`, header included.
    pub fn padding(bytes: u64, number: u64) -> Self {
        let len = bytes.saturating_sub(MESSAGE_HEADER) as u32;
        Self {
            kind: KIND_PAD,
            ..Self::operation(len, None, number)
        }
    }

    /// Where an answer goes, if one is wanted.
    pub fn ticket(&self) -> Option<Ticket> {
        (self.slot != NO_SLOT).then_some(Ticket {
            slot: self.slot,
            sequence: self.sequence,
            overflow: self.overflow,
            overflow_len: self.overflow_len,
        })
    }

    #[inline]
    pub fn encode(&self) -> [u8; MESSAGE_HEADER as usize] {
        let mut out = [0; MESSAGE_HEADER as usize];
        out[0..4].copy_from_slice(&self.len.to_le_bytes());
        out[4..6].copy_from_slice(&self.kind.to_le_bytes());
        out[6..8].copy_from_slice(&self.slot.to_le_bytes());
        out[8..12].copy_from_slice(&self.sequence.to_le_bytes());
        out[12..16].copy_from_slice(&self.overflow_len.to_le_bytes());
        out[16..24].copy_from_slice(&self.overflow.to_le_bytes());
        out[24..32].copy_from_slice(&self.number.to_le_bytes());
        out
    }

    #[inline]
    pub fn decode(bytes: &[u8; MESSAGE_HEADER as usize]) -> Self {
        let [
            l0,
            l1,
            l2,
            l3,
            k0,
            k1,
            s0,
            s1,
            q0,
            q1,
            q2,
            q3,
            v0,
            v1,
            v2,
            v3,
            rest @ ..,
        ] = *bytes;
        let [o0, o1, o2, o3, o4, o5, o6, o7, number @ ..] = rest;
        Self {
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            kind: u16::from_le_bytes([k0, k1]),
            slot: u16::from_le_bytes([s0, s1]),
            sequence: u32::from_le_bytes([q0, q1, q2, q3]),
            overflow_len: u32::from_le_bytes([v0, v1, v2, v3]),
            overflow: u64::from_le_bytes([o0, o1, o2, o3, o4, o5, o6, o7]),
            number: u64::from_le_bytes(number),
        }
    }

    /// Bytes the message takes in the ring.
    pub fn span(&self) -> u64 {
        span(u64::from(self.len))
    }
}

/// Bytes a message with a body of `len` takes in the ring.
#[inline]
pub(crate) fn span(len: u64) -> u64 {
    (MESSAGE_HEADER + len).next_multiple_of(ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_survives_a_round_trip() {
        let ticket = Ticket {
            slot: 7,
            sequence: 9,
            overflow: 1 << 40,
            overflow_len: 77,
        };
        let header = Header::operation(123, Some(ticket), u64::MAX - 3);
        assert_eq!(Header::decode(&header.encode()), header);
        assert_eq!(header.ticket(), Some(ticket));
        assert_eq!(header.span(), 160);
        assert_eq!(Header::padding(48, 1).span(), 48);
        assert_eq!(Header::padding(48, 1).ticket(), None);
    }
}
