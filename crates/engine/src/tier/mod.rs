//! The registered memory tier: packs of a store in memory, mapped and registered with the driver ahead of
//! time, so that a checkpoint copies straight into them and a restore straight out of them.
//!
//! ```text
//!  store in memory: ready/ID.pack ──┐ looked for      ┌─► Window: mapped ─► registered, slice by slice
//!                   packs/ID.pack ──┼─ Tier::refresh ─┤
//!  copies of packs on a disk ───────┘                 └─► gone, or cut short: unmapped
//!  save:  wanted() ─► PackWriter claims places in them ─► claim() the window's bytes ─► copy
//!  load:  ChunkReader locates a chunk ─► share() the window's bytes ─► copy
//! ```
//! A file keeps its window when it is renamed: a ready pack that was written and published is read through the same
//! registration. If the tier is absent or anything here fails, data goes through staging buffers. [`keep`] keeps the
//! windows up to date with the store.

mod keep;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use fermata_device::{ContextHandle, Driver, PinnedPool, SharedSpan, Span, Window};
use fermata_store::{ChunkId, ChunkReader, FileKey, Located, PackId, Place, StoreError};
use parking_lot::{Condvar, Mutex};

/// Where a worker maps windows: apart from the program's memory, and from the addresses that the kernel and the driver
/// choose, which must not depend on what is registered when.
const BASE: u64 = 0x2800_0000_0000;
const END: u64 = 0x2c00_0000_0000;
/// The first address of windows; staging buffers lie before it.
const WINDOWS: u64 = BASE + (1 << 30);

/// Whether all packs are registered, or what keeps them from it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TierState {
    /// All packs are registered.
    Complete,
    /// Registering goes on, or the store has not been listed yet.
    #[default]
    Registering,
    /// A checkpoint or restore is under way, which registering would slow down.
    Paused,
    /// The limit is reached.
    Full,
    /// The system or the driver has refused; it is tried again.
    Failed,
}

/// The status of the tier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TierStatus {
    /// What keeps packs from being registered.
    pub state: TierState,
    /// Bytes registered with the driver.
    pub registered: u64,
    /// Of these, ready to be written.
    pub ready: u64,
    /// Bytes of listed packs that are not registered.
    pub missing: u64,
    /// The most that may be registered.
    pub limit: u64,
    /// The error of the system or the driver, until it is overcome.
    pub trouble: Option<String>,
}

struct Entry {
    window: Arc<Window>,
    /// The pack's name, while it is ready to be written.
    ready: Option<PackId>,
    /// The order in which it was mapped.
    age: u64,
}

#[derive(Default)]
struct State {
    entries: HashMap<FileKey, Entry>,
    next: u64,
    count: u64,
    /// The packs of the last list, and their bytes; `None` before the first list.
    listed: Option<Vec<(FileKey, u64)>>,
    /// Whether the limit keeps some of them from being registered.
    full: bool,
    trouble: Option<Trouble>,
}

/// A failure that has not been overcome yet.
struct Trouble {
    what: String,
    at: Instant,
    /// How often in a row it has been tried.
    times: u32,
}

/// See the module.
pub struct Tier {
    driver: Arc<Driver>,
    context: ContextHandle,
    limit: u64,
    state: Mutex<State>,
    /// Staging buffers for data that does not go through a window; made with the first window, unless the session has
    /// some.
    staging: OnceLock<PinnedPool>,
    brings_staging: bool,
    /// Checkpoints and restores under way, which registering would slow down.
    busy: Mutex<usize>,
    /// Whether a program is served, which registering would slow down, too.
    served: AtomicBool,
    /// Signalled when no checkpoint or restore is under way any more.
    idle: Condvar,
    /// Held during each driver call that keeps the tier up to date.
    turn: Mutex<()>,
}

/// Keeps the tier from registering while it lives.
pub(crate) struct Quiet(Arc<Tier>);

impl Drop for Quiet {
    fn drop(&mut self) {
        let mut busy = self.0.busy.lock();
        *busy -= 1;
        if *busy == 0 {
            self.0.idle.notify_all();
        }
    }
}

impl Tier {
    /// An empty tier that registers at most `limit` bytes, in `context`, which must outlive it. It makes staging
    /// buffers, too, if it is asked to.
    pub fn new(
        driver: Arc<Driver>,
        context: ContextHandle,
        limit: u64,
        brings_staging: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            driver,
            context,
            limit,
            state: Mutex::new(State {
                next: WINDOWS,
                ..State::default()
            }),
            staging: OnceLock::new(),
            brings_staging,
            busy: Mutex::new(0),
            served: AtomicBool::new(false),
            idle: Condvar::new(),
            turn: Mutex::new(()),
        })
    }

    /// Its status.
    pub fn status(&self) -> TierStatus {
        let state = self.state.lock();
        let windows = || state.entries.values();
        let listed = state.listed.iter().flatten();
        let missing = listed
            .filter(|(key, _)| !state.entries.contains_key(key))
            .map(|(_, bytes)| bytes)
            .sum();
        let trouble = state.trouble.as_ref().map(|it| it.what.clone());
        let what = match missing {
            _ if trouble.is_some() => TierState::Failed,
            0 if state.listed.is_some() => TierState::Complete,
            _ if self.is_busy() => TierState::Paused,
            _ if state.full => TierState::Full,
            _ => TierState::Registering,
        };
        TierStatus {
            state: what,
            registered: windows().map(|e| e.window.registered()).sum(),
            ready: windows()
                .filter(|e| e.ready.is_some())
                .map(|e| e.window.registered())
                .sum(),
            missing,
            limit: self.limit,
            trouble,
        }
    }

    /// From now on a program is served: registrations leave it time for its driver calls.
    pub fn serve(&self) {
        self.served.store(true, Ordering::Relaxed);
    }

    /// Pauses registrations until the returned guard is dropped; waits for one that is under way.
    pub(crate) fn quiet(self: &Arc<Self>) -> Quiet {
        *self.busy.lock() += 1;
        drop(self.turn.lock());
        Quiet(Arc::clone(self))
    }

    /// Does `work`, a driver call for the tier, while no checkpoint or restore is under way.
    fn in_turn<T>(&self, work: impl FnOnce() -> T) -> T {
        loop {
            let mut busy = self.busy.lock();
            self.idle.wait_while(&mut busy, |busy| *busy > 0);
            drop(busy);
            let _turn = self.turn.lock();
            // A checkpoint that has begun meanwhile waits for the turn's end.
            if !self.is_busy() {
                return work();
            }
        }
    }

    /// Whether a checkpoint or restore is under way.
    fn is_busy(&self) -> bool {
        *self.busy.lock() > 0
    }

    /// Staging buffers, if they have been made.
    pub(crate) fn staging(&self) -> Option<PinnedPool> {
        self.staging.get().cloned()
    }

    /// The ready packs that can be written through a window.
    pub(crate) fn wanted(&self) -> Vec<PackId> {
        let state = self.state.lock();
        state.entries.values().filter_map(|e| e.ready).collect()
    }

    fn window(&self, key: FileKey) -> Option<Arc<Window>> {
        let state = self.state.lock();
        state.entries.get(&key).map(|e| Arc::clone(&e.window))
    }

    /// The memory of a place in a pack, to be written.
    pub(crate) fn claim(&self, place: &Place) -> Option<Span> {
        self.window(place.key)?
            .claim(place.offset, u64::from(place.length))
    }

    /// A chunk of `len` bytes in its window, with its hash verified; `None` if it must be read.
    ///
    /// # Errors
    /// `MissingChunk`, or `DamagedChunk` when its pack is cut.
    pub(crate) fn verified(
        &self,
        reader: &ChunkReader,
        id: &ChunkId,
        len: usize,
    ) -> Result<Option<SharedSpan>, StoreError> {
        let at = reader.locate(id)?;
        let span = self.share(&at);
        let right = span.filter(|span| span.len() == len && ChunkId::of(span) == *id);
        if right.is_some() {
            reader.took(&at);
        }
        Ok(right)
    }

    /// The memory of adjacent chunks of one pack, to be read as one; all but the last must be whole.
    pub(crate) fn share_run(&self, chunks: &[Located]) -> Option<SharedSpan> {
        let first = chunks.first()?;
        let bytes = chunks.iter().map(|it| u64::from(it.length)).sum();
        self.window(first.key)?.share(first.offset, bytes)
    }

    /// The bytes of a chunk, to be read.
    pub(crate) fn share(&self, at: &Located) -> Option<SharedSpan> {
        self.window(at.key)?.share(at.offset, u64::from(at.length))
    }
}
