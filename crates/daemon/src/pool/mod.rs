//! Workers made ahead, so that a session does not wait for a driver to start.
//!
//! `shelf` says what is kept and what is to be made, `keeper` makes and ends it, `show` tells of it. A worker of the pool is
//! given to one session and never comes back; one that ends while it waits is replaced, and no other notices.

mod ending;
mod keeper;
mod shelf;
mod show;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_control::settings;
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
/// How long one waits, if no setting says so.
const USUAL_IDLE: u64 = 3600;

/// The pool: per driver and set of variables up to `FERMATA_SPARE_WORKERS` waiting workers, each for `FERMATA_SPARE_IDLE`
/// seconds at most.
pub struct Pool {
    home: PathBuf,
    worker_log: PathBuf,
    tier: Option<Arc<MemoryTier>>,
    shelf: Mutex<Shelf<Kind, Arc<Worker>>>,
    /// Something of `shelf` has changed.
    changed: Condvar,
}

/// What a worker must have been started with.
#[derive(Clone, PartialEq, Eq)]
struct Kind {
    driver: Driver,
    variables: Variables,
}

impl Pool {
    /// An empty pool of the installation at `home`; [`refill`](Pool::refill) needs the thread that looks after it.
    pub fn new(home: &Path, worker_log: PathBuf, tier: Option<Arc<MemoryTier>>) -> Arc<Self> {
        let number = |name| settings::number(name).ok().flatten();
        let most = number("FERMATA_SPARE_WORKERS").and_then(|most| usize::try_from(most).ok());
        let idle = number("FERMATA_SPARE_IDLE").unwrap_or(USUAL_IDLE);
        let limits = Limits {
            most: most.unwrap_or(USUAL),
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
        let kind = Kind {
            driver: driver.clone(),
            variables: variables.clone(),
        };
        match self.take_spare(&kind) {
            Some(worker) => Ok(worker),
            None => self.start(&kind, true),
        }
    }

    /// A worker for an image: one that loads our kernels when those of the session did.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn take_for(
        &self,
        driver: &Driver,
        variables: &Variables,
        kernels_first: bool,
    ) -> Result<Arc<Worker>> {
        // Softgpu places variables by their module alone.
        if kernels_first || driver.soft {
            return self.take(driver, variables);
        }
        let kind = Kind {
            driver: driver.clone(),
            variables: variables.clone(),
        };
        self.start(&kind, false)
    }

    /// Fills the pool up with workers of this kind, in the background.
    pub fn refill(&self, driver: Driver, variables: Variables) {
        let kind = Kind { driver, variables };
        let given_up = self.shelf.lock().want(&kind);
        self.changed.notify_all();
        ending::end_beside(given_up);
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
            if let Some(worker) = shelf.take(kind, |it| it.lost().is_none()) {
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
