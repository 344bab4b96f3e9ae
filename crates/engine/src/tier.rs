//! The registered memory tier: packs of a store in memory, mapped and registered with the driver ahead of
//! time, so that a checkpoint copies straight into them and a restore straight out of them.
//!
//! ```text
//!  store: ready/ID.pack ──┐ looked for      ┌─► Window: mapped ─► registered, slice by slice
//!         packs/ID.pack ──┴─ Tier::refresh ─┤
//!                                           └─► gone, or cut: given back
//!  save:  wanted() ─► PackWriter claims places in them ─► claim() the window's bytes ─► copy
//!  load:  ChunkReader locates a chunk ─► share() the window's bytes ─► copy
//! ```
//! A file keeps its window whatever its name becomes: a ready pack that was written and published is read
//! through the same registration. Everything here may fail or be absent; the ordinary way is taken then.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use fermata_device::{ContextHandle, Driver, PinnedPool, SharedSpan, Span, Window};
use fermata_store::{
    ChunkId, ChunkReader, FileKey, Located, PackFile, PackId, Place, Store, StoreError,
};
use parking_lot::Mutex;

use crate::{CHUNK, STAGING_BUFFERS};

/// Where windows are mapped in a worker: apart from the ranges of the program's memory, and from where the
/// kernel and the driver put theirs, which must not depend on what is registered when.
const BASE: u64 = 0x2800_0000_0000;
const END: u64 = 0x2c00_0000_0000;
/// Where windows begin; staging buffers lie before them.
const WINDOWS: u64 = BASE + (1 << 30);
/// Addresses between the starts of windows are multiples of this.
const STEP: u64 = 2 << 20;
/// A registration that fails is tried again after this time.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two registrations others get the driver.
const PAUSE: Duration = Duration::from_millis(1);
/// How often it is looked whether a checkpoint or restore is over.
const BUSY_TURN: Duration = Duration::from_millis(5);

/// How the tier is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TierStatus {
    /// Bytes registered with the driver.
    pub registered: u64,
    /// Of these, ready to be written.
    pub ready: u64,
    /// The most that may be registered.
    pub limit: u64,
    /// Why less is registered than there is, if so.
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
    trouble: Option<(String, Instant)>,
}

/// See the module.
pub struct Tier {
    driver: Arc<Driver>,
    context: ContextHandle,
    limit: u64,
    state: Mutex<State>,
    /// Made with the first window; for what does not go through one.
    staging: OnceLock<PinnedPool>,
    /// Checkpoints and restores under way, which registering would slow down.
    busy: AtomicUsize,
}

/// Keeps the tier from registering while it lives.
pub(crate) struct Quiet(Arc<Tier>);

impl Drop for Quiet {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Tier {
    /// An empty tier that registers at most `limit` bytes, in `context`, which must live as long.
    pub fn new(driver: Arc<Driver>, context: ContextHandle, limit: u64) -> Arc<Self> {
        Arc::new(Self {
            driver,
            context,
            limit,
            state: Mutex::new(State {
                next: WINDOWS,
                ..State::default()
            }),
            staging: OnceLock::new(),
            busy: AtomicUsize::new(0),
        })
    }

    /// Brings the windows up to date with the store. Registering takes 30 to 90 ms per GiB; it is meant for
    /// a thread of its own, whose current context it changes, and stands back while a checkpoint or restore
    /// is under way. What does not work is in [`Tier::status`].
    pub fn refresh(&self, store: &Store) {
        let files = match store.pack_files() {
            Ok(files) => files,
            Err(error) => return self.note(format!("cannot list the packs: {error}")),
        };
        let given_up = self.give_back(&files);
        // Unregistering takes its time, without the lock.
        drop(given_up);
        if self.waits() {
            return;
        }
        for file in files {
            if self.busy.load(Ordering::Acquire) > 0 || !self.add(&file) {
                return;
            }
        }
    }

    /// Removes windows whose file is gone, cut, or no more of this store, and takes names anew.
    fn give_back(&self, files: &[PackFile]) -> Vec<Entry> {
        let ready: HashMap<FileKey, PackId> = files
            .iter()
            .filter(|f| f.ready)
            .map(|f| (f.key, f.id))
            .collect();
        let mut state = self.state.lock();
        let mut gone = Vec::new();
        for (key, entry) in &mut state.entries {
            entry.ready = ready.get(key).copied();
            let stat = rustix::fs::fstat(entry.window.file().as_fd());
            let sound = stat.is_ok_and(|s| {
                s.st_nlink > 0 && u64::try_from(s.st_size).unwrap_or(0) >= entry.window.len()
            });
            // One in use goes the next time.
            if !sound && Arc::strong_count(&entry.window) == 1 {
                gone.push(*key);
            }
        }
        gone.iter()
            .filter_map(|key| state.entries.remove(key))
            .collect()
    }

    /// Maps and registers a file that has no window; false to stop for now.
    fn add(&self, file: &PackFile) -> bool {
        let Some(room) = self.make_room(file) else {
            return true;
        };
        // Without the lock, as in `refresh`.
        drop(room);
        let window = match self.map(file) {
            Ok(window) => Arc::new(window),
            Err(error) => {
                self.note(format!("cannot map `{}`: {error}", file.path.display()));
                return false;
            }
        };
        loop {
            while self.busy.load(Ordering::Acquire) > 0 {
                std::thread::sleep(BUSY_TURN);
            }
            match window.register_next() {
                Ok(true) => std::thread::sleep(PAUSE),
                Ok(false) => break,
                Err(error) => {
                    let path = file.path.display();
                    self.note(format!("cannot register `{path}` with the driver: {error}"));
                    return false;
                }
            }
        }
        self.make_staging();
        let mut state = self.state.lock();
        state.count += 1;
        let entry = Entry {
            window,
            ready: file.ready.then_some(file.id),
            age: state.count,
        };
        state.entries.insert(file.key, entry);
        true
    }

    /// Touching and pinning them takes longer than a program should stand still for.
    fn make_staging(&self) {
        if self.staging.get().is_some() {
            return;
        }
        match PinnedPool::at(&self.driver, BASE, STAGING_BUFFERS, CHUNK as usize) {
            // Only this thread makes them.
            Ok(pool) => drop(self.staging.set(pool)),
            Err(error) => self.note(format!("cannot make staging buffers: {error}")),
        }
    }

    /// Staging buffers, if they have been made.
    pub(crate) fn staging(&self) -> Option<PinnedPool> {
        self.staging.get().cloned()
    }

    /// Windows to be given back before the file gets one; `None` if it has one or shall have none. Ready
    /// packs take the place of published ones, the oldest first.
    fn make_room(&self, file: &PackFile) -> Option<Vec<Entry>> {
        let mut state = self.state.lock();
        if file.bytes == 0 || state.entries.contains_key(&file.key) {
            return None;
        }
        let used: u64 = state.entries.values().map(|e| e.window.len()).sum();
        let mut excess = (used + file.bytes).saturating_sub(self.limit);
        if excess == 0 {
            return Some(Vec::new());
        }
        let mut old: Vec<(u64, FileKey, u64)> = state
            .entries
            .iter()
            .filter(|(_, e)| file.ready && e.ready.is_none() && Arc::strong_count(&e.window) == 1)
            .map(|(key, e)| (e.age, *key, e.window.len()))
            .collect();
        old.sort_unstable();
        if old.iter().map(|(_, _, bytes)| bytes).sum::<u64>() < excess {
            return None;
        }
        let mut evicted = Vec::new();
        for (_, key, bytes) in old {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(bytes);
            evicted.extend(state.entries.remove(&key));
        }
        Some(evicted)
    }

    fn map(&self, file: &PackFile) -> std::io::Result<Window> {
        let opened = OpenOptions::new().read(true).write(true).open(&file.path)?;
        let address = {
            let mut state = self.state.lock();
            let span = file.bytes.next_multiple_of(STEP);
            if state.next + span > END {
                state.next = WINDOWS;
            }
            let address = state.next;
            state.next += span;
            address
        };
        Window::map(&self.driver, self.context, opened, address, file.bytes)
    }

    fn note(&self, what: String) {
        self.state.lock().trouble = Some((what, Instant::now()));
    }

    /// Whether the last failure is too fresh to try again.
    fn waits(&self) -> bool {
        let mut state = self.state.lock();
        if state
            .trouble
            .as_ref()
            .is_some_and(|(_, at)| at.elapsed() < PATIENCE)
        {
            return true;
        }
        state.trouble = None;
        false
    }

    /// How it is.
    pub fn status(&self) -> TierStatus {
        let state = self.state.lock();
        let windows = || state.entries.values();
        TierStatus {
            registered: windows().map(|e| e.window.registered()).sum(),
            ready: windows()
                .filter(|e| e.ready.is_some())
                .map(|e| e.window.registered())
                .sum(),
            limit: self.limit,
            trouble: state.trouble.as_ref().map(|(what, _)| what.clone()),
        }
    }

    /// Keeps registrations from disturbing until the answer is dropped.
    pub(crate) fn quiet(self: &Arc<Self>) -> Quiet {
        self.busy.fetch_add(1, Ordering::AcqRel);
        Quiet(Arc::clone(self))
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
        let span = self.share(&reader.locate(id)?);
        Ok(span.filter(|span| span.len() == len && ChunkId::of(span) == *id))
    }

    /// The bytes of chunks that follow each other in one pack, whole blocks but for the last, to be read as one.
    pub(crate) fn share_run(&self, chunks: &[Located]) -> Option<SharedSpan> {
        let (first, rest) = chunks.split_first()?;
        let mut end = first.offset + u64::from(first.length);
        for next in rest {
            if next.key != first.key || next.offset != end {
                return None;
            }
            end += u64::from(next.length);
        }
        self.window(first.key)?
            .share(first.offset, end - first.offset)
    }

    /// The bytes of a chunk, to be read.
    pub(crate) fn share(&self, at: &Located) -> Option<SharedSpan> {
        self.window(at.key)?.share(at.offset, u64::from(at.length))
    }
}
