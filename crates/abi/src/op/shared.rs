//! The handle of memory, an event or a memory pool that a program passes to another process of its session: of
//! `cuIpcGetMemHandle`, `cuIpcGetEventHandle` and `cuMemPoolExportPointer`, and what is in the file of an exported descriptor. It
//! names the object and holds nothing of it, so it is valid after a restore.
//!
//! Memory:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | magic `FERMSHAR` |
//! | 8 | 16 | the process that shares it: random bytes, drawn once |
//! | 24 | 8 | number of its content, never used twice in that process |
//! | 32 | 8 | bytes of the physical memory it lies in |
//! | 40 | 8 | where in there it begins |
//! | 48 | 8 | bytes |
//! | 56 | 8 | the process's own handle of the physical memory; 0 for an allocation |
//!
//! An event or a pool:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | magic `FERMEVNT` or `FERMPOOL` |
//! | 8 | 16 | the process that shares it |
//! | 24 | 8 | an event's number, never used twice in that process; a pool's handle there |
//! | 32 | 8 | a pool's device, by its index in the session; 0 for an event |
//! | 40 | 24 | reserved, 0 |
//!
//! All numbers are little-endian. Any process may have written it: what it says is checked by who uses it.

use super::{MemoryId, PoolId};

/// Bytes of a handle.
pub const SHARED: usize = 64;
const MAGIC: &[u8; 8] = b"FERMSHAR";
const EVENT: &[u8; 8] = b"FERMEVNT";
const POOL: &[u8; 8] = b"FERMPOOL";

/// A process that shares memory.
pub type Sharer = [u8; 16];

/// What a handle says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedMemory {
    /// The process that shares it.
    pub sharer: Sharer,
    /// Number of its content.
    pub buffer: u64,
    /// Bytes of the physical memory it lies in.
    pub whole: u64,
    /// Where in there it begins.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// The process's own handle of the physical memory; 0 for an allocation.
    pub memory: MemoryId,
}

impl SharedMemory {
    /// As bytes.
    pub fn encode(&self) -> [u8; SHARED] {
        let mut bytes = [0; SHARED];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..24].copy_from_slice(&self.sharer);
        let numbers = [
            self.buffer,
            self.whole,
            self.offset,
            self.size,
            self.memory.raw(),
        ];
        for (place, number) in bytes[24..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// From bytes; none if they are no handle, or contradict themselves.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; SHARED] = bytes.try_into().ok()?;
        let number = |at: usize| bytes[at..].first_chunk().map(|it| u64::from_le_bytes(*it));
        let shared = Self {
            sharer: *bytes[8..].first_chunk()?,
            buffer: number(24)?,
            whole: number(32)?,
            offset: number(40)?,
            size: number(48)?,
            memory: MemoryId::from_raw(number(56)?),
        };
        let end = shared.offset.checked_add(shared.size)?;
        (bytes[..8] == *MAGIC && shared.size > 0 && end <= shared.whole).then_some(shared)
    }
}

/// What the handle of an event says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedEvent {
    /// The process that shares it.
    pub sharer: Sharer,
    /// Its number there.
    pub number: u64,
}

/// What the file of an exported pool says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedPool {
    /// The process that shares it.
    pub sharer: Sharer,
    /// Its handle there.
    pub pool: PoolId,
    /// Index of its device.
    pub device: u32,
}

impl SharedEvent {
    /// As bytes.
    pub fn encode(&self) -> [u8; SHARED] {
        encode_numbers(EVENT, &self.sharer, [self.number, 0])
    }

    /// From bytes; none if they are no handle of an event.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (sharer, [number, rest]) = decode_numbers(EVENT, bytes)?;
        (rest == 0).then_some(Self { sharer, number })
    }
}

impl SharedPool {
    /// As bytes.
    pub fn encode(&self) -> [u8; SHARED] {
        encode_numbers(POOL, &self.sharer, [self.pool.raw(), self.device.into()])
    }

    /// From bytes; none if they are no handle of a pool.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (sharer, [pool, device]) = decode_numbers(POOL, bytes)?;
        Some(Self {
            sharer,
            pool: PoolId::from_raw(pool),
            device: device.try_into().ok()?,
        })
    }
}

fn encode_numbers(magic: &[u8; 8], sharer: &Sharer, numbers: [u64; 2]) -> [u8; SHARED] {
    let mut bytes = [0; SHARED];
    bytes[..8].copy_from_slice(magic);
    bytes[8..24].copy_from_slice(sharer);
    for (place, number) in bytes[24..].chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

fn decode_numbers(magic: &[u8; 8], bytes: &[u8]) -> Option<(Sharer, [u64; 2])> {
    let bytes: &[u8; SHARED] = bytes.try_into().ok()?;
    let number = |at: usize| bytes[at..].first_chunk().map(|it| u64::from_le_bytes(*it));
    let known = bytes[..8] == *magic && bytes[40..] == [0; SHARED - 40];
    known.then_some((*bytes[8..].first_chunk()?, [number(24)?, number(32)?]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_says_what_was_put_into_it_and_others_are_refused() {
        let shared = SharedMemory {
            sharer: *b"0123456789abcdef",
            buffer: 7,
            whole: 2 << 20,
            offset: 512,
            size: 1024,
            memory: MemoryId::from_raw(0x100),
        };
        let bytes = shared.encode();
        assert_eq!(SharedMemory::decode(&bytes), Some(shared));
        assert_eq!(SharedMemory::decode(&bytes[1..]), None);
        assert_eq!(SharedMemory::decode(&[0; SHARED]), None);
        let beyond = SharedMemory {
            offset: u64::MAX,
            ..shared
        };
        assert_eq!(SharedMemory::decode(&beyond.encode()), None);
    }

    #[test]
    fn a_handle_of_one_kind_is_none_of_another() {
        let sharer = *b"0123456789abcdef";
        let event = SharedEvent { sharer, number: 7 };
        let pool = SharedPool {
            sharer,
            pool: PoolId::from_raw(0x100),
            device: 3,
        };
        let (of_event, of_pool) = (event.encode(), pool.encode());
        assert_eq!(SharedEvent::decode(&of_event), Some(event));
        assert_eq!(SharedPool::decode(&of_pool), Some(pool));
        assert_eq!(SharedEvent::decode(&of_pool), None);
        assert_eq!(SharedPool::decode(&of_event), None);
        assert_eq!(SharedMemory::decode(&of_event), None);
        for at in 32..SHARED {
            let mut wrong = of_event;
            wrong[at] = 1;
            assert_eq!(SharedEvent::decode(&wrong), None, "{at}");
        }
        assert_eq!(SharedPool::decode(&of_pool[1..]), None);
    }
}
