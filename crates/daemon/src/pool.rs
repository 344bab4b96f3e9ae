//! Workers made ahead, so that a session does not wait for a driver to start.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fermata_control::settings;
use fermata_control::worker::ToWorker;
use parking_lot::Mutex;
use tracing::warn;

use crate::driver::Driver;
use crate::failure::Result;
use crate::tier::MemoryTier;
use crate::worker::{self, STEP_TIME, Variables, Worker};

/// The pool: per driver and set of variables up to `FERMATA_SPARE_WORKERS` (1) waiting workers.
pub struct Pool {
    home: PathBuf,
    worker_log: PathBuf,
    tier: Option<Arc<MemoryTier>>,
    most: usize,
    spares: Mutex<Spares>,
}

#[derive(Default)]
struct Spares {
    workers: Vec<Arc<Worker>>,
    closed: bool,
}

impl Pool {
    /// An empty pool of the installation at `home`.
    pub fn new(home: &Path, worker_log: PathBuf, tier: Option<Arc<MemoryTier>>) -> Arc<Self> {
        let most = settings::number("FERMATA_SPARE_WORKERS").ok().flatten();
        let most = most.and_then(|most| usize::try_from(most).ok());
        Arc::new(Self {
            home: home.into(),
            worker_log,
            tier,
            most: most.unwrap_or(1),
            spares: Mutex::default(),
        })
    }

    /// A worker with `driver` and `variables` that has served no program. The caller calls
    /// [`Pool::refill`] when the program runs, so that making the next one does not slow it down.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn take(&self, driver: &Driver, variables: &Variables) -> Result<Arc<Worker>> {
        match self.take_spare(driver, variables) {
            Some(worker) => Ok(worker),
            None => self.start(driver, variables, true),
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
        match kernels_first || driver.soft {
            true => self.take(driver, variables),
            false => self.start(driver, variables, false),
        }
    }

    /// Makes a spare worker in the background, if there is none of this kind.
    pub fn refill(self: &Arc<Self>, driver: Driver, variables: Variables) {
        let pool = self.clone();
        let work = move || {
            let kind = |w: &Arc<Worker>| w.driver == driver && w.variables == variables;
            let enough =
                |s: &Spares| s.closed || s.workers.iter().filter(|w| kind(w)).count() >= pool.most;
            if enough(&pool.spares.lock()) {
                return;
            }
            match pool.start(&driver, &variables, true) {
                Ok(worker) => {
                    pool.warm(&worker);
                    pool.keep(worker);
                }
                Err(failure) => warn!("no spare worker: {}", failure.message),
            }
        };
        // Without a thread there is no spare worker; the next session starts its own.
        let _ = std::thread::Builder::new().name("pool".into()).spawn(work);
    }

    /// How many workers wait.
    pub fn waiting(&self) -> u32 {
        u32::try_from(self.spares.lock().workers.len()).unwrap_or(u32::MAX)
    }

    /// Ends all waiting workers, for good.
    pub fn close(&self) {
        let workers = {
            let mut spares = self.spares.lock();
            spares.closed = true;
            std::mem::take(&mut spares.workers)
        };
        workers.iter().for_each(|worker| worker.end());
    }

    fn take_spare(&self, driver: &Driver, variables: &Variables) -> Option<Arc<Worker>> {
        let mut spares = self.spares.lock();
        spares.workers.retain(|w| w.lost().is_none());
        let fits = |w: &Arc<Worker>| w.driver == *driver && w.variables == *variables;
        let at = spares.workers.iter().position(fits)?;
        Some(spares.workers.remove(at))
    }

    /// Keeps the newest kinds: the oldest spare goes when there are too many kinds.
    fn keep(&self, worker: Arc<Worker>) {
        const KINDS: usize = 2;
        let mut spares = self.spares.lock();
        if spares.closed {
            drop(spares);
            worker.end();
            return;
        }
        spares.workers.push(worker);
        let oldest =
            (spares.workers.len() > KINDS * self.most.max(1)).then(|| spares.workers.remove(0));
        drop(spares);
        if let Some(oldest) = oldest {
            oldest.end();
        }
    }

    /// What its first checkpoint needs is made while it waits; the memory tier brings that along.
    fn warm(&self, worker: &Worker) {
        worker.make_ring();
        if self.tier.as_ref().is_some_and(|tier| tier.brings_staging()) {
            return;
        }
        let warm = worker.request(&ToWorker::Warm, &[], STEP_TIME, &mut |_, _| {});
        if let Err(failure) = warm {
            warn!("a worker is not warm: {}", failure.message);
        }
    }

    fn start(
        &self,
        driver: &Driver,
        variables: &Variables,
        kernels_first: bool,
    ) -> Result<Arc<Worker>> {
        let worker = Worker::start(
            &worker::program(&self.home),
            driver,
            variables,
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

    /// The waiting workers.
    pub fn workers(&self) -> Vec<Arc<Worker>> {
        self.spares.lock().workers.clone()
    }
}
