//! The result of waiting for the devices before a stop, and the times of the stop's steps.

use std::time::{Duration, Instant};

use fermata_control::user::Waited;
use fermata_control::worker::Step;

use crate::agent::Stopped;

/// The devices are idle, and all streams are held.
pub(crate) struct Settled {
    /// When a device was last given work.
    pub since: Instant,
    /// The work that the stop waited for, if that took long.
    pub waited: Option<Waited>,
}

/// The steps of stopping a program, with their times; the first, waiting for its devices, is done while it runs.
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
