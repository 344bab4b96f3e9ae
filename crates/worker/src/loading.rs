//! Loading an image: the conversation's part of a restore, whole or behind the program.

use std::path::Path;

use fermata_control::worker::{self as control, FailureKind, FromWorker, Pace, Restoring};
use fermata_engine::restore::{self, Loaded, Order, Stand};
use fermata_store::Store;

use crate::conversation::{Reporter, Worker, serving_thread};
use crate::errors::Faults;
use crate::failure::{failure, from_engine};
use crate::layout::RingPlace;

impl Worker {
    /// Makes the session in `image`; what comes later is brought by threads of its own.
    pub(crate) fn load(
        &mut self,
        store: &Path,
        image: &Path,
        pace: Pace,
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
        let place = RingPlace::take().map_err(|error| {
            failure(
                FailureKind::User,
                format!("cannot keep a place for the program's ring: {error}"),
                "",
            )
        })?;
        let loaded = {
            let report = Reporter::new(&self.daemon);
            let run = || {
                let store = Store::open(store, false)?;
                restore::load(
                    site.live,
                    &store,
                    image,
                    engine_pace(pace),
                    &|done, total| report.tell(done, total),
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
        } = loaded.map_err(|error| from_engine(&error))?;
        if let Some((background, gate)) = behind {
            self.background = Some(background);
            self.gate = Some(gate);
        }
        self.place = Some(place);
        self.faults = Faults::restored(&site.session.deferred);
        site.live.forget_current();
        self.site = Some(site);
        Ok(FromWorker::Loaded(self.totals(summary)))
    }

    /// How far the data is that comes while the program runs.
    pub(crate) fn restoring(&self) -> FromWorker {
        let Some(background) = &self.background else {
            return FromWorker::Restoring(Restoring {
                done: 0,
                total: 0,
                seconds: 0.0,
                stand: control::Stand::Complete,
            });
        };
        let standing = background.standing();
        let stand = match standing.stand {
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
            stand,
        })
    }
}

fn engine_pace(pace: Pace) -> restore::Pace {
    match pace {
        Pace::Eager => restore::Pace::Eager,
        Pace::Behind(order) => restore::Pace::Behind(match order {
            control::Order::Profile => Order::Profile,
            control::Order::Default => Order::Default,
            control::Order::Worst => Order::Worst,
        }),
    }
}
