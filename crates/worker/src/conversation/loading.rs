//! Loading an image: the conversation's part of a restore, whole or behind the program.

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

/// The staging area of the program's ring, made ready while data is loaded. The thread for it begins when the
/// session's objects are there, for they must find the addresses free that they had.
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
        let context = live.contexts.values().map(|it| it.handle).min();
        let work = move || {
            if touch {
                area.populate();
            }
            let mut staging = Staging::new(area);
            if let Some(context) = context
                && driver.set_current(context).is_ok()
            {
                // What is not registered now is when the program is served.
                let _ = staging.register(&driver);
            }
            staging
        };
        let builder = std::thread::Builder::new().name("staging".to_owned());
        // Without a thread it is made ready when the program is served.
        self.thread = builder.spawn(work).ok();
    }
}

impl Worker {
    /// Makes the session in `image`; what comes later is brought by threads of its own. `fds` may hold the memory
    /// of the ring that the program will be served through.
    pub(super) fn load(
        &mut self,
        store: &Path,
        image: ImageFiles<'_>,
        (pace, check): (Pace, LoadCheck),
        fds: Vec<OwnedFd>,
    ) -> Result<FromWorker, control::Failure> {
        self.idle("Load")?;
        if std::mem::replace(&mut self.used, true) {
            return Err(failure(
                FailureKind::Internal,
                "Load into a worker that has been used",
                "",
            ));
        }
        let Some(site) = self.site.take() else {
            return self.describe();
        };
        // Where the ring is mapped, the program's modules found something mapped, too.
        let mut beside = Beside {
            area: fds
                .first()
                .and_then(|ring| StagedArea::open(ring.as_fd()).ok()),
            thread: None,
        };
        let place = match beside.area {
            Some(_) => None,
            None => Some(RingPlace::take().map_err(|error| {
                failure(
                    FailureKind::User,
                    format!("cannot keep a place for the program's ring: {error}"),
                    "",
                )
            })?),
        };
        let loaded = {
            let report = Reporter::new(&self.daemon);
            let run = || {
                let store = Store::open(store, false)?;
                restore::load(
                    site.live,
                    &store,
                    image,
                    (pace, check == LoadCheck::Ptx),
                    &|done, total| report.tell(done, total),
                    &mut |live| beside.begin(live),
                )
            };
            // On a thread like the one that serves, so that the driver has the room it had then.
            std::thread::scope(|scope| {
                serving_thread()
                    .spawn_scoped(scope, run)
                    .map(|thread| thread.join())
            })
        };
        let internal = |message: String| failure(FailureKind::Internal, message, "");
        let loaded = loaded.map_err(|error| internal(format!("cannot start a thread: {error}")))?;
        let loaded = loaded.map_err(|_| internal("loading has panicked".to_owned()))?;
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
        self.place = place;
        self.beside = beside.thread;
        self.faults = Faults::restored(&site.session.deferred);
        site.live.forget_current();
        self.site = Some(site);
        Ok(FromWorker::Loaded {
            totals: self.totals(summary),
            steps: taken,
        })
    }

    /// The next Load may find data with other workers, through the keeper at the other end of a socket.
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
            // A daemon that is gone does not hear it; the next one asks.
            self.told_missed = self.daemon.send(&missed, &[]).is_ok();
        }
    }

    /// How far the data is that comes while the program runs.
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
