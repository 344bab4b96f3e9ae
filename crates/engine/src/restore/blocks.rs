//! Decides which memory of an image can come on demand: blocks of pages that are mapped as one, with the pieces that fill
//! them.
//!
//! ```text
//!  allocations ─► blocks (a large allocation, or a slab of small ones) ─┬─► named by a graph's copies, or shared: now
//!                                                                       └─► on demand
//!  variables, arrays, host regions, memory the program maps itself ─────────► now
//! ```
//! A driver checks the addresses of copy nodes when a graph is made, so those must be mapped by then.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fermata_abi::op::Address;
use fermata_device::layout::{LARGE, PAGE};
use fermata_graph::{Graph, NodeKind};
use fermata_state::{Session, Shared};
use fermata_store::ChunkId;

use crate::EngineError;
use crate::access::{AccessSet, Range, Target};
use crate::protocol::{Piece, Source};

/// The start of the block that holds an allocation of `size` bytes at `address`.
pub(super) fn block_of(address: Address, size: u64) -> Address {
    if size >= LARGE {
        address
    } else {
        address.align_down(PAGE)
    }
}

/// The address that a piece of a block is copied to.
pub(super) fn address_of(piece: &Piece) -> Address {
    match piece.source {
        Source::Device { address, .. } => address,
        Source::Host { region, offset } => region + offset,
        Source::Array { .. } => Address::NULL,
    }
}

/// Addresses that must be present at once: those that executable graphs name in nodes other than kernels, and those of
/// textures and bound references of linear memory, because a driver makes neither of memory that is not mapped; and those
/// of shared allocations, which other processes use without passing this worker's gate.
pub(super) fn touched(session: &Session) -> BTreeSet<Address> {
    let mut found = BTreeSet::new();
    for (_, executable) in session.executables.iter() {
        collect(&executable.graph, &mut found);
    }
    for shared in session.sharing.shared.values() {
        if let Shared::Allocation(address) = shared {
            found.insert(*address);
        }
    }
    let of_textures = session.textures.values().chain(session.references.values());
    found.extend(of_textures.filter_map(|it| Some(it.resource.memory()?.0)));
    found
}

fn collect(graph: &Graph, found: &mut BTreeSet<Address>) {
    for (_, node) in graph.nodes() {
        match &node.kind {
            NodeKind::Memcpy(copy) => {
                found.extend([copy.src.address, copy.dst.address].map(Address::from_raw))
            }
            NodeKind::Memset(fill) => {
                found.insert(Address::from_raw(fill.dst));
            }
            NodeKind::BatchMemOp(ops) => {
                found.extend(ops.iter().map(|op| Address::from_raw(op.address)))
            }
            _ => {}
        }
        for inside in node.kind.graphs() {
            collect(inside, found);
        }
    }
}

/// Pages that are mapped as one, once all of their content has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    /// Address of the first page.
    pub at: Address,
    /// Bytes, whole pages.
    pub len: u64,
    /// Their device.
    pub device: u32,
    /// Pieces with a chunk.
    pub stored: Vec<(Piece, ChunkId)>,
    /// Pieces that were zero.
    pub zero: Vec<Piece>,
}

impl Block {
    /// A block without pieces.
    pub fn new(at: Address, len: u64, device: u32) -> Self {
        Self {
            at,
            len,
            device,
            stored: Vec::new(),
            zero: Vec::new(),
        }
    }
}

/// The blocks of a session that come on demand, by address.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    by_address: BTreeMap<Address, usize>,
    blocks: Vec<Block>,
}

impl Blocks {
    /// Adds a block.
    pub fn insert(&mut self, block: Block) {
        self.by_address.insert(block.at, self.blocks.len());
        self.blocks.push(block);
    }

    /// All of them.
    pub fn all(&self) -> &[Block] {
        &self.blocks
    }

    /// Whether no block comes on demand.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The block that contains `address`.
    pub fn containing(&self, address: Address) -> Option<usize> {
        let (at, index) = self.by_address.range(..=address).next_back()?;
        (address - *at < self.blocks[*index].len).then_some(*index)
    }

    /// The block that starts at `address`.
    pub fn starting(&self, address: Address) -> Option<usize> {
        self.by_address.get(&address).copied()
    }

    /// Blocks that share a byte with `start .. start + len`.
    pub fn within(&self, start: Address, len: u64) -> impl Iterator<Item = usize> {
        let first = self.containing(start);
        let end = start.saturating_add(len);
        let further = self
            .by_address
            .range(start.saturating_add(1)..end.max(start + 1));
        first.into_iter().chain(further.map(|(_, index)| *index))
    }

    /// The blocks that an access set touches, each once.
    pub fn of(&self, set: &AccessSet) -> Vec<usize> {
        let mut found = Vec::new();
        for target in set.reads.iter().chain(&set.writes) {
            match target {
                Target::Exactly(range) => found.extend(self.within(range.start, range.len)),
                Target::Around(address) => found.extend(self.containing(*address)),
                Target::Array(_) => {}
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// All addresses but those of the blocks that are `absent`, by address.
    pub fn all_but(&self, absent: impl Fn(usize) -> bool) -> Vec<Range> {
        let (mut ranges, mut start) = (Vec::new(), Address::NULL);
        for (&at, index) in self.by_address.iter().filter(|(_, index)| absent(**index)) {
            ranges.push(Range {
                start,
                len: at - start,
            });
            start = at + self.blocks[*index].len;
        }
        ranges.push(Range {
            start,
            len: u64::MAX - start.raw(),
        });
        ranges.retain(|range| range.len > 0);
        ranges
    }

    /// The number of the buffer that has the byte at `address`, and where it begins.
    pub fn buffer_at(&self, address: Address) -> Option<(u64, Address)> {
        let block = &self.blocks[self.containing(address)?];
        let pieces = || {
            let stored = block.stored.iter().map(|(piece, _)| piece);
            stored.chain(&block.zero)
        };
        let has = |it: &&Piece| {
            let offset = address.checked_since(address_of(it));
            offset.is_some_and(|offset| offset < it.len as u64)
        };
        let buffer = pieces().find(has)?.buffer;
        let of_buffer = pieces().filter(|piece| piece.buffer == buffer);
        Some((buffer, of_buffer.map(address_of).min()?))
    }

    /// Removes the pieces of these blocks from `plan` and adds them to their blocks; `chunks` says which have content.
    ///
    /// # Errors
    /// A piece lies only partly in a block.
    pub fn claim(
        &mut self,
        plan: Vec<Piece>,
        chunks: &HashMap<(u64, u64), (u32, ChunkId)>,
    ) -> Result<Vec<Piece>, EngineError> {
        let mut rest = Vec::new();
        for piece in plan {
            let Source::Device { address, .. } = piece.source else {
                rest.push(piece);
                continue;
            };
            let Some(index) = self.containing(address) else {
                rest.push(piece);
                continue;
            };
            let block = &mut self.blocks[index];
            if address + piece.len as u64 > block.at + block.len {
                let why = format!("buffer {} crosses its block", piece.buffer);
                return Err(EngineError::Internal(why));
            }
            match chunks.get(&(piece.buffer, piece.offset)) {
                Some((length, id)) if *length as usize == piece.len => {
                    block.stored.push((piece, *id));
                }
                Some(_) => {
                    let why = "its chunks do not match the pieces of its buffers";
                    return Err(EngineError::Damaged(why.to_owned()));
                }
                None => block.zero.push(piece),
            }
        }
        Ok(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(number: u64) -> Address {
        Address::from_raw(number * PAGE)
    }

    fn blocks() -> Blocks {
        let mut blocks = Blocks::default();
        for at in [10, 11, 20] {
            blocks.insert(Block::new(page(at), PAGE, 0));
        }
        blocks
    }

    #[test]
    fn ranges_name_every_block_they_share_a_byte_with() {
        let blocks = blocks();
        let within = |start, len| blocks.within(start, len).collect::<Vec<_>>();
        assert_eq!(within(page(10), 1), [0]);
        assert_eq!(within(page(10) + 5, PAGE), [0, 1]);
        assert!(within(page(9), PAGE).is_empty());
        assert_eq!(within(page(9), PAGE + 1), [0]);
        assert_eq!(within(Address::NULL, u64::MAX), [0, 1, 2]);
        assert!(within(page(12), 8 * PAGE).is_empty());
        assert_eq!(within(page(20), 0), [2]);
    }

    #[test]
    fn what_is_absent_is_left_out_of_all_addresses() {
        let blocks = blocks();
        let range = |start: u64, end: u64| Range {
            start: Address::from_raw(start),
            len: end - start,
        };
        assert_eq!(blocks.all_but(|_| false), [range(0, u64::MAX)]);
        let rest = range(21 * PAGE, u64::MAX);
        let all = [range(0, 10 * PAGE), range(12 * PAGE, 20 * PAGE), rest];
        assert_eq!(blocks.all_but(|_| true), all);
        let first = [range(0, 10 * PAGE), range(11 * PAGE, u64::MAX)];
        assert_eq!(blocks.all_but(|index| index == 0), first);
    }

    #[test]
    fn an_address_between_blocks_is_in_none() {
        let blocks = blocks();
        assert_eq!(blocks.containing(page(12) - 1), Some(1));
        assert_eq!(blocks.containing(page(12)), None);
        assert_eq!(blocks.starting(page(11)), Some(1));
        assert_eq!(blocks.starting(page(11) + 1), None);
    }

    #[test]
    fn pieces_go_to_their_blocks_and_the_rest_stays() {
        let piece = |buffer, address| Piece {
            buffer,
            offset: 0,
            len: 16,
            source: Source::Device { device: 0, address },
        };
        let id = ChunkId::of(b"x");
        let chunks = HashMap::from([((1, 0), (16, id))]);
        let mut blocks = blocks();
        let plan = vec![
            piece(1, page(10)),
            piece(2, page(11) + 512),
            piece(3, page(30)),
        ];
        let rest = blocks.claim(plan, &chunks).expect("whole pieces");
        assert_eq!(rest.iter().map(|it| it.buffer).collect::<Vec<_>>(), [3]);
        assert_eq!(blocks.all()[0].stored.len(), 1);
        assert_eq!(blocks.all()[1].zero.len(), 1);
        let crossing = vec![piece(4, page(12) - 8)];
        assert!(blocks.claim(crossing, &chunks).is_err());
    }
}
