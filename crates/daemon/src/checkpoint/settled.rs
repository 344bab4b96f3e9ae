//! What a stop has waited for, and what took how long.

use std::time::{Duration, Instant};

use fermata_control::user::Waited;
use fermata_control::worker::Step;

use crate::agent::Stopped;

/// Devices that have nothing to do and get nothing.
pub(crate) struct Settled {
    /// When they got something for the last time.
    pub since: Instant,
    /// What they were waited for, if that took long.
    pub waited: Option<Waited>,
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
