//! Taking an image behind a running program.
//!
//! ```text
//!            program runs          program stands still            program runs, watched
//!  snapshot  prepare ────────────► begin: all copied on the device ► drained, hashed, written
//!  cow       prepare ────────────► begin: digests of all           ► copied; what is written, aside first
//!  recopy    prepare, ahead: all copied, again what was written    ► stop: digests, only what differs
//! ```
//! (PhoenixOS, sections 4.2 and 4.3.) The image of `snapshot` and `cow` is the session as `begin` found it,
//! that of `recopy` as the stop found it. What access sets do not foresee is found by content: `cow` knows
//! the digest of every piece at the consistent point and hashes every piece that it copies, and `recopy`
//! copies whatever has another digest in the stop than what it has copied ahead. A capture that has been
//! overtaken by an unforeseen write gives no image: [`Outcome::Overtaken`].

mod checker;
mod conductor;
mod map;
mod pool;
mod ready;
mod reference;
mod shared;
mod timeline;
mod vouch;
mod watch;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fermata_abi::op::Handle;
use fermata_device::StreamHandle;
use fermata_state::Session;
use fermata_store::moments;

use self::checker::Checker;
use self::conductor::Conductor;
use self::map::{ChunkMap, Mark, device_of};
pub use self::pool::SetAside;
pub use self::ready::{Prepared, Sketch, Wish, prepare, sketch};
use self::reference::Reference;
use self::shared::Shared;
pub use self::timeline::{Span, Timeline};
pub use self::vouch::{Miss, Validate, Vouched};
use self::watch::{Watch, copy_aside};
use crate::digest::{self, Digest};
use crate::files::Records;
use crate::live::Exposed;
use crate::protocol::stop::{publish, settle};
use crate::protocol::{Piece, Source, pieces};
use crate::sink::{Order, Sink};
use crate::steps::{Step, Steps};
use crate::{EngineError, Gate, Site, Summary, variables};

/// Variables of a device up to this many bytes are read while the program stands still, for kernels reach
/// them without naming them.
const VARIABLES: u64 = 64 << 20;

/// Which moment the image shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The consistent point at the start.
    Start,
    /// A stop that comes later.
    End,
}

/// How a capture goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Copied on the device at once.
    Snapshot,
    /// Copied aside before it is written.
    Cow,
    /// Copied ahead, and what was written meanwhile again.
    Recopy,
}

/// What a capture has cost the program.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stall {
    /// Operations that had to wait.
    pub waits: u64,
    /// How long they waited, in all.
    pub waited: Duration,
    /// Time spent on putting copies before operations.
    pub issuing: Duration,
    /// Bytes copied aside.
    pub isolated_bytes: u64,
    /// The most bytes that lay aside at once.
    pub pool_bytes: u64,
    /// Operations that may touch more than could be foreseen.
    pub incomplete: u64,
    /// How long the copying took; what has been copied is hashed and checked behind it.
    pub copying: Duration,
    /// When what was done, from the begin of the copying.
    pub timeline: Timeline,
}

/// What an image is made of.
pub struct Captured {
    /// Totals.
    pub summary: Summary,
    /// What it cost.
    pub stall: Stall,
    /// What vouches for it.
    pub vouched: Vouched,
}

/// How a capture has ended.
pub enum Outcome {
    /// The image is complete and durable.
    Complete(Captured),
    /// Everything has been copied ahead; the sink takes the rest in the stop.
    Ahead(Ahead),
    /// These buffers were written before they were copied, and nobody had foreseen it, or it cannot be vouched
    /// that none was. What was copied is not lost.
    Overtaken(Ahead, BTreeSet<u64>),
}

/// What has been copied before a stop, which compares all of it.
pub struct Ahead {
    pub(crate) sink: Sink,
    /// What it has cost.
    pub stall: Stall,
    /// What vouches for the image that comes of it.
    pub vouched: Vouched,
    /// Whether the copying was to be an image and was overtaken.
    overtaken: bool,
    /// Buffers that were written by what no instrumented kernel has named.
    unexplained: BTreeSet<u64>,
    /// Kernels that may have.
    suspects: Vec<Handle>,
}

/// A capture under way.
pub struct Capture {
    shared: Arc<Shared>,
    thread: JoinHandle<Result<Outcome, EngineError>>,
    way: Way,
    total: u64,
    steps: Vec<Step>,
}

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

fn device_bytes(plan: &[Piece]) -> u64 {
    let pieces = plan.iter().filter(|piece| is_device(piece));
    pieces.map(|piece| piece.len as u64).sum()
}

fn is_device(piece: &Piece) -> bool {
    matches!(piece.source, Source::Device { .. })
}

/// A map of everything on devices, of which nothing is known.
fn all_on_devices(session: &Session, plan: &[Piece]) -> ChunkMap {
    let watched = plan.iter().filter(|piece| is_device(piece));
    let watched: Vec<_> = watched
        .map(|piece| (*piece, Digest::Unknown, true))
        .collect();
    ChunkMap::new(session, &watched)
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
        let map = match prepared.way {
            Way::Snapshot => aside_all(site, prepared, &plan, steps)?,
            Way::Cow | Way::Recopy => None,
        };
        let map = match map {
            Some(map) => map,
            None => {
                // A snapshot that has outgrown its pool since goes on as this.
                prepared.way = Way::Cow;
                known_all(site, prepared, &plan, steps)?
            }
        };
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

/// Reads host memory and arrays, which no gate watches.
fn take_unwatched(site: &mut Site, sink: &mut Sink, plan: &[Piece]) -> Result<(), EngineError> {
    let of = |wanted: fn(&Source) -> bool| -> Vec<Piece> {
        plan.iter()
            .copied()
            .filter(|piece| wanted(&piece.source))
            .collect()
    };
    let hosts = of(|source| matches!(source, Source::Host { .. }));
    sink.take_host(&site.live.hosts, &hosts, &|_| {})?;
    let arrays = of(|source| matches!(source, Source::Array { .. }));
    let mut orders = arrays.into_iter().map(|piece| Order {
        piece,
        digest: Digest::Unknown,
    });
    sink.take(&mut orders, &mut |_| {})
}

/// Copies everything on the device to the pools; `None` if it does not fit any more.
fn aside_all(
    site: &mut Site,
    prepared: &mut Prepared,
    plan: &[Piece],
    steps: &mut Steps,
) -> Result<Option<ChunkMap>, EngineError> {
    let from = Instant::now();
    let mut map = all_on_devices(&site.session, plan);
    let mut aside: BTreeMap<u32, Vec<(usize, u64)>> = BTreeMap::new();
    for index in map.indices() {
        let piece = *map.piece(index);
        let device = device_of(&piece);
        let Some(slot) = prepared.slot(device, piece.len as u64) else {
            // All of the pool is for what is about to be written.
            prepared.put_back(&map, &aside);
            return Ok(None);
        };
        aside.entry(device).or_default().push((index, slot));
    }
    let failed = || EngineError::driver("copy the session on its device");
    for (device, aside) in &aside {
        site.live.enter_device(*device).map_err(failed())?;
        copy_aside(&site.live.driver, &map, aside, StreamHandle::LEGACY).map_err(failed())?;
    }
    // Host memory is read meanwhile.
    take_unwatched(site, &mut prepared.sink, plan)?;
    for (device, aside) in aside {
        site.live.forget_current();
        site.live
            .enter_device(device)
            .and_then(|_| site.live.driver.synchronize_context())
            .map_err(failed())?;
        for (index, slot) in aside {
            map.set_isolated(index, slot, PASSED);
        }
    }
    steps.add("aside", from, device_bytes(plan));
    Ok(Some(map))
}

/// The mark of copies that are complete.
const PASSED: Mark = Mark::MAX;

/// Finds what everything is, and takes what cannot be watched.
fn known_all(
    site: &mut Site,
    prepared: &mut Prepared,
    plan: &[Piece],
    steps: &mut Steps,
) -> Result<ChunkMap, EngineError> {
    let from = Instant::now();
    let by_content = prepared.vouched.by.by_content();
    let digests = match by_content {
        true => digest::on_any_device(&mut site.live, plan)?,
        false => vec![Digest::Unknown; plan.len()],
    };
    if by_content {
        steps.add("hash", from, device_bytes(plan));
    }
    let from = Instant::now();
    take_unwatched(site, &mut prepared.sink, plan)?;
    let of_variables = variable_buffers(site);
    let small = plan
        .iter()
        .filter(|piece| of_variables.contains(&piece.buffer))
        .map(|piece| piece.len as u64)
        .sum::<u64>()
        <= VARIABLES;
    let mut now = Vec::new();
    let mut watched = Vec::new();
    for (piece, digest) in plan
        .iter()
        .zip(digests)
        .filter(|(piece, _)| is_device(piece))
    {
        let order = Order {
            piece: *piece,
            digest,
        };
        let variable = small && of_variables.contains(&piece.buffer);
        // Other processes write it, and no gate of this worker sees them.
        let shared = site.session.sharing.shared.contains_key(&piece.buffer);
        // What no device can hash could not be validated by content later.
        let unknown = by_content && digest == Digest::Unknown;
        let at_once = variable || shared || unknown || prepared.sink.has(&order);
        if at_once {
            now.push(order);
        }
        watched.push((*piece, digest, !at_once));
    }
    prepared.sink.take(&mut now.into_iter(), &mut |_| {})?;
    steps.add("copy", from, 0);
    Ok(ChunkMap::new(&site.session, &watched))
}

fn variable_buffers(site: &Site) -> HashSet<u64> {
    let modules = site.session.modules.iter();
    modules
        .flat_map(|(_, module)| module.variables.values().map(|it| it.buffer))
        .collect()
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

/// What the thread needs to make an image of what it has copied.
struct Finish {
    image: PathBuf,
    records: Records,
    summary: Summary,
    start: Instant,
    reference: Option<Reference>,
}

/// Starts the thread that copies. An image of the start has something to finish with; that of the end is
/// finished by the stop.
fn launch(
    site: &mut Site,
    prepared: Prepared,
    map: ChunkMap,
    exposed: Exposed,
    finish: Option<Finish>,
) -> Result<(Capture, Box<dyn Gate>), EngineError> {
    let Prepared {
        way,
        vouched,
        sink,
        pools,
        ..
    } = prepared;
    let purpose = match finish {
        Some(_) => Purpose::Start,
        None => Purpose::End,
    };
    let shared = Arc::new(Shared::new(purpose, map, pools, vouched, sink.hurry()));
    let (total, validate) = {
        let inner = shared.inner.lock();
        (inner.map.left().bytes, inner.vouched.by)
    };
    let predictor = site.live.predictor.take().unwrap_or_default();
    let checker = validate.by_instrumenting().then(|| Checker::new(site));
    let mut watch = Watch::new(Arc::clone(&shared), exposed, predictor, checker);
    let conductor = Conductor {
        shared: Arc::clone(&shared),
        driver: Arc::clone(&site.live.driver),
        sink,
        hashers: site.live.hashers.clone(),
    };
    let own = Arc::clone(&shared);
    let thread = std::thread::Builder::new()
        .name("capture".to_owned())
        .spawn(move || {
            let begun = Instant::now();
            let sink = conductor.run();
            own.inner.lock().stall.copying = begun.elapsed();
            end(&own, sink, finish)
        });
    match thread {
        Ok(thread) => {
            let capture = Capture {
                shared,
                thread,
                way,
                total,
                steps: Vec::new(),
            };
            Ok((capture, Box::new(watch)))
        }
        Err(error) => {
            shared.end();
            watch.close(site);
            Err(EngineError::Internal(format!(
                "cannot start the thread that copies: {error}"
            )))
        }
    }
}

/// What becomes of a sink whose pieces have been read.
fn end(shared: &Shared, mut sink: Sink, finish: Option<Finish>) -> Result<Outcome, EngineError> {
    let (failure, yielded, stall, vouched, launched) = {
        let mut inner = shared.inner.lock();
        let launched = std::mem::take(&mut inner.launched);
        inner.count_wait();
        let mut vouched = std::mem::take(&mut inner.vouched);
        if let Some(why) = &inner.yielded {
            vouched.note.clone_from(why);
        }
        let yielded = inner.yielded.is_some();
        let failure = inner.failure.take();
        let stall = std::mem::take(&mut inner.stall);
        (failure, yielded, stall, vouched, launched)
    };
    let ahead = |sink, overtaken: Option<&BTreeSet<u64>>| {
        let named: BTreeSet<u64> = vouched.misses.iter().map(|miss| miss.buffer).collect();
        let buffers = overtaken.into_iter().flatten().copied();
        Ahead {
            sink,
            stall: stall.clone(),
            overtaken: overtaken.is_some(),
            unexplained: buffers.filter(|buffer| !named.contains(buffer)).collect(),
            suspects: vouch::suspects(launched.iter().map(|(function, open)| (*function, *open))),
            vouched: vouched.clone().compared(),
        }
    };
    let Some(finish) = finish else {
        // Whatever has ended the copying ahead, the stop takes the rest, unless nothing can be written. What
        // is written by then is not copied again.
        if let Err(error) = sink.differing() {
            // The first failure is the one to report.
            return Err(failure.unwrap_or(error));
        }
        return Ok(Outcome::Ahead(ahead(sink, None)));
    };
    if let Some(failure) = failure {
        return Err(failure);
    }
    let wrong = sink.differing()?;
    let mut buffers: BTreeSet<u64> = wrong.iter().map(|piece| piece.buffer).collect();
    if vouched.fails() {
        let missed = vouched.misses.iter().map(|miss| miss.buffer);
        buffers.extend(missed.filter(|buffer| *buffer != 0));
    }
    if yielded || vouched.fails() || !buffers.is_empty() {
        return Ok(Outcome::Overtaken(ahead(sink, Some(&buffers)), buffers));
    }
    sink.take_images(finish.records.images());
    let kept = sink.close()?.finish()?;
    if let Some(reference) = &finish.reference {
        reference.compare(&kept.chunks)?;
    }
    let summary = publish(
        &finish.image,
        &finish.records,
        &kept,
        finish.summary,
        finish.start,
    )?;
    Ok(Outcome::Complete(Captured {
        summary,
        stall,
        vouched,
    }))
}

impl Capture {
    /// How it goes: a snapshot that no longer fits goes as `cow`.
    pub fn way(&self) -> Way {
        self.way
    }

    /// Bytes copied and bytes in all.
    pub fn progress(&self) -> (u64, u64) {
        let moved = self.shared.inner.lock().moved;
        (moved, self.total.max(moved))
    }

    /// What the stop at its begin has spent its time on.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Whether it has ended, one way or the other.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends it early: the program goes on, and there is no image. Copying ahead ends without harm.
    pub fn give_up(&self, why: &str) {
        self.shared.give_up(EngineError::Internal(why.to_owned()));
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// There is no image.
    pub fn join(self) -> Result<Outcome, EngineError> {
        let failed = || EngineError::Internal("the thread that copies has failed".to_owned());
        self.thread.join().map_err(|_| failed())?
    }
}
