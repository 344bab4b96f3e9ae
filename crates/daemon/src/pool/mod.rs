//! The pool of spare workers, so that a session does not wait for a driver to start, nor a restore for it to load modules.
//!
//! `shelf` decides which workers to keep and to make, `keeper` makes and ends them, `show` describes them to users. A worker of
//! the pool is given to one session and never returns. One that ends while it waits is replaced.

mod ending;
mod keeper;
mod shelf;
mod show;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_control::agent::FIRST_DEVICE;
use fermata_control::settings;
use fermata_control::worker::ImageDigests;
use parking_lot::{Condvar, Mutex};
use tracing::warn;

pub use self::keeper::look_after;
use self::shelf::{Limits, Shelf};
pub use self::show::spare_workers;
use crate::failure::Result;
use crate::gpu::driver::Driver;
use crate::images::tier::MemoryTier;
use crate::worker::{self, OPEN_TIME, Variables, Worker};

/// How many workers of a kind are kept, if no setting says so.
const USUAL: usize = 1;
/// How many are kept for each process of an image, if no setting says so.
const USUAL_PRELOADED: usize = 1;
/// The most processes of one image that have preloaded workers: jobs have one for each GPU of a host.
const MOST_PARTS: usize = 8;
/// How long one waits, if no setting says so.
const USUAL_IDLE: u64 = 3600;

/// The pool: per driver and set of variables up to `FERMATA_SPARE_WORKERS` waiting workers, and for each process of an image up to
/// `FERMATA_SPARE_PRELOADED`, each for `FERMATA_SPARE_IDLE` seconds at most.
pub struct Pool {
    home: PathBuf,
    worker_log: PathBuf,
    tier: Option<Arc<MemoryTier>>,
    shelf: Mutex<Shelf<Kind, Arc<Worker>>>,
    /// Something of `shelf` has changed.
    changed: Condvar,
}

/// The properties with which a worker must have been started.
#[derive(Clone, PartialEq, Eq)]
struct Kind {
    driver: Driver,
    variables: Variables,
    /// The part of an image that it has preloaded.
    image: Option<Preload>,
}

/// The part of an image for one process, whose modules a worker may preload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preload {
    /// The image itself.
    pub image: PathBuf,
    /// The folder of the part.
    pub part: PathBuf,
    /// Its chunk store's folder.
    pub store: PathBuf,
    /// The digests of the part's files.
    pub digests: ImageDigests,
}

impl Pool {
    /// An empty pool of the installation at `home`; [`refill`](Pool::refill) needs the thread that looks after it.
    pub fn new(home: &Path, worker_log: PathBuf, tier: Option<Arc<MemoryTier>>) -> Arc<Self> {
        let number = |name| settings::number(name).ok().flatten();
        let many = |name, usual| {
            let many = number(name).and_then(|many| usize::try_from(many).ok());
            many.unwrap_or(usual)
        };
        let idle = number("FERMATA_SPARE_IDLE").unwrap_or(USUAL_IDLE);
        let most = many("FERMATA_SPARE_WORKERS", USUAL);
        let limits = Limits {
            most,
            // Who wants no workers that wait has said so.
            preloaded: many("FERMATA_SPARE_PRELOADED", USUAL_PRELOADED.min(most)),
            idle: (idle > 0).then(|| Duration::from_secs(idle)),
        };
        Arc::new(Self {
            home: home.into(),
            worker_log,
            tier,
            shelf: Mutex::new(Shelf::new(limits)),
            changed: Condvar::new(),
        })
    }

    /// A worker with `driver` and `variables` that has served no program. The caller calls
    /// [`Pool::refill`] when the program runs, so that making the next one does not slow it down.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn take(&self, driver: &Driver, variables: &Variables) -> Result<Arc<Worker>> {
        let kind = Kind::plain(driver, variables);
        match self.take_spare(&kind) {
            Some(worker) => Ok(worker),
            None => self.start(&kind, true),
        }
    }

    /// A worker for an image: one that loads our kernels when those of the session did, and has loaded `image` ahead if there
    /// is one.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn take_for(
        &self,
        driver: &Driver,
        variables: &Variables,
        kernels_first: bool,
        image: Option<&Preload>,
    ) -> Result<Arc<Worker>> {
        let plain = Kind::plain(driver, variables);
        if !may_wait(driver, kernels_first) {
            return self.start(&plain, false);
        }
        let preloaded = image.map(|image| plain.with(image));
        match preloaded.and_then(|it| self.take_spare(&it)) {
            Some(worker) => Ok(worker),
            None => self.take(driver, variables),
        }
    }

    /// Fills the pool up with workers of this kind, in the background.
    pub fn refill(&self, driver: &Driver, variables: &Variables) {
        self.refill_for(driver, variables, Vec::new());
    }

    /// As [`Pool::refill`], and with such as wait for the parts of an image, each with its variables. Those for any program begin with
    /// the first device.
    pub fn refill_for(
        &self,
        driver: &Driver,
        variables: &Variables,
        parts: Vec<(Variables, Preload)>,
    ) {
        let given_up = {
            let mut shelf = self.shelf.lock();
            let Limits {
                most, preloaded, ..
            } = shelf.limits();
            let parts = parts.into_iter().take(MOST_PARTS);
            let parts = parts.filter(|_| preloaded > 0);
            let parts = parts.map(|(variables, image)| {
                (Kind::plain(driver, &variables).with(&image), preloaded)
            });
            let mut any = variables.clone();
            any.remove(FIRST_DEVICE);
            let plain = (Kind::plain(driver, &any), most);
            shelf.want(std::iter::once(plain).chain(parts))
        };
        self.changed.notify_all();
        ending::end_beside(given_up);
    }

    /// Waits until as many workers wait for `image` as are kept, or none more is being made: how many do, and how many are kept.
    pub fn await_ready(&self, image: &Path) -> [u32; 2] {
        let until = Instant::now() + OPEN_TIME;
        let mut shelf = self.shelf.lock();
        loop {
            let kinds = shelf.kinds().iter();
            let of_image =
                kinds.filter(|it| it.key.image.as_ref().is_some_and(|it| it.image == image));
            let (mut ready, mut kept, mut coming) = (0, 0, false);
            for kind in of_image {
                (ready, kept) = (ready + kind.ready.len(), kept + kind.most);
                coming |= kind.is_coming();
            }
            let late = coming && self.changed.wait_until(&mut shelf, until).timed_out();
            if late || !coming {
                return [ready, kept].map(|many| u32::try_from(many).unwrap_or(u32::MAX));
            }
        }
    }

    /// How many workers wait.
    pub fn waiting(&self) -> u32 {
        u32::try_from(self.workers().len()).unwrap_or(u32::MAX)
    }

    /// The waiting workers.
    pub fn workers(&self) -> Vec<Arc<Worker>> {
        let shelf = self.shelf.lock();
        let ready = shelf.kinds().iter().flat_map(|it| &it.ready);
        ready.map(|it| Arc::clone(&it.worker)).collect()
    }

    /// The waiting workers that were started with these variables.
    pub fn workers_with(&self, soft: bool, variables: &Variables) -> Vec<Arc<Worker>> {
        let shelf = self.shelf.lock();
        let kinds = shelf.kinds().iter();
        let same = kinds.filter(|it| it.key.driver.soft == soft && it.key.variables == *variables);
        let ready = same.flat_map(|it| &it.ready);
        ready.map(|it| Arc::clone(&it.worker)).collect()
    }

    /// Ends the workers that wait, whose contexts and modules take memory that somebody lacks; whether there were any. The next session
    /// fills the pool again.
    pub fn give_way(&self, soft: bool) -> bool {
        let given_up = self.shelf.lock().give_up(|it| it.driver.soft == soft);
        self.changed.notify_all();
        given_up.iter().for_each(|worker| worker.end());
        !given_up.is_empty()
    }

    /// Ends all waiting workers, for good.
    pub fn close(&self) {
        let workers = self.shelf.lock().close();
        self.changed.notify_all();
        workers.iter().for_each(|worker| worker.end());
    }

    /// One that waits, or the one that is being made: it is there before another one would be.
    fn take_spare(&self, kind: &Kind) -> Option<Arc<Worker>> {
        let until = Instant::now() + OPEN_TIME;
        let mut shelf = self.shelf.lock();
        loop {
            // One that was killed closes its connection only once its memory is free.
            let usable = |it: &Arc<Worker>| it.lost().is_none() && !it.process.is_ending();
            if let Some(worker) = shelf.take(kind, usable) {
                return Some(worker);
            }
            if !shelf.wait(kind) {
                return None;
            }
            let late = self.changed.wait_until(&mut shelf, until).timed_out();
            shelf.waited(kind);
            if late {
                return None;
            }
        }
    }

    fn start(&self, kind: &Kind, kernels_first: bool) -> Result<Arc<Worker>> {
        let worker = Worker::start(
            &worker::program(&self.home),
            &kind.driver,
            &kind.variables,
            kernels_first,
            &self.worker_log,
        )?;
        if let Some(tier) = &self.tier
            && let Err(failure) = tier.keep(&worker)
        {
            // It serves all the same.
            warn!("a worker has no memory tier: {}", failure.message);
        }
        Ok(worker)
    }
}

impl Kind {
    /// Of workers that may serve any program.
    fn plain(driver: &Driver, variables: &Variables) -> Self {
        Self {
            driver: driver.clone(),
            variables: variables.clone(),
            image: None,
        }
    }

    /// Of those that have loaded `image` ahead.
    fn with(&self, image: &Preload) -> Self {
        Self {
            image: Some(image.clone()),
            ..self.clone()
        }
    }
}

/// Whether a worker for such a session may have waited in the pool. Softgpu places variables by their module alone; a GPU's
/// driver by what was loaded before.
pub fn may_wait(driver: &Driver, kernels_first: bool) -> bool {
    kernels_first || driver.soft
}
