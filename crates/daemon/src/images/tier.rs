//! The registered memory tier's part in the daemon: how much is kept ready, and which workers know of it.
//!
//! ```text
//!  FERMATA_MEMORY_TIER bytes of packs made ready, touched ── at the start and after each checkpoint
//!  every new worker ── Keep ──► maps and registers them, and packs of images, up to the limit
//! ```
//! Packs are made ready only where images are kept in memory: what goes to a disk takes no memory of the host. Of images on
//! a disk, workers register the copies that the cache has (`cache`).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fermata_control::worker::{FromWorker, Tier, TierState, ToWorker};
use fermata_control::{Paths, settings};
use fermata_store::{HostMemory, Store};
use parking_lot::{Condvar, Mutex};
use tracing::warn;

use crate::failure::{Result, from_store};
use crate::images::cache::ImageCache;
use crate::worker::{Pending, Worker, unexpected};

/// How long a worker may take to say how its tier is.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// What could not be made ready is tried again after this time, after twice that, and so on up to the second.
const RETRY: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(8)];

/// See the module.
pub struct MemoryTier {
    images: PathBuf,
    /// The store, if it is in memory.
    store: Option<PathBuf>,
    /// Where the cache keeps copies of packs that are on a disk.
    copies: Option<PathBuf>,
    ready: u64,
    limit: u64,
    filling: Mutex<Filling>,
    /// It is to look again.
    asked: Condvar,
}

/// What the thread that makes packs ready does.
#[derive(Default)]
struct Filling {
    running: bool,
    /// To look again before it ends.
    again: bool,
    /// Why not all that is asked for is ready.
    trouble: String,
}

impl MemoryTier {
    /// The tier that the environment asks for; none if there is neither a cache, nor images in memory and a limit
    /// above 0.
    pub fn from_env(paths: &Paths, cache: Option<&ImageCache>) -> Option<Arc<Self>> {
        // Wrong values have ended the daemon by now.
        let setting = |name| settings::number(name).ok().flatten();
        let ready = setting("FERMATA_MEMORY_TIER").unwrap_or(0);
        let limit = setting("FERMATA_MEMORY_TIER_LIMIT");
        let in_memory = fermata_store::is_memory(&paths.images);
        if !in_memory && ready > 0 {
            warn!("no memory is kept ready: images are on a disk");
        }
        let ready = if in_memory { ready } else { 0 };
        let cached = cache.map_or(0, ImageCache::limit);
        let limit = limit.unwrap_or_else(|| match in_memory {
            true => default_limit(ready).max(cached),
            false => cached,
        });
        // A worker that registers nothing still reads from the cache.
        let wanted = cache.is_some() || in_memory && limit > 0;
        wanted.then(|| {
            Arc::new(Self {
                images: paths.images.clone(),
                store: in_memory.then(|| paths.store()),
                copies: cache.map(|cache| cache.folder().to_owned()),
                ready,
                limit,
                filling: Mutex::default(),
                asked: Condvar::new(),
            })
        })
    }

    /// Whether workers make staging buffers with it.
    pub fn brings_staging(&self) -> bool {
        self.store.is_some()
    }

    /// Tells a worker; the answer is how the worker's tier is.
    ///
    /// # Errors
    /// The worker is lost.
    pub fn keep(&self, worker: &Worker) -> Result<Tier> {
        kept(worker.begin(&self.request(), &[])?)
    }

    /// How it is in the one of these workers that has least ready; `None` if all are gone or busy.
    pub fn status(&self, workers: &[Arc<Worker>]) -> Option<Tier> {
        let request = self.request();
        let told = workers
            .iter()
            .filter_map(|it| kept(it.try_begin(&request)?.ok()?).ok());
        let mut least = told.min_by_key(|it| (it.ready, it.registered))?;
        let filling = self.filling.lock();
        if least.trouble.is_empty() && !filling.trouble.is_empty() {
            (least.state, least.trouble) = (TierState::Failed, filling.trouble.clone());
        }
        if filling.running && least.state == TierState::Complete {
            // There is more to come.
            least.state = TierState::Registering;
        }
        Some(least)
    }

    fn request(&self) -> ToWorker {
        ToWorker::Keep {
            store: self.store.clone().unwrap_or_default(),
            copies: self.copies.clone().unwrap_or_default(),
            limit: self.limit,
        }
    }

    /// Bytes that are ready.
    pub fn ready_bytes(&self) -> u64 {
        let store = self.store.as_ref();
        let store = store.and_then(|folder| Store::open(folder, false).ok());
        store.map_or(0, |store| store.ready_bytes())
    }

    /// Makes ready what is asked for, on a thread of its own, which tries until it is.
    pub fn refill(self: &Arc<Self>) {
        if self.ready == 0 {
            return;
        }
        let mut filling = self.filling.lock();
        filling.again = true;
        self.asked.notify_all();
        if std::mem::replace(&mut filling.running, true) {
            return;
        }
        let tier = Arc::clone(self);
        let started = std::thread::Builder::new()
            .name("memory-tier".into())
            .spawn(move || tier.fill());
        // Without a thread, checkpoints make their space themselves.
        filling.running = started.is_ok();
    }

    fn fill(&self) {
        let mut pause = RETRY[0];
        loop {
            self.filling.lock().again = false;
            let trouble = match self.prepare() {
                Ok(()) => String::new(),
                Err(failure) => format!("not all memory is ready: {}", failure.message),
            };
            let mut filling = self.filling.lock();
            if !trouble.is_empty() && filling.trouble != trouble {
                warn!("memory tier: {trouble}");
            }
            filling.trouble = trouble;
            if filling.trouble.is_empty() {
                if !filling.again {
                    filling.running = false;
                    return;
                }
                pause = RETRY[0];
                continue;
            }
            // Images may be removed, or other programs end: nothing tells. What is asked for anew ends the pause.
            if !filling.again {
                self.asked.wait_for(&mut filling, pause);
            }
            pause = (pause * 2).min(RETRY[1]);
        }
    }

    fn prepare(&self) -> Result<()> {
        let Some(folder) = &self.store else {
            return Ok(());
        };
        // What is missing is told by the store.
        let _ = std::fs::create_dir_all(&self.images);
        let store = Store::open(folder, true).map_err(|e| from_store(&e))?;
        store.prepare(self.ready).map_err(|e| from_store(&e))?;
        Ok(())
    }
}

/// The answer to Keep.
fn kept(asked: Pending<'_>) -> Result<Tier> {
    match asked.finish(ANSWER_TIME, &mut |_, _| {})? {
        FromWorker::Kept(tier) => Ok(tier),
        other => Err(unexpected(&other)),
    }
}

/// Half of the host's memory, or room for what is kept ready and as much again.
fn default_limit(ready: u64) -> u64 {
    let memory = HostMemory::now().map_or(0, |it| it.total);
    (memory / 2).max(ready.saturating_mul(2))
}
