//! From an image to a session that can run.
//!
//! ```text
//!  read and check ─► does this host suit? ─► objects, in the order they depend on each other ─► content
//!                                                                    eager: all ────────────────┤
//!                                            behind the program: what cannot be late, the rest ─┘ by a loader
//! ```
//! Nothing is made before everything has been checked that can be.

mod arrived;
mod blocks;
mod check;
mod content;
mod late;
mod lessons;
mod loader;
mod objects;
mod order;
mod profile;
mod schedule;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use fermata_store::Store;
use parking_lot::Mutex;

use crate::{EngineError, Gate, Live, Progress, Site, Summary, files};
use arrived::Arrived;
use blocks::Blocks;
use late::Late;
use lessons::Lessons;
use loader::Loader;
use schedule::Schedule;

pub use loader::{Background, Standing};
pub use order::Order;
pub use profile::Profile;
pub use schedule::Stand;

/// How an image is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// All data is there when the load ends.
    Eager,
    /// Data comes while the program runs, as far as that is possible, in this order.
    Behind(Order),
}

/// A session that can run.
pub struct Loaded {
    /// The session.
    pub site: Site,
    /// What it holds.
    pub summary: Summary,
    /// Data that is still coming, and the gate that the program must be served behind.
    pub behind: Option<(Background, Box<dyn Gate>)>,
}

/// Rebuilds the session in `image`, whose content is in `store`, in a process that has served nobody.
///
/// # Errors
/// [`EngineError`]; the process is then good for nothing but to end.
pub fn load(
    live: Live,
    store: &Store,
    image: &Path,
    pace: Pace,
    progress: Progress<'_>,
) -> Result<Loaded, EngineError> {
    let start = Instant::now();
    let (session, table) = files::load(image)?;
    check::table(&session, &table)?;
    check::host(&session, &live.driver)?;
    let mut site = Site { session, live };
    let mut blocks = Blocks::default();
    let late = matches!(pace, Pace::Behind(_));
    objects::rebuild(&mut site, late.then_some(&mut blocks))?;
    let chunks = content::fill(&mut site, store, &table, &mut blocks, progress)?;
    let behind = match pace {
        Pace::Behind(order) if !blocks.is_empty() => {
            Some(begin(&mut site, store, image, blocks, order)?)
        }
        _ => None,
    };
    let summary = Summary {
        chunks,
        seconds: start.elapsed().as_secs_f64(),
        ..Summary::of(&site.session)
    };
    Ok(Loaded {
        site,
        summary,
        behind,
    })
}

/// Starts bringing late blocks.
fn begin(
    site: &mut Site,
    store: &Store,
    image: &Path,
    blocks: Blocks,
    order: Order,
) -> Result<(Background, Box<dyn Gate>), EngineError> {
    let live = &mut site.live;
    live.forget_current();
    live.adopt_staging();
    let profile = Profile::load(image);
    let pieces: Vec<usize> = blocks.all().iter().map(|it| it.stored.len()).collect();
    let schedule = Arc::new(Schedule::new(&pieces, &order.of(&blocks, &profile)));
    let blocks = Arc::new(blocks);
    let lessons = Arc::new(Lessons::new(image, profile));
    let devices: std::collections::BTreeSet<u32> =
        blocks.all().iter().map(|it| it.device).collect();
    let context = |device: &u32| Some((*device, loader::context_on(live, *device)?));
    let contexts = devices.iter().filter_map(context).collect();
    let bytes = blocks.all().iter().map(|it| it.len).sum();
    let able = live.device_hashes && live.tier.is_some();
    let arrived = Arc::new(Arrived::new(&live.driver, &contexts, able, bytes));
    let loader = Loader {
        driver: Arc::clone(&live.driver),
        contexts,
        arrived: Arc::clone(&arrived),
        all_contexts: live.contexts.values().map(|it| it.handle).collect(),
        reachers: devices
            .iter()
            .map(|device| (*device, live.space.reachers(*device)))
            .collect(),
        pool: Mutex::new(live.staging.clone()),
        reader: store.reader()?,
        tier: live.tier.clone(),
        blocks: Arc::clone(&blocks),
        schedule: Arc::clone(&schedule),
        lessons: Arc::clone(&lessons),
    };
    let background = loader.start()?;
    let gate = Late::new(schedule, blocks, lessons, arrived);
    Ok((background, Box::new(gate)))
}
