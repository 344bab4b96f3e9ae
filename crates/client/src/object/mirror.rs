//! The map from addresses to blocks of CUDA memory: answers pointer queries and recognises ordinary memory of the program.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use fermata_abi::op::{Address, ContextId, HostKind, MemoryId, ModuleId, PoolId, SHARED};
use fermata_abi::sys::driver::{CUDA_ERROR_INVALID_VALUE, CUdevice};
use parking_lot::{RwLock, RwLockReadGuard};

use crate::result::Result;

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// The kind of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `cuMemAlloc` and its relatives.
    Device,
    /// Allocated in stream order, from this pool.
    Pool(PoolId),
    /// Of an allocation node, shown as memory of this pool.
    Graph(PoolId),
    /// Physical memory mapped into a reservation.
    Mapped(MemoryId),
    /// An allocation of another process.
    Opened,
    /// An allocation from another process's pool, which was imported as this one.
    Imported(PoolId),
    /// A variable of a module.
    Variable(ModuleId),
    /// Memory shared with the worker.
    Host(HostKind),
}

/// A block of addresses.
#[derive(Debug, Clone)]
pub struct Block {
    /// First address.
    pub start: Address,
    /// Bytes, as the program asked for them.
    pub size: u64,
    /// Bytes of the whole pages that are mapped, for host memory; else 0. See [`Block::pages`].
    pub mapped: u64,
    /// Its kind.
    pub kind: Kind,
    /// The context it was made in.
    pub context: ContextId,
    /// Ordinal of that context's device.
    pub device: CUdevice,
    /// Flags it was made with.
    pub flags: u32,
    /// `CU_POINTER_ATTRIBUTE_BUFFER_ID`, from [`fresh_id`].
    pub id: u64,
    /// Its handle for other processes, once it has been asked for.
    pub shared: OnceLock<[u8; SHARED]>,
}

/// A new buffer id: no memory of the process has had it before.
pub fn fresh_id() -> u64 {
    static ID: AtomicU64 = AtomicU64::new(1);
    ID.fetch_add(1, Ordering::Relaxed)
}

impl Block {
    /// A block that is not host memory, with a fresh id.
    pub fn new(
        start: Address,
        size: u64,
        kind: Kind,
        context: &crate::object::context::Context,
    ) -> Self {
        let id = fresh_id();
        let (context, device) = (context.handle, context.device);
        Self {
            start,
            size,
            mapped: 0,
            kind,
            context,
            device,
            flags: 0,
            id,
            shared: OnceLock::new(),
        }
    }

    /// Whether it is host memory.
    pub fn is_host(&self) -> bool {
        matches!(self.kind, Kind::Host(_))
    }

    /// The first byte and the size of the whole pages that host memory is mapped in. Around registered memory they hold other
    /// data of the program, too.
    pub fn pages(&self) -> (Address, u64) {
        (self.start.align_down(PAGE), self.mapped)
    }

    /// Whether `len` bytes from `address` lie inside.
    pub fn contains(&self, address: Address, len: u64) -> bool {
        address >= self.start
            && address
                .checked_add(len)
                .is_some_and(|end| end <= self.start + self.size)
    }
}

thread_local! {
    /// Without a destructor: a thread may fork in a destructor of the program.
    static FROZEN: ManuallyDrop<Cell<Option<RwLockReadGuard<'static, Blocks>>>> =
        const { ManuallyDrop::new(Cell::new(None)) };
}

/// Ends [`Mirror::freeze`], in the parent or in the child, and calls `act` with every host block before.
/// Allocates nothing.
pub fn thaw(mut act: impl FnMut(&Block)) {
    if let Some(blocks) = FROZEN.with(|frozen| frozen.take()) {
        blocks
            .values()
            .filter(|block| block.is_host())
            .for_each(|block| act(block));
    }
}

type Blocks = BTreeMap<Address, Arc<Block>>;

/// All blocks, by first address. They never overlap.
#[derive(Debug, Default)]
pub struct Mirror(RwLock<Blocks>);

impl Mirror {
    /// Adds a block.
    pub fn insert(&self, block: Block) {
        self.0.write().insert(block.start, Arc::new(block));
    }

    /// The block an address lies in.
    pub fn find(&self, address: Address) -> Option<Arc<Block>> {
        let map = self.0.read();
        let (_, block) = map.range(..=address).next_back()?;
        block.contains(address, 1).then(|| block.clone())
    }

    /// Whether `len` bytes at `address` lie in one block that `wanted` accepts.
    pub fn holds(&self, address: Address, len: u64, wanted: impl Fn(&Block) -> bool) -> bool {
        self.find(address)
            .is_some_and(|block| block.contains(address, len) && wanted(&block))
    }

    /// Removes the block that begins at `address` and that `wanted` accepts.
    pub fn remove(&self, address: Address, wanted: impl Fn(&Block) -> bool) -> Result<Arc<Block>> {
        let mut map = self.0.write();
        match map.get(&address) {
            Some(block) if wanted(block) => map.remove(&address).ok_or(CUDA_ERROR_INVALID_VALUE),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// Makes memory of an allocation node memory of its pool, because its graphs are gone.
    pub fn leave_graph(&self, address: Address) {
        if let Some(block) = self.0.write().get_mut(&address)
            && let Kind::Graph(pool) = block.kind
        {
            Arc::make_mut(block).kind = Kind::Pool(pool);
        }
    }

    /// Forgets the device memory of a context.
    pub fn forget(&self, context: ContextId) {
        let goes = |block: &Block| {
            let kind = matches!(
                block.kind,
                Kind::Device | Kind::Pool(_) | Kind::Graph(_) | Kind::Variable(_)
            );
            block.context == context && kind
        };
        self.0.write().retain(|_, block| !goes(block));
    }

    /// Removes and returns the blocks that `gone` accepts.
    pub fn remove_if(&self, gone: impl Fn(&Block) -> bool) -> Vec<Arc<Block>> {
        let mut out = Vec::new();
        self.0.write().retain(|_, block| {
            let goes = gone(block);
            if goes {
                out.push(block.clone());
            }
            !goes
        });
        out
    }

    /// All host blocks.
    pub fn host_blocks(&self) -> Vec<Arc<Block>> {
        self.0
            .read()
            .values()
            .filter(|block| block.is_host())
            .cloned()
            .collect()
    }

    /// Locks the blocks until [`thaw`]: around a fork, so that they are consistent in the child.
    pub fn freeze(&'static self) {
        let blocks = self.0.read();
        FROZEN.with(|frozen| frozen.set(Some(blocks)));
    }

    /// Bytes of the blocks that `wanted` accepts.
    pub fn sum(&self, wanted: impl Fn(&Block) -> bool) -> u64 {
        self.0
            .read()
            .values()
            .filter(|block| wanted(block))
            .map(|block| block.size)
            .sum()
    }

    /// The host memory that lies on some of the pages from `start` on, the last first.
    pub fn on_pages(&self, start: Address, size: u64) -> Vec<Arc<Block>> {
        let map = self.0.read();
        let before = map.range(..start.saturating_add(size)).rev();
        let reaches = |block: &&Arc<Block>| {
            let (first, mapped) = block.pages();
            first + mapped > start
        };
        let blocks = before.map(|(_, block)| block).take_while(reaches);
        blocks.cloned().collect()
    }

    /// Whether any block, or a page that one is mapped in, overlaps the range.
    pub fn overlaps(&self, start: Address, len: u64) -> bool {
        self.end_of_overlap(start, len).is_some()
    }

    /// The end of the last block in the range, and of its pages, if there is one.
    pub fn end_of_overlap(&self, start: Address, len: u64) -> Option<Address> {
        let map = self.0.read();
        let (_, block) = map.range(..start.saturating_add(len)).next_back()?;
        let (first, mapped) = block.pages();
        let end = (block.start + block.size).max(first + mapped);
        (end > start).then_some(end)
    }
}
