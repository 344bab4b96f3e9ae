//! The cache of images that lie on a disk: copies of their packs in memory, which workers register with the driver.
//!
//! ```text
//!  restore, checkpoint done ─► image wanted ─┐ nothing under way   ┌─► packs copied, the least recently used go
//!  `images warm` ────────────────────────────┴───────────────────┤
//!  every second ───────────────────────────────────────────────────┴─► copies go whose pack is gone
//! ```
//! What is wrong here costs time only: a restore takes what is not in the cache, or not right, from the disk. Copying
//! pauses while a checkpoint or restore of this daemon is under way.

use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fermata_control::user::{Cache, Check, CheckState, Warmed};
use fermata_control::worker::FailureKind;
use fermata_control::{Paths, settings};
use fermata_store::image::Image;
use fermata_store::{Kept, PackCache, PackId, StoreError, is_memory};
use parking_lot::{Condvar, Mutex};
use tracing::warn;

use crate::failure::{Failure, Hint, Result, fail, from_store};

/// The variable that sets how much is kept.
const SETTING: &str = "FERMATA_CACHE";
/// Where memory is that is meant to be shared; a runtime folder's file system is often small, and others need it.
const MEMORY: &str = "/dev/shm";
/// How often it is looked for packs that are gone.
const TURN: Duration = Duration::from_secs(1);
/// How long a copy may take to notice that the daemon ends.
const END_TIME: Duration = Duration::from_secs(2);
/// Images that wait for their turn at most; beyond that the oldest wish is forgotten.
const MOST_WANTED: usize = 64;

/// See the module.
pub struct ImageCache {
    packs: PackCache,
    /// The daemon's own store, where an image's is sought last.
    store: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
    /// Held by the thread that changes the folder.
    work: Mutex<()>,
}

#[derive(Default)]
struct State {
    wanted: VecDeque<PathBuf>,
    /// Checkpoints and restores under way.
    busy: usize,
    closed: bool,
    /// Why the last image could not be kept.
    trouble: String,
}

/// Keeps copies from being made while it lives.
pub(crate) struct Busy(Arc<ImageCache>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.state.lock().busy -= 1;
        self.0.changed.notify_all();
    }
}

impl ImageCache {
    /// The cache that the environment asks for, with what a dead daemon has left of it; none by default, for it
    /// takes memory from everybody.
    pub fn from_env(paths: &Paths) -> Option<Arc<Self>> {
        let limit = settings::number(SETTING).ok().flatten().unwrap_or(0);
        let folder = folder(&paths.runtime);
        let packs = PackCache::new(&folder, limit);
        if limit == 0 {
            packs.clear();
            return None;
        }
        if !is_memory(&folder) {
            warn!("no cache is kept: `{MEMORY}` is not in memory");
            return None;
        }
        let cache = Arc::new(Self {
            packs,
            store: paths.store(),
            state: Mutex::default(),
            changed: Condvar::default(),
            work: Mutex::default(),
        });
        let runs = Arc::clone(&cache);
        let started = std::thread::Builder::new()
            .name("cache".into())
            .spawn(move || runs.run());
        started.ok().map(|_| cache)
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        self.packs.folder()
    }

    /// The most bytes it may hold.
    pub fn limit(&self) -> u64 {
        self.packs.limit()
    }

    /// How it is.
    pub fn status(&self) -> Cache {
        let (packs, used) = self.packs.used();
        Cache {
            folder: self.folder().to_owned(),
            packs,
            used,
            limit: self.limit(),
            trouble: self.state.lock().trouble.clone(),
        }
    }

    /// A checkpoint or restore is under way while the answer lives.
    pub(crate) fn busy(self: &Arc<Self>) -> Busy {
        self.state.lock().busy += 1;
        Busy(Arc::clone(self))
    }

    /// This image has been used, and is copied when nothing else is under way.
    pub fn used(&self, image: &Path) {
        let mut state = self.state.lock();
        state.wanted.retain(|it| it != image);
        state.wanted.push_back(image.to_owned());
        if state.wanted.len() > MOST_WANTED {
            state.wanted.pop_front();
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Copies an image's packs, as far as there is room, and tells how many bytes are there of how many.
    ///
    /// # Errors
    /// The image or its store cannot be read, or the folder is another user's.
    pub fn warm(&self, image: &Path, report: &mut dyn FnMut(u64, u64)) -> Result<Warmed> {
        let filled = self.fill(image, report);
        let trouble = filled.as_ref().err().map(|failure| failure.message.clone());
        let trouble = trouble.unwrap_or_default();
        let mut state = self.state.lock();
        if !trouble.is_empty() && state.trouble != trouble && !state.closed {
            warn!("cache: {trouble}");
        }
        state.trouble = trouble;
        filled
    }

    fn fill(&self, image: &Path, report: &mut dyn FnMut(u64, u64)) -> Result<Warmed> {
        let mut wait = |done, total| {
            report(done, total);
            self.may_go_on(&mut || report(done, total))
        };
        wait(0, 0);
        let _work = self.work.lock();
        let image = Image::open(image).map_err(|e| from_store(&e))?;
        let store = image.find_store(std::slice::from_ref(&self.store));
        let store = store.map_err(|e| from_store(&e))?;
        let packs = match is_memory(store.dir()) {
            true => Vec::new(),
            false => image
                .chunk_table()
                .and_then(|table| store.packs_of(&table))
                .map_err(|e| from_store(&e))?,
        };
        let beside: Vec<PackId> = packs.iter().map(|it| it.id).collect();
        let bytes: u64 = packs.iter().map(|it| it.bytes).sum();
        let mut cached = 0;
        for pack in &packs {
            if !wait(cached, bytes) {
                break;
            }
            let kept = self
                .packs
                .keep(pack, &beside, &mut || wait(cached, bytes))
                .map_err(|e| not_kept(&e))?;
            if kept == Kept::Yes {
                cached += pack.bytes;
            }
        }
        Ok(Warmed {
            image: image.dir().to_owned(),
            in_memory: is_memory(store.dir()),
            bytes,
            cached,
            cache: Some(self.status()),
            ..Warmed::default()
        })
    }

    /// Waits while something else is under way; false when the daemon ends.
    fn may_go_on(&self, waits: &mut dyn FnMut()) -> bool {
        let mut state = self.state.lock();
        while state.busy > 0 && !state.closed {
            if self.changed.wait_for(&mut state, TURN).timed_out() {
                waits();
            }
        }
        !state.closed
    }

    fn run(&self) {
        self.sweep();
        loop {
            let mut state = self.state.lock();
            if state.wanted.is_empty() && !state.closed {
                self.changed.wait_for(&mut state, TURN);
            }
            if state.closed {
                return;
            }
            let image = state.wanted.pop_front();
            drop(state);
            self.sweep();
            if let Some(image) = image {
                // It may be gone by now; `doctor` tells of what else is wrong.
                let _ = self.warm(&image, &mut |_, _| {});
            }
        }
    }

    fn sweep(&self) {
        let _work = self.work.lock();
        self.packs.sweep();
    }

    /// Removes everything; a daemon that ends leaves no memory taken.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
        // One that hangs at a disk finds no folder any more.
        let _work = self.work.try_lock_for(END_TIME);
        self.packs.clear();
    }
}

fn not_kept(error: &StoreError) -> Failure {
    match error {
        StoreError::Misuse { .. } => {
            fail(FailureKind::User, error.to_string()).hint("remove it; the daemon makes it again")
        }
        _ => from_store(error),
    }
}

/// How the cache is.
pub fn check(cache: Option<&ImageCache>) -> Check {
    let found = |state, detail: String, hint: &str| Check {
        name: "cache".into(),
        state,
        detail,
        hint: hint.into(),
    };
    let Some(cache) = cache else {
        let detail = format!(
            "off; `{SETTING}=16G` in the daemon's environment keeps images of a disk in memory"
        );
        return found(CheckState::Ok, detail, "");
    };
    let status = cache.status();
    let detail = format!(
        "{} MiB of at most {} in `{}`, {} packs",
        status.used >> 20,
        status.limit >> 20,
        status.folder.display(),
        status.packs
    );
    if status.trouble.is_empty() {
        return found(CheckState::Ok, detail, "");
    }
    let detail = format!("{detail}; the last image was not kept: {}", status.trouble);
    let hint = "restores read from the disk what is not in the cache; `fermata images warm IMAGE` tries again";
    found(CheckState::Warn, detail, hint)
}

/// One for each user and runtime folder, and so for each daemon.
fn folder(runtime: &Path) -> PathBuf {
    let runtime = std::fs::canonicalize(runtime).unwrap_or_else(|_| runtime.to_owned());
    let hash = blake3::hash(runtime.as_os_str().as_bytes()).to_hex();
    let user = rustix::process::geteuid().as_raw();
    Path::new(MEMORY).join(format!("fermata-{user}-{}", &hash[..16]))
}
