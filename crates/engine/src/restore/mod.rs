//! From an image to a session that can run.
//!
//! ```text
//!  read and check ─► does this host suit? ─► objects, in the order they depend on each other
//!  └───── may be done ahead (`preload`): those without memory of the program ─────┤
//!                      ┌──────────────────────────────────────────────────────────┘
//!                      ├─► what cannot be late: now
//!                      └─► the rest, by a loader ─┬─ eager: waited for
//!                                                 └─ behind the program: it passes a gate
//! ```
//! What other workers have of the same data is mapped instead of loaded (`common`). Nothing is made before everything has been checked that can be.

mod blocks;
mod common;
mod gate;
mod learning;
mod loading;
mod preload;
mod rebuild;
mod times;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use fermata_store::image::chunks_beside;
use fermata_store::{ChunkId, ChunkReader, Store, Taken, is_memory, moments};
use fermata_terms::{Pace, PrefetchOrder};
use parking_lot::Mutex;

use crate::access::Predictor;
use crate::profile::Profile;
use crate::steps::Steps;
use crate::{EngineError, Gate, Live, Progress, Site, Summary, files};
use blocks::Blocks;
use common::claims::Claims;
use fermata_terms::Step;
use gate::on_demand::OnDemand;
use learning::checked_launches::CheckedLaunches;
use learning::recorder::Recorder;
use loading::content;
use loading::disk_turns::DiskTurns;
use loading::limits::Limits;
use loading::loader::{self, Loader};
use loading::prefetch_order::in_order;
use loading::schedule::Schedule;
use loading::variables::{self, Filled};
use loading::verifier::Verifier;
use preload::Known;
use rebuild::{objects, preconditions};
use times::Times;

pub use crate::files::ImageFiles;
pub use common::guard::{Guard, Missed};
pub use common::keeper::{Claim, CommonKey, Keeper, Told};
pub use loading::background::{Background, Standing};
pub use loading::schedule::Stand;
pub use preload::Preloaded;

/// Chunks that several processes of an image name.
type Common = Arc<HashSet<ChunkId>>;

/// A session that can run.
pub struct Loaded {
    /// The session.
    pub site: Site,
    /// What it holds.
    pub summary: Summary,
    /// Data that is still coming.
    pub behind: Option<Background>,
    /// What the program must be served behind.
    pub gate: Option<Box<dyn Gate>>,
    /// What it must be served behind as long as it has memory in common with other sessions.
    pub guard: Option<Guard>,
    /// What the time was spent on.
    pub steps: Vec<Step>,
}

/// Does ahead what a restore of `image` begins with, in a process that has served no program: reads what is there, and makes
/// contexts, modules with the content of their variables, kernels, streams and events. `made` is called then. Only [`load`] of the same image may follow.
///
/// # Errors
/// [`EngineError`]; the process is then good for nothing but to end.
pub fn preload(
    live: &mut Live,
    store: &Store,
    image: ImageFiles<'_>,
    made: &mut dyn FnMut(&Live),
) -> Result<Preloaded, EngineError> {
    let reader = reader(live, store, &in_common(store, image.folder))?;
    let mut steps = Steps::since(Instant::now());
    let (read, _) = begin_with(live, &reader, image, &mut steps)?;
    objects::bring_code(live);
    let filled = variables::fill(&read.session, live, &reader, &read.table);
    live.forget_current();
    let filled = filled?;
    made(live);
    Ok(Preloaded::new(image, read, filled, live))
}

/// Rebuilds the session in `image`, whose content is in `store`, in a process that has served no program, and may have
/// `preloaded` the image. `made` is called when its objects are there, and other work on the devices no longer delays the program. With `checks` kernels
/// check themselves while data comes; in an eager load those do for a while that an earlier one has caught.
///
/// # Errors
/// [`EngineError`]; the process is then good for nothing but to end.
pub fn load(
    mut live: Live,
    preloaded: Option<Preloaded>,
    store: &Store,
    image: ImageFiles<'_>,
    (pace, checks): (Pace, bool),
    progress: Progress<'_>,
    made: &mut dyn FnMut(&Live),
) -> Result<Loaded, EngineError> {
    let start = Instant::now();
    let mut steps = Steps::since(start);
    let quiet = live.tier.as_ref().map(|tier| tier.quiet());
    let common = in_common(store, image.folder);
    let reader = reader(&live, store, &common)?;
    let (known, from) = match preloaded {
        Some(preloaded) => {
            let known = preloaded.of(image)?;
            steps.add("records", start, 0);
            (known, Instant::now())
        }
        None => {
            let (read, from) = begin_with(&mut live, &reader, image, &mut steps)?;
            let known = Known {
                read,
                kernels: Predictor::default(),
                filled: Filled::default(),
            };
            (known, from)
        }
    };
    let Known {
        read,
        kernels,
        filled,
    } = known;
    let files::Read {
        session,
        table,
        image_chunks,
    } = read;
    let mut site = Site { session, live };
    let mut blocks = Blocks::default();
    objects::with_memory(&mut site, &mut blocks, &mut steps)?;
    steps.add("objects", from, 0);
    moments::pass("objects");
    // A program that is about to run waits for what is made ready now; else the data goes first, and so does the
    // memory for it, which waits for locks that making ready holds for long.
    if pace != Pace::Eager {
        made(&site.live);
    }
    let from = Instant::now();
    let chunks = content::fill(
        &mut site,
        &reader,
        &table,
        (&mut blocks, &filled),
        (progress, &mut steps),
    )?;
    let taken = reader.taken();
    drop(reader);
    steps.add("now", from, 0);
    let mut behind = match blocks.is_empty() {
        true => None,
        false => Some(begin(
            &mut site,
            (store, &common),
            image.folder,
            (blocks, kernels),
            (pace, checks),
        )?),
    };
    if let (Pace::Certain | Pace::Foreseen, Some((background, ..))) = (pace, &behind) {
        background.made()?;
    }
    let mut learner: Option<Box<dyn Gate>> = None;
    let mut sources = vec![taken];
    if pace == Pace::Eager {
        if let Some((background, ..)) = &behind {
            background.schedule.await_all_made();
        }
        made(&site.live);
        if let Some((background, mut late, _)) = behind.take() {
            background.complete(progress, &mut steps)?;
            sources.push(Arc::clone(&background.taken));
            late.close(&mut site);
            if let Some(learn) = late.learner().filter(|_| checks) {
                learner = Some(Box::new(learn));
            }
            site.live.forget_current();
        }
    }
    let (behind, gate, guard) = match behind {
        Some((background, late, guard)) => {
            let gate: Box<dyn Gate> = Box::new(late);
            (Some(background), Some(gate), guard)
        }
        None => (None, learner, None),
    };
    let sources: Vec<&Taken> = sources.iter().map(|it| &**it).collect();
    steps.sources(&sources);
    drop(quiet);
    let summary = Summary {
        chunks: chunks + image_chunks,
        seconds: start.elapsed().as_secs_f64(),
        ..Summary::of(&site.session)
    };
    Ok(Loaded {
        site,
        summary,
        behind,
        gate,
        guard,
        steps: steps.list(),
    })
}

/// Reads the image's records, and makes what takes no memory of the program, since when the answer tells.
fn begin_with(
    live: &mut Live,
    reader: &ChunkReader,
    image: ImageFiles<'_>,
    steps: &mut Steps,
) -> Result<(files::Read, Instant), EngineError> {
    let from = Instant::now();
    let mut read = files::load(image, reader)?;
    preconditions::table(&read.session, &read.table)?;
    preconditions::host(&read.session, &live.driver)?;
    steps.add("records", from, 0);
    let from = Instant::now();
    let _quiet = live.tier.as_ref().map(|tier| tier.quiet());
    objects::without_memory(&mut read.session, live, steps)?;
    Ok((read, from))
}

/// What other processes of the image in `folder` read, too, which matters where a disk has to bring it.
fn in_common(store: &Store, folder: &Path) -> Common {
    match is_memory(store.dir()) {
        true => Common::default(),
        false => Arc::new(chunks_beside(folder)),
    }
}

/// Reads from copies of the store's packs, where there are some, and through the page cache what is in common.
fn reader(live: &Live, store: &Store, common: &Common) -> Result<ChunkReader, EngineError> {
    let reader = store.reader()?.through_cache(Arc::clone(common));
    Ok(match &live.copies {
        Some(folder) => reader.with_copies(folder),
        None => reader,
    })
}

/// Starts bringing late blocks.
fn begin(
    site: &mut Site,
    (store, common): (&Store, &Common),
    image: &Path,
    (blocks, kernels): (Blocks, Predictor),
    (pace, checks): (Pace, bool),
) -> Result<(Background, OnDemand, Option<Guard>), EngineError> {
    let live = &mut site.live;
    live.forget_current();
    live.adopt_staging();
    let profile = Profile::load(image);
    let pieces: Vec<usize> = blocks.all().iter().map(|it| it.stored.len()).collect();
    let order = match pace {
        Pace::Eager | Pace::Certain | Pace::Foreseen => PrefetchOrder::Default,
        Pace::Behind(order) => order,
    };
    let order = in_order(order, &blocks, &profile);
    let reader = reader(live, store, common)?;
    let mut stored = blocks.all().iter().flat_map(|it| &it.stored);
    let in_tier = live.tier.is_some() && stored.any(|(_, id)| reader.is_near(id));
    let flow = Limits::of(pace != Pace::Eager, in_tier);
    let schedule = Arc::new(Schedule::new(&pieces, &order, flow));
    let blocks = Arc::new(blocks);
    // Only a program that can start again from its image has anything in common with others.
    let keeper = live.keeper.take();
    let keeper = keeper.filter(|_| matches!(pace, Pace::Behind(_)));
    let claims = keeper.and_then(|it| Claims::of(it, &live.driver, &blocks, &profile.written));
    if let Some(claims) = &claims {
        claims.begin(&schedule);
    }
    let recorder = Arc::new(Recorder::new(image, profile));
    let devices: std::collections::BTreeSet<u32> =
        blocks.all().iter().map(|it| it.device).collect();
    let context = |device: &u32| Some((*device, loader::context_on(live, *device)?));
    let contexts = devices.iter().filter_map(context).collect();
    let bytes = blocks.all().iter().map(|it| it.len).sum();
    let verifier = Arc::new(Verifier::new(
        &live.driver,
        &contexts,
        &live.hashers,
        live.device_hashes,
        bytes,
    ));
    let times = Arc::<Times>::default();
    let checks = Arc::new(CheckedLaunches::new(
        checks && pace != Pace::Eager,
        Arc::clone(&blocks),
        Arc::clone(&recorder),
        Arc::clone(&times),
    ));
    let behind = pace != Pace::Eager;
    let turns = Arc::new(DiskTurns::new(behind && reader.is_on_local_disk()));
    let loader = Loader {
        turns,
        driver: Arc::clone(&live.driver),
        contexts,
        verifier: Arc::clone(&verifier),
        all_contexts: live.contexts.values().map(|it| it.handle).collect(),
        reachers: devices
            .iter()
            .map(|device| (*device, live.space.reachers(*device)))
            .collect(),
        pool: Mutex::new(live.staging.clone()),
        reader,
        tier: live.tier.clone(),
        blocks: Arc::clone(&blocks),
        schedule: Arc::clone(&schedule),
        recorder: Arc::clone(&recorder),
        checks: Arc::clone(&checks),
        claims: claims.clone(),
        behind,
        _quiet: live.tier.as_ref().map(|tier| tier.quiet()),
        times: Arc::clone(&times),
    };
    let background = loader.start()?;
    let guard = claims.clone().map(|claims| {
        let (schedule, recorder) = (Arc::clone(&schedule), Arc::clone(&recorder));
        Guard::new(claims, &blocks, schedule, (recorder, kernels.of_texts()))
    });
    let late = OnDemand::new(
        (schedule, claims),
        blocks,
        (recorder, kernels, pace),
        checks,
        verifier,
        times,
    );
    Ok((background, late, guard))
}
