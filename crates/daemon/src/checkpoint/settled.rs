//! What a stop has waited for, and what took how long.

use std::time::{Duration, Instant};

use fermata_control::user::Waited;
use fermata_control::worker::Step;

use crate::agent::Stopped;

/// A device that has nothing to do and gets nothing.
pub(crate) struct Settled {
    /// When it got something for the last time.
    pub since: Instant,
    /// What it was waited for, if that took long.
    pub waited: Option<Waited>,
}

/// The devices of several processes, all of which have nothing to do: the first that got nothing any more stands longest.
pub(super) fn together(all: Vec<Settled>) -> Settled {
    let since = all.iter().map(|it| it.since).min();
    let waited = all.into_iter().filter_map(|it| it.waited);
    Settled {
        since: since.unwrap_or_else(Instant::now),
        waited: waited.max_by(|a, b| a.seconds.total_cmp(&b.seconds)),
    }
}

/// What a program took to stop: its device first, while it ran.
pub(super) fn parts_of(settling: Duration, stopped: Stopped) -> [Step; 3] {
    let [settling, parking, whole] =
        [settling, stopped.parking, stopped.whole].map(|it| it.as_secs_f64());
    let step = |name: &str, start, seconds| Step {
        name: name.to_owned(),
        start,
        seconds,
        bytes: 0,
    };
    [
        step("launches", 0.0, settling),
        step("threads", settling, parking),
        step("calls", settling + parking, whole - parking),
    ]
}
