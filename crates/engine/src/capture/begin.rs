//! The beginning of a capture: what is copied, or hashed, before the program goes on.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use fermata_store::moments;

use super::map::ChunkMap;
use super::ready::Prepared;
use super::reference::Reference;
use super::run::{Capture, Finish, launch};
use super::stopped::{all_on_devices, take};
use crate::files::Records;
use crate::live::Exposed;
use crate::protocol::pieces;
use crate::protocol::stop::settle;
use crate::steps::Steps;
use crate::{EngineError, Gate, Site, Summary, variables};

/// Begins a capture of the session as it is: nothing may be running, and every operation from now on has to
/// pass the gate. The image will be in `image`, an existing folder.
///
/// # Errors
/// The session is as before.
pub fn begin(
    site: &mut Site,
    mut prepared: Prepared,
    image: &Path,
    check: bool,
) -> Result<(Capture, Box<dyn Gate>), EngineError> {
    let start = Instant::now();
    prepared.hand_over(&mut site.live);
    let mut steps = Steps::since(start);
    let hurry = prepared.sink.hurry();
    hurry.store(true, Ordering::Release);
    let begun = begin_with(site, &mut prepared, image, check, &mut steps);
    hurry.store(false, Ordering::Release);
    match begun {
        Ok((map, exposed, records, reference)) => {
            let finish = Finish {
                image: image.to_owned(),
                records,
                summary: Summary::of(&site.session),
                start,
                reference,
            };
            let (mut capture, gate) = launch(site, prepared, map, exposed, Some(finish))?;
            capture.steps = steps.list();
            Ok((capture, gate))
        }
        Err(error) => {
            site.live.forget_current();
            Err(error)
        }
    }
}

type Begun = (ChunkMap, Exposed, Records, Option<Reference>);

fn begin_with(
    site: &mut Site,
    prepared: &mut Prepared,
    image: &Path,
    check: bool,
    steps: &mut Steps,
) -> Result<Begun, EngineError> {
    moments::pass("stopped");
    settle(&mut site.live)?;
    variables::discover(site)?;
    site.live.check_shared(&site.session)?;
    let exposed = site.live.expose(&site.session)?;
    let begun = (|| {
        let plan = pieces(&site.session, &exposed.addresses)?;
        // The session has gone on since it was made ready for.
        prepared.sink.renew(&mut site.live, &plan)?;
        let reference = check
            .then(|| Reference::take(&mut site.live, &plan))
            .transpose()?;
        let map = take(site, prepared, &plan, steps)?;
        let records = Records::encode(image, &site.session)?;
        Ok((map, records, reference))
    })();
    site.live.forget_current();
    match begun {
        Ok((map, records, reference)) => Ok((map, exposed, records, reference)),
        Err(error) => {
            // The first failure is the one to report.
            let _ = site.live.conceal(exposed);
            Err(error)
        }
    }
}

/// Begins to copy ahead of a stop, while the program runs. Called by the thread that serves it.
///
/// # Errors
/// The session is as before.
pub fn begin_ahead(
    site: &mut Site,
    mut prepared: Prepared,
) -> Result<(Capture, Box<dyn Gate>), EngineError> {
    prepared.hand_over(&mut site.live);
    let exposed = site.live.expose(&site.session)?;
    let plan = pieces(&site.session, &exposed.addresses).and_then(|plan| {
        prepared.sink.renew(&mut site.live, &plan)?;
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
    let map = all_on_devices(&site.session, &plan);
    launch(site, prepared, map, exposed, None)
}
