//! Preload and Load: the conversation's part of a restore, eager or on demand.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use fermata_control::worker::{
    self as control, FailureKind, FromWorker, LoadCheck, Pace, Restoring,
};
use fermata_engine::Live;
use fermata_engine::restore::{self, ImageFiles, Keeper, Loaded, Stand};
use fermata_store::Store;
use fermata_wire::StagedArea;

use super::{Reporter, Worker};
use crate::errors::Faults;
use crate::failure::{failure, from_engine};
use crate::keeper::Client;
use crate::layout::RingPlace;
use crate::scratch::Staging;
use crate::threads::serving_thread;

/// Registers the staging area of the program's ring while data is loaded. Its thread begins when the session's objects
/// have been made, because they must find their former addresses free.
struct Beside {
    area: Option<StagedArea>,
    thread: Option<JoinHandle<Staging>>,
}

impl Beside {
    fn begin(&mut self, live: &Live) {
        let Some(area) = self.area.clone() else {
            return;
        };
        let (driver, touch) = (live.driver.clone(), live.device_hashes);
        let context = live.home.filter(|_| !live.contexts.is_empty());
        let work = move || {
            if touch {
                area.populate();
            }
            let mut staging = Staging::new(area);
            if let Some(context) = context
                && driver.set_current(context).is_ok()
            {
                // If this fails, the area is registered when the program is served.
                let _ = staging.register(&driver);
            }
            staging
        };
        let builder = std::thread::Builder::new().name("staging".to_owned());
        // Without a thread the area is registered when the program is served.
        self.thread = builder.spawn(work).ok();
    }
}

/// Does `work` on a thread like the one that serves, so that the driver has as much stack as it had then.
fn on_serving_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, control::Failure> {
    let internal = |message: String| failure(FailureKind::Internal, message, "");
    let done = std::thread::scope(|scope| {
        let thread = serving_thread().spawn_scoped(scope, work);
        thread.map(|thread| thread.join())
    });
    let done = done.map_err(|error| internal(format!("cannot start a thread: {error}")))?;
    done.map_err(|_| internal("loading has panicked".to_owned()))
}

fn used(operation: &str) -> control::Failure {
    let message = format!("{operation} into a worker that has been used");
    failure(FailureKind::Internal, message, "")
}

impl Worker {
    /// Does the first part of a Load of `image` ahead. `fds` as in [`Worker::load`].
    pub(super) fn preload(
        &mut self,
        store: &Path,
        image: ImageFiles<'_>,
        fds: &[OwnedFd],
    ) -> Result<FromWorker, control::Failure> {
        self.idle("Preload")?;
        if self.used || self.preloaded.is_some() {
            return Err(used("Preload"));
        }
        let mut beside = self.place_ring(fds)?;
        let site = self.idle("Preload")?;
        let preloaded = on_serving_thread(|| {
            let store = Store::open(store, false)?;
            restore::preload(&mut site.live, &store, image, &mut |live| {
                beside.begin(live);
            })
        })?;
        self.preloaded = Some(preloaded.map_err(|error| from_engine(&error))?);
        self.beside = beside.thread;
        Ok(FromWorker::Preloaded)
    }

    /// Rebuilds the session in `image`; threads bring the data that comes on demand. `fds` may hold the memory of the ring
    /// through which the program will be served.
    pub(super) fn load(
        &mut self,
        store: &Path,
        image: ImageFiles<'_>,
        (pace, check): (Pace, LoadCheck),
        fds: &[OwnedFd],
    ) -> Result<FromWorker, control::Failure> {
        self.idle("Load")?;
        if std::mem::replace(&mut self.used, true) {
            return Err(used("Load"));
        }
        let Some(site) = self.site.take() else {
            return self.describe();
        };
        let preloaded = self.preloaded.take();
        let mut beside = match &preloaded {
            Some(_) => None,
            None => Some(self.place_ring(fds)?),
        };
        let loaded = {
            let report = Reporter::new(&self.daemon);
            let run = || {
                let store = Store::open(store, false)?;
                restore::load(
                    site.live,
                    preloaded,
                    &store,
                    image,
                    (pace, check == LoadCheck::Ptx),
                    &|done, total| report.tell(done, total),
                    &mut |live| {
                        if let Some(beside) = &mut beside {
                            beside.begin(live);
                        }
                    },
                )
            };
            on_serving_thread(run)?
        };
        let Loaded {
            mut site,
            summary,
            behind,
            gate,
            guard,
            steps: taken,
        } = loaded.map_err(|error| from_engine(&error))?;
        (self.background, self.gate) = (behind, gate);
        self.missed = guard.as_ref().map(|it| it.missed());
        self.guard = guard;
        if let Some(beside) = beside {
            self.beside = beside.thread;
        }
        self.faults = Faults::restored(&site.session.deferred);
        site.live.forget_current();
        self.site = Some(site);
        Ok(FromWorker::Loaded {
            totals: self.totals(summary),
            steps: taken,
        })
    }

    /// Maps the ring's memory, or reserves its addresses: they were taken, too, when the program loaded its modules.
    fn place_ring(&mut self, ring: &[OwnedFd]) -> Result<Beside, control::Failure> {
        let ring = ring.first();
        let area = ring.and_then(|ring| StagedArea::open(ring.as_fd()).ok());
        if area.is_none() {
            let place = RingPlace::take().map_err(|error| {
                let message = format!("cannot keep a place for the program's ring: {error}");
                failure(FailureKind::User, message, "")
            })?;
            self.place = Some(place);
        }
        Ok(Beside { area, thread: None })
    }

    /// Gives the next Load a keeper of common memory, at the other end of a socket, through which it maps data that other
    /// workers have.
    pub(super) fn common(&mut self, fds: Vec<OwnedFd>) -> Result<FromWorker, control::Failure> {
        let socket = fds.into_iter().next();
        let site = self.idle("Common")?;
        site.live.keeper = socket.map(|it| -> Arc<dyn Keeper> { Arc::new(Client::new(it)) });
        Ok(FromWorker::Common)
    }

    /// Tells the daemon, once, that the session must start again from its image.
    pub(super) fn tell_missed(&mut self) {
        let reason = self.missed.as_ref().and_then(|it| it.lock().clone());
        if let Some(reason) = reason.filter(|_| !self.told_missed) {
            let missed = FromWorker::Missed { reason };
            // If the daemon is gone, the next one asks.
            self.told_missed = self.daemon.send(&missed, &[]).is_ok();
        }
    }

    /// Takes the whole disk for the data that comes on demand.
    pub(super) fn host_memory_there(&self) -> FromWorker {
        if let Some(background) = &self.background {
            background.has_the_disk();
        }
        FromWorker::Noted
    }

    /// How much of the data that comes on demand is present.
    pub(super) fn restoring(&self) -> FromWorker {
        let Some(background) = &self.background else {
            return FromWorker::Restoring(Restoring {
                done: 0,
                total: 0,
                seconds: 0.0,
                steps: Vec::new(),
                stand: control::Stand::Complete,
                misses: Vec::new(),
            });
        };
        let standing = background.standing();
        let missed = self.missed.as_ref().and_then(|it| it.lock().clone());
        let missed = missed.map(Stand::Missed);
        let stand = match missed.unwrap_or(standing.stand) {
            Stand::Coming => control::Stand::Coming,
            Stand::Complete => control::Stand::Complete,
            Stand::Missed(why) => control::Stand::Missed(why),
            Stand::Failed(error) => control::Stand::Failed(from_engine(&error)),
            Stand::Cancelled => control::Stand::GivenUp,
        };
        FromWorker::Restoring(Restoring {
            done: standing.done,
            total: standing.total,
            seconds: standing.seconds,
            steps: standing.steps,
            stand,
            misses: standing.caught,
        })
    }
}
