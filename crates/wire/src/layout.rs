//! Where everything lies in the memory file. The table in `docs/wire.md` is this file in prose.
//!
//! Every offset below is fixed; the four areas follow the header page at offsets which the header
//! itself states and which both sides check before they use them.

use crate::WireError;
use crate::rhythm::cores;

/// Version of the layout and of the message encoding; both sides must have the same.
pub const VERSION: u32 = 2;
/// First eight bytes of the memory file.
pub(crate) const MAGIC: &[u8; 8] = b"FERMATAR";

/// Offset of the version.
pub(crate) const VERSION_AT: usize = 8;
/// Offset of the number of cores that the creator may use, a `u32`: the worker's, which the creator starts.
pub(crate) const CORES_AT: usize = 12;
/// Offset of six `u64`: ring offset and bytes, slot offset and count, staging offset and bytes.
pub(crate) const SIZES_AT: usize = 16;
/// Bytes of the fixed part that the two above make.
pub(crate) const FIXED_BYTES: usize = SIZES_AT + 6 * 8;
/// `u64`: bytes ever written to the ring. Written by the producer.
pub(crate) const HEAD_AT: usize = 0x100;
/// `u64`: bytes ever taken from the ring. Written by the consumer.
pub(crate) const TAIL_AT: usize = 0x140;
/// `u32` futex: the consumer sleeps until the head moves.
pub(crate) const DOORBELL_AT: usize = 0x180;
/// `u32`: 1 if the consumer executes the barrier for both sides before it sleeps (`barrier.rs`).
pub(crate) const BARRIER_AT: usize = 0x184;
/// `u32` futex: a producer sleeps until the tail moves.
pub(crate) const SPACE_AT: usize = 0x1c0;
/// `u32`: state of the program's side, one of the `PEER_*`.
pub(crate) const PROGRAM_AT: usize = 0x200;
/// `u64`: the end of the staging area's part that the program has used, all others beginning at 0. Written by the program.
pub(crate) const STAGED_AT: usize = 0x208;
/// [`KEPT_BYTES`]: the name that the program gave to what it had staged when it let go; 0 if the staging area may have changed since.
/// Written by the program, and kept by [`crate::renew`].
pub(crate) const KEPT_AT: usize = 0x210;
/// Bytes of that name.
pub(crate) const KEPT_BYTES: usize = 16;
/// `u32`: state of the worker's side.
pub(crate) const WORKER_AT: usize = 0x240;
/// `u32` futex: host callbacks that the program has run since it attached. Written by the program.
pub(crate) const CALLBACKS_AT: usize = 0x280;
/// `u32`: host callbacks that the worker has asked for since the program attached. Written by the worker.
pub(crate) const ASKED_AT: usize = 0x2c0;
/// `u32` futex: the program's thread for host callbacks sleeps until more are asked for.
pub(crate) const CALLS_AT: usize = 0x2c4;
/// `u64` each: the numbers of the callbacks that were asked for last, each in the place of its count.
pub(crate) const CALL_IDS_AT: usize = 0x400;
/// Places there: so many callbacks may be asked for and not have run.
pub const CALL_PLACES: u32 = 256;
/// Bytes of the header page.
pub(crate) const HEADER_BYTES: u64 = 4096;

/// A peer's state word: attached (0 before that).
pub(crate) const PEER_ATTACHED: u32 = 1;
/// A peer's state word: it has left, or has given up.
pub(crate) const PEER_CLOSED: u32 = 2;

/// Messages in the ring begin at multiples of this.
pub(crate) const ALIGN: u64 = 16;
/// Bytes of a message's header.
pub(crate) const MESSAGE_HEADER: u64 = 32;
/// Bytes of a reply slot.
pub(crate) const SLOT_BYTES: u64 = 4096;
/// Offset in a slot of the futex word of the thread that waits for it.
pub(crate) const SLOT_WAITING: usize = 0;
/// Offset in a slot of the sequence number of the last reply.
pub(crate) const SLOT_DONE: usize = 4;
/// Offset in a slot of the reply's length.
pub(crate) const SLOT_LEN: usize = 8;
/// Offset in a slot: 0 if the reply is in the slot, 1 if it is in the request's overflow range.
pub(crate) const SLOT_WHERE: usize = 12;
/// Offset in a slot of the reply.
pub(crate) const SLOT_DATA: usize = 16;
/// Bytes of a reply that fit into a slot.
pub(crate) const SLOT_ROOM: u64 = SLOT_BYTES - SLOT_DATA as u64;

/// Sizes of a session's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Bytes of the ring: a power of two of at least 4096.
    pub ring: u64,
    /// Reply slots, 1 to 4096: as many answered operations can be under way at once. If there are several, one is kept for
    /// a drain.
    pub slots: u64,
    /// Bytes of the staging area, a multiple of 4096. Pages that were never used cost nothing.
    pub staging: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ring: 8 << 20,
            slots: 512,
            staging: 64 << 20,
        }
    }
}

/// Checked offsets and sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub ring: u64,
    pub ring_bytes: u64,
    pub slots: u64,
    pub slot_count: u64,
    pub staging: u64,
    pub staging_bytes: u64,
}

impl Layout {
    /// The layout for `config`.
    ///
    /// # Errors
    /// A size is out of range.
    pub fn new(config: &Config) -> Result<Self, WireError> {
        let layout = Self {
            ring: HEADER_BYTES,
            ring_bytes: config.ring,
            slots: HEADER_BYTES.saturating_add(config.ring),
            slot_count: config.slots,
            staging: HEADER_BYTES
                .saturating_add(config.ring)
                .saturating_add(config.slots.saturating_mul(SLOT_BYTES)),
            staging_bytes: config.staging,
        };
        layout.check()?;
        Ok(layout)
    }

    /// Bytes of the whole memory file.
    pub fn total(&self) -> u64 {
        self.staging + self.staging_bytes
    }

    /// Longest message, header included: two of them always fit.
    pub fn longest_message(&self) -> u64 {
        self.ring_bytes / 4
    }

    /// Bytes of the fixed part of the header.
    pub fn encode(&self) -> [u8; FIXED_BYTES] {
        let mut out = [0; FIXED_BYTES];
        out[..8].copy_from_slice(MAGIC);
        out[VERSION_AT..VERSION_AT + 4].copy_from_slice(&VERSION.to_le_bytes());
        let cores = u32::try_from(cores()).unwrap_or(u32::MAX);
        out[CORES_AT..CORES_AT + 4].copy_from_slice(&cores.to_le_bytes());
        let words = self.words();
        for (chunk, word) in out[SIZES_AT..].chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Reads and checks the fixed part; `file` is the size of the memory file.
    ///
    /// # Errors
    /// Not such a header, another version, or areas that do not fit the file.
    pub fn decode(bytes: &[u8; FIXED_BYTES], file: u64) -> Result<Self, WireError> {
        if &bytes[..8] != MAGIC {
            return Err(WireError::Layout("it does not begin with FERMATAR"));
        }
        if bytes[VERSION_AT..VERSION_AT + 4] != VERSION.to_le_bytes() {
            return Err(WireError::Layout("it is of another version"));
        }
        let mut words = [0; 6];
        for (word, chunk) in words.iter_mut().zip(bytes[SIZES_AT..].chunks_exact(8)) {
            let mut raw = [0; 8];
            raw.copy_from_slice(chunk);
            *word = u64::from_le_bytes(raw);
        }
        let [ring, ring_bytes, slots, slot_count, staging, staging_bytes] = words;
        let layout = Self {
            ring,
            ring_bytes,
            slots,
            slot_count,
            staging,
            staging_bytes,
        };
        layout.check()?;
        if layout.total() != file {
            return Err(WireError::Layout(
                "its areas do not add up to the file's size",
            ));
        }
        Ok(layout)
    }

    fn words(&self) -> [u64; 6] {
        [
            self.ring,
            self.ring_bytes,
            self.slots,
            self.slot_count,
            self.staging,
            self.staging_bytes,
        ]
    }

    fn check(&self) -> Result<(), WireError> {
        let ring_fits =
            self.ring_bytes.is_power_of_two() && (4096..=1 << 30).contains(&self.ring_bytes);
        if self.ring != HEADER_BYTES || !ring_fits {
            return Err(WireError::Layout(
                "the ring is not a power of two from 4 KiB to 1 GiB",
            ));
        }
        if self.slots != self.ring + self.ring_bytes || !(1..=4096).contains(&self.slot_count) {
            return Err(WireError::Layout(
                "there must be 1 to 4096 reply slots behind the ring",
            ));
        }
        let staging_fits = self.staging_bytes.is_multiple_of(4096) && self.staging_bytes <= 1 << 40;
        if self.staging != self.slots + self.slot_count * SLOT_BYTES || !staging_fits {
            return Err(WireError::Layout(
                "staging must be whole pages behind the slots",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn header_survives_a_round_trip() {
        let layout = Layout::new(&Config::default()).unwrap();
        assert_eq!(
            Layout::decode(&layout.encode(), layout.total()).unwrap(),
            layout
        );
        assert!(Layout::decode(&layout.encode(), layout.total() - 1).is_err());
    }

    proptest! {
        #[test]
        fn a_flipped_header_is_refused_or_equal(at in 0usize..FIXED_BYTES, bit in 0u8..8) {
            let layout = Layout::new(&Config::default()).unwrap();
            let mut bytes = layout.encode();
            bytes[at] ^= 1 << bit;
            let cores = (CORES_AT..SIZES_AT).contains(&at);
            prop_assert_eq!(Layout::decode(&bytes, layout.total()).is_ok(), cores);
        }

        #[test]
        fn any_header_is_refused_or_consistent(words in prop::array::uniform6(any::<u64>()), file in any::<u64>()) {
            let mut bytes = Layout::new(&Config::default()).unwrap().encode();
            for (chunk, word) in bytes[SIZES_AT..].chunks_exact_mut(8).zip(words) {
                chunk.copy_from_slice(&word.to_le_bytes());
            }
            prop_assert!(Layout::decode(&bytes, file).is_err());
        }
    }
}
