//! The state of each piece of device memory while it is copied during a capture.
//!
//! ```text
//!                 ┌────────────── copy ───────────► Copying ───┐
//!   Untouched ────┤                                            ├──► Done
//!                 └─ about to be written ─► Isolated ─► Draining┘
//! ```
//! (PhoenixOS, section 4.2; there per buffer, here per piece of a buffer.) Pure bookkeeping: no device, no clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fermata_abi::op::{Address, MemoryId};
use fermata_state::{BufferOwner, Session};

use crate::CHUNK;
use crate::access::{Range, Target};
use crate::digest::Digest;
use crate::protocol::{Piece, Source};

/// Where a piece's copy aside lies: the device address of its slot in its device's pool.
pub(crate) type Slot = u64;
/// A point in a stream after which isolated copies are complete; an index into the capture's marks.
pub(crate) type Mark = usize;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// As it was at the start; the program must not write it yet.
    Untouched,
    /// Being copied to the host from where it lies.
    Copying,
    /// Copied aside once the mark has passed.
    Isolated { slot: Slot, mark: Mark },
    /// Being copied to the host from its slot.
    Draining(Slot),
    /// Copied, or not needed.
    Done,
}

#[derive(Debug)]
struct Buffer {
    first: usize,
    count: usize,
    /// Pieces that are not done.
    left: usize,
    /// The program has freed it, and the image does not need it.
    gone: bool,
}

/// Program addresses of (a part of) a buffer.
#[derive(Debug, Clone, Copy)]
struct Alias {
    end: Address,
    buffer: usize,
    /// Offset of the first address within the buffer.
    offset: u64,
    /// Whether adjacent aliases count as one buffer for a pointer into it.
    joins: bool,
}

/// Totals of a map.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Left {
    pub pieces: usize,
    pub bytes: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ChunkMap {
    pieces: Vec<Piece>,
    states: Vec<State>,
    digests: Vec<Digest>,
    /// Pieces written since their copy began: for an image of the end they have to be copied again.
    dirty: Vec<bool>,
    owner: Vec<usize>,
    buffers: Vec<Buffer>,
    aliases: BTreeMap<Address, Alias>,
    by_number: BTreeMap<u64, usize>,
    cursor: usize,
    wanted: VecDeque<usize>,
    /// Pieces being copied that an operation has waited for since before their copy began.
    urgent: BTreeSet<usize>,
    isolated: VecDeque<usize>,
    left: Left,
}

/// The device a piece lies on.
pub(crate) fn device_of(piece: &Piece) -> u32 {
    match piece.source {
        Source::Device { device, .. } => device,
        Source::Host { .. } | Source::Array { .. } => 0,
    }
}

/// The address a piece lies at.
pub(crate) fn address_of(piece: &Piece) -> Address {
    match piece.source {
        Source::Device { address, .. } => address,
        Source::Host { .. } | Source::Array { .. } => Address::NULL,
    }
}

impl ChunkMap {
    /// A map of `pieces`, all in device memory and sorted by buffer and offset: for each the digest it must have, if
    /// known, and whether it has to be copied.
    pub(crate) fn new(session: &Session, pieces: &[(Piece, Digest, bool)]) -> Self {
        let mut map = Self::default();
        for (piece, digest, wanted) in pieces {
            let index = map.pieces.len();
            let buffer = *map.by_number.entry(piece.buffer).or_insert_with(|| {
                map.buffers.push(Buffer {
                    first: index,
                    count: 0,
                    left: 0,
                    gone: false,
                });
                map.buffers.len() - 1
            });
            map.buffers[buffer].count += 1;
            map.pieces.push(*piece);
            map.digests.push(*digest);
            map.dirty.push(false);
            map.owner.push(buffer);
            map.states.push(State::Done);
            if *wanted {
                map.back_to_untouched(index);
            }
        }
        map.find_aliases(session);
        map
    }

    /// A map of all pieces on devices, with unknown digests.
    pub(crate) fn unknown(session: &Session, plan: &[Piece]) -> Self {
        let watched = plan.iter().filter(|piece| piece.is_on_device());
        let watched: Vec<_> = watched
            .map(|piece| (*piece, Digest::Unknown, true))
            .collect();
        Self::new(session, &watched)
    }

    fn find_aliases(&mut self, session: &Session) {
        let mut memories: BTreeMap<MemoryId, usize> = BTreeMap::new();
        for owned in session.buffers() {
            let Some(buffer) = self.by_number.get(&owned.number).copied() else {
                continue;
            };
            let alias = |bytes| Alias {
                end: bytes,
                buffer,
                offset: 0,
                joins: false,
            };
            match owned.owner {
                BufferOwner::Allocation(address) => {
                    let end = address.saturating_add(owned.bytes);
                    self.aliases.insert(address, alias(end));
                }
                BufferOwner::Variable { module, name } => {
                    let module = session.modules.get(module);
                    if let Some(it) = module.ok().and_then(|it| it.variables.get(&name)) {
                        self.aliases
                            .insert(it.address, alias(it.address + owned.bytes));
                    }
                }
                BufferOwner::Memory(handle) => {
                    memories.insert(handle, buffer);
                }
                BufferOwner::Host(_) | BufferOwner::Array(_) => {}
            }
        }
        for (address, mapping) in session.mappings.iter() {
            if let Some(buffer) = memories.get(&mapping.memory) {
                let alias = Alias {
                    end: address.saturating_add(mapping.size),
                    buffer: *buffer,
                    offset: mapping.offset,
                    joins: true,
                };
                self.aliases.insert(address, alias);
            }
        }
    }

    /// Adds the indices of the pieces that `target` touches to `into`: those that are not done, or all if `done`.
    pub(crate) fn touched(&self, target: &Target, done: bool, into: &mut Vec<usize>) {
        match *target {
            Target::Exactly(Range { start, len }) => self.within(start, len, done, into),
            Target::Around(address) => {
                let Some((mut start, alias)) = self.alias_at(address) else {
                    return;
                };
                let mut end = alias.end;
                if alias.joins {
                    (start, end) = self.joined(start, end);
                }
                self.within(start, end - start, done, into);
            }
            // Arrays are read while the program stands still.
            Target::Array(_) => {}
        }
    }

    fn alias_at(&self, address: Address) -> Option<(Address, Alias)> {
        let (start, alias) = self.aliases.range(..=address).next_back()?;
        (address < alias.end).then_some((*start, *alias))
    }

    /// The number of the buffer at an address of the program.
    pub(crate) fn buffer_at(&self, address: Address) -> Option<u64> {
        let (_, alias) = self.alias_at(address)?;
        Some(self.pieces[self.buffers[alias.buffer].first].buffer)
    }

    /// The addresses of all adjacent mappings, which are one buffer to the program.
    fn joined(&self, mut start: Address, mut end: Address) -> (Address, Address) {
        while let Some((before, alias)) = self.aliases.range(..start).next_back()
            && alias.end == start
            && alias.joins
        {
            start = *before;
        }
        while let Some(alias) = self.aliases.get(&end).filter(|alias| alias.joins) {
            end = alias.end;
        }
        (start, end)
    }

    fn within(&self, start: Address, len: u64, done: bool, into: &mut Vec<usize>) {
        let end = start.saturating_add(len);
        let first = self
            .aliases
            .range(..=start)
            .next_back()
            .map_or(start, |(at, _)| *at);
        for (at, alias) in self.aliases.range(first..end.max(first)) {
            let (from, to) = (start.max(*at), end.min(alias.end));
            let buffer = &self.buffers[alias.buffer];
            if from >= to || buffer.left == 0 && !done {
                continue;
            }
            let offset = |address: Address| alias.offset + (address - *at);
            let (low, high) = (offset(from) / CHUNK, offset(to - 1) / CHUNK);
            for piece in low..=high.min(buffer.count as u64 - 1) {
                let index = buffer.first + piece as usize;
                if done || self.states[index] != State::Done {
                    into.push(index);
                }
            }
        }
    }

    pub(crate) fn piece(&self, index: usize) -> &Piece {
        &self.pieces[index]
    }

    pub(crate) fn state(&self, index: usize) -> State {
        self.states[index]
    }

    /// The digest of the piece when the capture began, if known.
    pub(crate) fn digest(&self, index: usize) -> Digest {
        self.digests[index]
    }

    /// All pieces' indices.
    pub(crate) fn indices(&self) -> std::ops::Range<usize> {
        0..self.pieces.len()
    }

    /// The index of a piece, found by its buffer and offset.
    pub(crate) fn index_of(&self, piece: &Piece) -> Option<usize> {
        let buffer = &self.buffers[*self.by_number.get(&piece.buffer)?];
        let nth = (piece.offset / CHUNK) as usize;
        (nth < buffer.count).then_some(buffer.first + nth)
    }

    fn back_to_untouched(&mut self, index: usize) {
        self.left.pieces += 1;
        self.left.bytes += self.pieces[index].len as u64;
        self.buffers[self.owner[index]].left += 1;
        self.states[index] = State::Untouched;
    }

    /// Sets the digest of a piece when the capture began.
    pub(crate) fn set_digest(&mut self, index: usize, digest: Digest) {
        self.digests[index] = digest;
    }

    pub(crate) fn set_copying(&mut self, index: usize) {
        self.states[index] = State::Copying;
        self.dirty[index] = false;
    }

    pub(crate) fn set_isolated(&mut self, index: usize, slot: Slot, mark: Mark) {
        self.states[index] = State::Isolated { slot, mark };
        self.isolated.push_back(index);
    }

    pub(crate) fn set_draining(&mut self, index: usize, slot: Slot) {
        self.states[index] = State::Draining(slot);
    }

    /// Marks a piece as done.
    pub(crate) fn set_done(&mut self, index: usize) {
        if self.states[index] == State::Done {
            return;
        }
        self.states[index] = State::Done;
        self.urgent.remove(&index);
        self.left.pieces -= 1;
        self.left.bytes -= self.pieces[index].len as u64;
        self.buffers[self.owner[index]].left -= 1;
    }

    /// Notes that an operation waits for this piece.
    pub(crate) fn want(&mut self, index: usize) {
        if !self.wanted.contains(&index) {
            self.wanted.push_back(index);
        }
    }

    /// Whether an operation waits for pieces whose copy has not begun.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.iter().any(|index| self.is_untouched(*index))
    }

    /// Whether pieces are being copied that an operation waits for.
    pub(crate) fn is_urgent(&self) -> bool {
        !self.urgent.is_empty()
    }

    /// Notes a write to a piece whose copy has begun.
    pub(crate) fn soil(&mut self, index: usize) {
        if !matches!(self.states[index], State::Untouched) {
            self.dirty[index] = true;
        }
    }

    /// The next untouched piece to copy; pieces that an operation waits for come first.
    pub(crate) fn next_untouched(&mut self) -> Option<usize> {
        while let Some(index) = self.wanted.pop_front() {
            if self.is_untouched(index) {
                self.urgent.insert(index);
                return Some(index);
            }
        }
        while self.cursor < self.pieces.len() && !self.is_untouched(self.cursor) {
            self.cursor += 1;
        }
        (self.cursor < self.pieces.len()).then_some(self.cursor)
    }

    fn is_untouched(&self, index: usize) -> bool {
        self.states[index] == State::Untouched && !self.buffers[self.owner[index]].gone
    }

    /// The isolated piece that has waited longest and whose mark `has_passed`.
    pub(crate) fn next_isolated(
        &mut self,
        mut has_passed: impl FnMut(Mark) -> bool,
    ) -> Option<(usize, Slot)> {
        let (mut found, mut last) = (None, None);
        for (at, index) in self.isolated.iter().enumerate() {
            let State::Isolated { slot, mark } = self.states[*index] else {
                continue;
            };
            // Pieces that were copied aside together share a mark, which is queried once.
            if last != Some(mark) && has_passed(mark) {
                found = Some((at, *index, slot));
                break;
            }
            last = Some(mark);
        }
        let (at, index, slot) = found?;
        self.isolated.remove(at);
        Some((index, slot))
    }

    /// What is left to copy.
    pub(crate) fn left(&self) -> Left {
        self.left
    }

    /// Whether the piece is not being read at its own address, so that its memory may be freed.
    pub(crate) fn is_quiet(&self, index: usize) -> bool {
        self.states[index] != State::Copying
    }

    /// Whether pieces of the allocation at `address` are still to be copied.
    pub(crate) fn holds(&self, address: Address) -> bool {
        self.aliases
            .get(&address)
            .is_some_and(|alias| self.buffers[alias.buffer].left > 0)
    }

    /// Whether pieces of the allocation at `address` are read where they lie, or still to be.
    pub(crate) fn reads(&self, address: Address) -> bool {
        self.aliases.get(&address).is_some_and(|alias| {
            let buffer = &self.buffers[alias.buffer];
            let states = &self.states[buffer.first..buffer.first + buffer.count];
            states
                .iter()
                .any(|it| matches!(it, State::Untouched | State::Copying))
        })
    }

    /// Notes that the allocation at `address` has been freed, and its content is not needed for the image. False while a
    /// piece of it is being read.
    pub(crate) fn give_up(&mut self, address: Address) -> bool {
        let Some(alias) = self.aliases.get(&address).copied() else {
            return true;
        };
        let (first, count) = {
            let buffer = &mut self.buffers[alias.buffer];
            buffer.gone = true;
            (buffer.first, buffer.count)
        };
        let mut quiet = true;
        for index in first..first + count {
            if self.is_quiet(index) {
                self.set_done(index);
                self.dirty[index] = false;
            } else {
                quiet = false;
            }
        }
        if quiet {
            self.aliases.remove(&address);
        }
        quiet
    }

    /// Begins another pass over the pieces that were written since their copy; returns their bytes.
    pub(crate) fn again(&mut self) -> u64 {
        let mut bytes = 0;
        for index in 0..self.pieces.len() {
            if self.dirty[index] && self.states[index] == State::Done {
                self.dirty[index] = false;
                if !self.buffers[self.owner[index]].gone {
                    self.back_to_untouched(index);
                    bytes += self.pieces[index].len as u64;
                }
            }
        }
        self.cursor = 0;
        bytes
    }

    /// Bytes written since their copy.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        let dirty = self
            .dirty
            .iter()
            .zip(&self.pieces)
            .filter(|(dirty, _)| **dirty);
        dirty.map(|(_, piece)| piece.len as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermata_abi::op::ContextId;
    use fermata_state::{Allocation, Device};

    const BASE: Address = Address::from_raw(0x3000_0000_0000);

    fn two_buffers() -> ChunkMap {
        let device = Device {
            name: String::new(),
            uuid: [0; 16],
            memory: 1 << 40,
            compute_capability: 90,
        };
        let mut session = Session::new(vec![device]);
        let mut pieces = Vec::new();
        for (number, address, chunks) in [(1, BASE, 3u64), (2, BASE + 4 * CHUNK, 2)] {
            let size = chunks * CHUNK - 16;
            let allocation = Allocation {
                context: ContextId::from_raw(1),
                device: 0,
                size,
                buffer: number,
            };
            session.allocations.insert(address, allocation).unwrap();
            for chunk in 0..chunks {
                let offset = chunk * CHUNK;
                let source = Source::Device {
                    device: 0,
                    address: address + offset,
                };
                let len = (size - offset).min(CHUNK) as usize;
                let piece = Piece {
                    buffer: number,
                    offset,
                    len,
                    source,
                };
                pieces.push((piece, Digest::Unknown, true));
            }
        }
        ChunkMap::new(&session, &pieces)
    }

    fn touched(map: &ChunkMap, target: Target) -> Vec<usize> {
        let mut found = Vec::new();
        map.touched(&target, false, &mut found);
        found
    }

    fn exactly(start: Address, len: u64) -> Target {
        Target::Exactly(Range { start, len })
    }

    #[test]
    fn ranges_touch_their_pieces_and_no_others() {
        let mut map = two_buffers();
        assert_eq!(touched(&map, exactly(BASE, 1)), [0]);
        assert_eq!(touched(&map, exactly(BASE + CHUNK - 1, 2)), [0, 1]);
        assert_eq!(
            touched(&map, exactly(BASE + CHUNK, 100 * CHUNK)),
            [1, 2, 3, 4]
        );
        assert_eq!(touched(&map, Target::Around(BASE + 5)), [0, 1, 2]);
        assert!(touched(&map, Target::Around(BASE + 3 * CHUNK)).is_empty());
        assert!(touched(&map, exactly(BASE - 64, 64)).is_empty());
        map.set_done(1);
        assert_eq!(touched(&map, Target::Around(BASE)), [0, 2]);
    }

    #[test]
    fn everything_is_copied_once_and_what_is_waited_for_first() {
        let mut map = two_buffers();
        map.want(3);
        assert!(map.is_wanted() && !map.is_urgent());
        let mut order = Vec::new();
        while let Some(index) = map.next_untouched() {
            map.set_draining(index, 0);
            assert_eq!((map.is_wanted(), map.is_urgent()), (false, index == 3));
            map.set_done(index);
            order.push(index);
        }
        assert_eq!(order, [3, 0, 1, 2, 4]);
        assert_eq!(map.left(), Left::default());
        assert!(!map.holds(BASE));
    }

    #[test]
    fn isolated_pieces_wait_for_their_mark() {
        let mut map = two_buffers();
        map.set_isolated(2, 7, 0);
        map.set_isolated(4, 8, 1);
        assert_eq!(map.next_isolated(|mark| mark == 1), Some((4, 8)));
        assert_eq!(map.next_isolated(|_| false), None);
        assert_eq!(map.next_isolated(|_| true), Some((2, 7)));
        assert_eq!(map.next_isolated(|_| true), None);
        assert_eq!(map.next_untouched(), Some(0));
    }

    #[test]
    fn what_is_written_after_its_copy_is_copied_again() {
        let mut map = two_buffers();
        map.soil(0);
        assert_eq!(map.dirty_bytes(), 0, "it has not been copied yet");
        while let Some(index) = map.next_untouched() {
            map.set_draining(index, 0);
            map.soil(index);
            map.set_done(index);
        }
        // A question for all pieces includes those that are done.
        let mut found = Vec::new();
        map.touched(&exactly(BASE, 1), true, &mut found);
        assert_eq!(found, [0]);
        assert!(map.give_up(BASE));
        assert_eq!(map.again(), 2 * CHUNK - 16);
        assert_eq!(map.next_untouched(), Some(3));
    }
}
