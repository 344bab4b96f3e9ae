//! The registered memory tier: packs of a store in memory, mapped and registered with the driver ahead of
//! time, so that a checkpoint copies straight into them and a restore straight out of them.
//!
//! ```text
//!  store in memory: ready/ID.pack ──┐ looked for      ┌─► Window: mapped ─► registered, slice by slice
//!                   packs/ID.pack ──┼─ Tier::refresh ─┤
//!  copies of packs on a disk ───────┘                 └─► gone, or cut short: given back
//!  save:  wanted() ─► PackWriter claims places in them ─► claim() the window's bytes ─► copy
//!  load:  ChunkReader locates a chunk ─► share() the window's bytes ─► copy
//! ```
//! A file keeps its window whatever its name becomes: a ready pack that was written and published is read
//! through the same registration. Everything here may fail or be absent; the ordinary way is taken then.
//! [`keep`] keeps the windows up to date with the store.

mod keep;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use fermata_device::{ContextHandle, Driver, PinnedPool, SharedSpan, Span, Window};
use fermata_store::{ChunkId, ChunkReader, FileKey, Located, PackId, Place, StoreError};
use parking_lot::{Condvar, Mutex};

/// Where windows are mapped in a worker: apart from the ranges of the program's memory, and from where the
/// kernel and the driver put theirs, which must not depend on what is registered when.
const BASE: u64 = 0x2800_0000_0000;
const END: u64 = 0x2c00_0000_0000;
/// Where windows begin; staging buffers lie before them.
const WINDOWS: u64 = BASE + (1 << 30);

/// What keeps packs from being registered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TierState {
    /// Nothing: all packs are.
    Complete,
    /// It takes its time, or the store has not been looked at yet.
    #[default]
    Registering,
    /// A checkpoint or restore under way, which registering would slow down.
    Paused,
    /// The limit.
    Full,
    /// What the system or the driver said; it is tried again.
    Failed,
}

/// How the tier is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TierStatus {
    /// What keeps packs from being registered.
    pub state: TierState,
    /// Bytes registered with the driver.
    pub registered: u64,
    /// Of these, ready to be written.
    pub ready: u64,
    /// Bytes of packs that the store held when it was looked at last, and that are not registered.
    pub missing: u64,
    /// The most that may be registered.
    pub limit: u64,
    /// What the system or the driver said, while that is so.
    pub trouble: Option<String>,
}

struct Entry {
    window: Arc<Window>,
    /// The name it can be taken by, while it is ready.
    ready: Option<PackId>,
    /// When it was mapped, by count.
    age: u64,
}

#[derive(Default)]
struct State {
    entries: HashMap<FileKey, Entry>,
    next: u64,
    count: u64,
    /// The packs that the store held last, and their bytes; none before it was looked at.
    listed: Option<Vec<(FileKey, u64)>>,
    /// Whether some of them have no room.
    full: bool,
    trouble: Option<Trouble>,
}

/// A failure that has not been made good yet.
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
    /// Made with the first window, unless the session has some already; for data that does not go through a window.
    staging: OnceLock<PinnedPool>,
    brings_staging: bool,
    /// Checkpoints and restores under way, which registering would slow down.
    busy: Mutex<usize>,
    /// Whether a program is there, which registering would slow down, too.
    served: AtomicBool,
    /// None is under way any more.
    idle: Condvar,
    /// Held for each call of the driver that keeps the tier up to date.
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
    /// An empty tier that registers at most `limit` bytes, in `context`, which must live as long, and makes staging
    /// buffers too if it is to bring them.
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

    /// How it is.
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

    /// From now on there is a program, whose calls come between registrations.
    pub fn serve(&self) {
        self.served.store(true, Ordering::Relaxed);
    }

    /// Keeps registrations from disturbing until the answer is dropped; one that is under way has ended.
    pub(crate) fn quiet(self: &Arc<Self>) -> Quiet {
        *self.busy.lock() += 1;
        drop(self.turn.lock());
        Quiet(Arc::clone(self))
    }

    /// Calls the driver to keep the tier up to date, while nothing is under way.
    fn in_turn<T>(&self, work: impl FnOnce() -> T) -> T {
        loop {
            let mut busy = self.busy.lock();
            self.idle.wait_while(&mut busy, |busy| *busy > 0);
            drop(busy);
            let _turn = self.turn.lock();
            // What has begun meanwhile waits for the turn's end.
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

    /// The bytes of a place, to be written.
    pub(crate) fn claim(&self, place: &Place) -> Option<Span> {
        self.window(place.key)?
            .claim(place.offset, u64::from(place.length))
    }

    /// A chunk of `len` bytes where it lies, its hash found to be right; `None` if it must be read.
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

    /// The bytes of chunks that follow each other in one pack, whole blocks but for the last, to be read as one.
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
