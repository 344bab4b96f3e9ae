//! Begins a capture; its parts run in this order:
//!
//! ```text
//!  ready ─► stopped ─► run ─► (a thread) conductor ─► outcome
//! ```

use std::path::Path;
use std::time::Instant;

use super::map::ChunkMap;
use super::outcome::Finish;
use super::ready::Prepared;
use super::run::{Capture, launch};
use super::stopped::{Stopped, take};
use crate::protocol::pieces;
use crate::{EngineError, Gate, Site};

/// Begins a capture of the session as it is now. The devices must be idle, and every operation from now on has to pass
/// the gate. The image is written to `image`, an existing folder.
///
/// # Errors
/// A driver or store error; the session is as before.
pub fn begin(
    site: &mut Site,
    prepared: Prepared,
    image: &Path,
    check: bool,
) -> Result<(Capture, Box<dyn Gate>), EngineError> {
    let start = Instant::now();
    let mut tools = prepared.hand_over(&mut site.live);
    let taken = take(site, &mut tools, (image, start), check);
    let stopped = taken.inspect_err(|_| site.live.forget_current())?;
    let Stopped {
        map,
        exposed,
        records,
        reference,
        summary,
        steps,
    } = stopped;
    let finish = Finish {
        image: image.to_owned(),
        records,
        summary,
        start,
        reference,
    };
    launch(site, tools, (map, exposed), steps, Some(finish))
}

/// Begins to copy ahead of a stop, while the program runs. To be called by the thread that serves the program.
///
/// # Errors
/// A driver or store error; the session is as before.
pub fn begin_ahead(
    site: &mut Site,
    prepared: Prepared,
) -> Result<(Capture, Box<dyn Gate>), EngineError> {
    let mut tools = prepared.hand_over(&mut site.live);
    let exposed = site.live.expose(&site.session)?;
    let plan = pieces(&site.session, &exposed.addresses).and_then(|plan| {
        tools.sink.renew(&mut site.live, &plan)?;
        Ok(plan)
    });
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => {
            // The first failure is the one to report.
            let _ = site.live.conceal(exposed);
            return Err(error);
        }
    };
    let map = ChunkMap::unknown(&site.session, &plan);
    launch(site, tools, (map, exposed), Vec::new(), None)
}
