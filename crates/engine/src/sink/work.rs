//! The helper threads of a sink: they hash what has been copied, compare or name it, and write it.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fermata_device::HostEnd;
use fermata_state::{IMAGE_BUFFERS, ImageBytes};
use fermata_store::{AlignedBuf, ChunkId, PackWriter, Place, moments};
use parking_lot::{Condvar, Mutex};

use super::order::{Chunks, Order};
use super::pace::WriteRate;
use super::reservoir::Reservoir;
use super::signals::Signals;

use crate::digest::{Digest, is_zero};
use crate::live::Reach;
use crate::pipeline::{Next, Queue, STEP_LIMIT};
use crate::seal::SealKey;
use crate::{CHUNK, Elsewhere, EngineError};

/// Buffers for host memory.
const OWN_BUFFERS: usize = 16;
/// One in so many helpers keeps its priority when the others lower theirs, so that an image gets complete even if the
/// program keeps all cores busy.
const KEEPS_ITS_SHARE: usize = 8;
/// Hashing lags behind if more pieces than this wait for each helper. In debug builds always, so that tests come to it.
const LAG: u64 = if cfg!(debug_assertions) { 0 } else { 2 };
/// A piece that differs from its digest is copied this often in all.
const TRIES: u32 = 3;
/// How often to check that helpers make progress.
const STALL_LOOK: Duration = Duration::from_millis(100);

/// A piece on its way to the store.
#[derive(Clone)]
pub(super) struct Job {
    pub order: Order,
    /// If a piece is taken more than once, the highest turn counts.
    pub turn: u64,
    /// The place in a pack where it arrives, if that is decided before it is copied.
    pub place: Option<Place>,
}

/// Its bytes.
pub(super) enum Content {
    Copied(HostEnd),
    Own(OwnBuffer),
    /// In memory of the reservoir, because its staging buffer was needed, or none was free.
    Moved(OwnBuffer),
    /// The piece's part of a module image.
    Image(ImageBytes),
}

/// A buffer that the flow lends and takes back.
pub(super) type OwnBuffer = AlignedBuf;

impl Job {
    pub fn new(order: Order, turn: u64) -> Self {
        Self {
            order,
            turn,
            place: None,
        }
    }

    pub fn with(self, content: Content) -> Load {
        Load { job: self, content }
    }
}

pub(super) struct Load {
    job: Job,
    content: Content,
}

/// What is known of one place in the image: the turn it was taken at, and its chunk unless it is zero.
type Entry = (u64, Option<(u32, ChunkId)>);

/// What the sink and its helpers share.
pub(super) struct Flow {
    queue: Queue<Load>,
    spare: Queue<OwnBuffer>,
    reservoir: Reservoir,
    /// Whether the program waits for what is being taken, or the save has been given up.
    signals: Arc<Signals>,
    writer: PackWriter,
    /// What other workers store.
    elsewhere: Mutex<Option<Arc<dyn Elsewhere>>>,
    pace: WriteRate,
    table: Mutex<BTreeMap<(u64, u64), Entry>>,
    /// Pieces to be copied again; `None` when that cannot be done any more.
    wrong: Mutex<Option<Vec<Job>>>,
    /// How often each piece has been copied again.
    tries: Mutex<HashMap<(u64, u64), u32>>,
    /// Chunks that are being copied into a place, each with further pieces of that content.
    coming: Mutex<HashMap<ChunkId, Vec<Job>>>,
    turns: AtomicU64,
    /// With which seals are made.
    key: OnceLock<Arc<SealKey>>,
    /// Pieces that may wait before hashing lags behind.
    backlog: u64,
    /// Pieces that have been copied and not been hashed.
    pending: AtomicU64,
    /// Guards only the wait until no piece is pending.
    hashing: Mutex<()>,
    /// Signalled when no piece is pending, or the save has failed.
    hashed: Condvar,
    /// Whether the program runs, so that helpers have to lower their priority.
    behind: AtomicBool,
}

impl Flow {
    fn new(writer: PackWriter, helpers: usize, reach: &Reach) -> Self {
        let spare = Queue::new(OWN_BUFFERS, 1);
        Self {
            queue: Queue::new(usize::MAX, 1),
            spare,
            reservoir: Reservoir::new(reach.host_buffer),
            signals: Arc::default(),
            writer,
            elsewhere: Mutex::new(reach.elsewhere.clone()),
            pace: WriteRate::new(reach.write_rate),
            table: Mutex::default(),
            wrong: Mutex::new(Some(Vec::new())),
            coming: Mutex::default(),
            tries: Mutex::default(),
            turns: AtomicU64::new(0),
            key: OnceLock::new(),
            backlog: LAG * helpers as u64,
            pending: AtomicU64::new(0),
            hashing: Mutex::new(()),
            hashed: Condvar::new(),
            behind: AtomicBool::new(false),
        }
    }

    /// See [`super::Sink::stand_back`].
    pub fn stand_back(&self) {
        self.behind.store(true, Ordering::Release);
    }

    /// Whether the program runs.
    pub fn stands_back(&self) -> bool {
        self.behind.load(Ordering::Acquire)
    }

    /// See [`super::Sink::seal`].
    pub fn seal_with(&self, key: Arc<SealKey>) {
        // Seals of another key than the first would fit nothing.
        let _ = self.key.set(key);
    }

    /// Whether hashing lags behind.
    pub fn lags(&self) -> bool {
        self.pending.load(Ordering::Relaxed) > self.backlog
    }

    /// A turn number, higher than all before.
    pub fn turn(&self) -> u64 {
        self.turns.fetch_add(1, Ordering::Relaxed)
    }

    /// Enters a piece that need not be copied; false if it must be.
    pub fn known(&self, job: &Job) -> bool {
        let len = job.order.piece.len;
        match job.order.digest {
            Digest::Zero => self.enter(job, None),
            Digest::Id(id) if self.writer.put_known(&id, len as u64) => {
                self.enter(job, Some(id));
            }
            Digest::Id(id) if !self.is_mine(&id) => self.enter(job, Some(id)),
            Digest::Id(id) => match self.coming.lock().get_mut(&id) {
                Some(others) => others.push(job.clone()),
                None => return false,
            },
            Digest::Unknown => return false,
        }
        true
    }

    /// Whether [`Flow::known`] would return true.
    pub fn has(&self, order: &Order) -> bool {
        match order.digest {
            Digest::Zero => true,
            Digest::Id(id) => {
                self.writer.has(&id, order.piece.len as u64) || self.is_of_another(&id)
            }
            Digest::Unknown => false,
        }
    }

    /// Whether this worker stores the chunk, rather than another one.
    fn is_mine(&self, id: &ChunkId) -> bool {
        let elsewhere = self.elsewhere.lock();
        elsewhere.as_ref().is_none_or(|it| it.is_mine(id))
    }

    fn is_of_another(&self, id: &ChunkId) -> bool {
        let elsewhere = self.elsewhere.lock();
        elsewhere.as_ref().is_some_and(|it| it.is_of_another(id))
    }

    /// Finds a place for the job in the tier's packs, if there is room.
    pub fn claim(&self, job: &mut Job) -> Result<(), EngineError> {
        job.place = self.writer.claim(job.order.piece.len as u64)?;
        if let (Some(_), Digest::Id(id)) = (&job.place, job.order.digest) {
            self.coming.lock().entry(id).or_default();
        }
        Ok(())
    }

    fn enter(&self, job: &Job, id: Option<ChunkId>) {
        let (piece, turn) = (&job.order.piece, job.turn);
        let chunk = id.map(|id| (piece.len as u32, id));
        let mut table = self.table.lock();
        let entry = table
            .entry((piece.buffer, piece.offset))
            .or_insert((turn, chunk));
        if entry.0 <= turn {
            *entry = (turn, chunk);
        }
    }

    pub fn push(&self, load: Load) {
        self.pending.fetch_add(1, Ordering::AcqRel);
        // `outcome` reports a failure.
        let _ = self.queue.push(load);
    }

    /// Returns when all that was pushed has been hashed, or the save has failed.
    pub fn wait_until_hashed(&self) {
        let (mut last, mut since) = (0, Instant::now());
        let mut hashing = self.hashing.lock();
        loop {
            let pending = self.pending.load(Ordering::Acquire);
            if pending == 0 || self.failed() {
                return;
            }
            if pending != last {
                (last, since) = (pending, Instant::now());
            }
            if since.elapsed() > STEP_LIMIT {
                drop(hashing);
                return self.fail(EngineError::Internal(
                    "the hashing of chunks stalls".to_owned(),
                ));
            }
            self.hashed.wait_for(&mut hashing, STALL_LOOK);
        }
    }

    /// Wakes the threads that wait for helpers.
    fn tell(&self) {
        // Under the lock, so that no thread checks before this and sleeps after it.
        drop(self.hashing.lock());
        self.hashed.notify_all();
    }

    /// Moves a chunk that waits for the store out of its staging buffer, so that copies go on; false if none
    /// waits there or all memory for this is in use.
    pub fn make_room(&self) -> bool {
        let staged = |load: &Load| matches!(load.content, Content::Copied(HostEnd::Buffer(_)));
        let Some(mut buffer) = self.reservoir.take(self.signals.hurries()) else {
            return false;
        };
        let Some(Load { job, content }) = self.queue.take_if(staged) else {
            self.reservoir.put(buffer);
            return false;
        };
        let content = match content {
            Content::Copied(end) => {
                let len = job.order.piece.len;
                buffer[..len].copy_from_slice(&end.bytes()[..len]);
                Content::Moved(buffer)
            }
            other => other,
        };
        self.queue.put_back(Load { job, content });
        true
    }

    pub fn signals(&self) -> &Arc<Signals> {
        &self.signals
    }

    pub fn fail(&self, error: EngineError) {
        self.queue.fail(error);
        self.spare
            .fail(EngineError::Internal("the save has failed".to_owned()));
        self.pace.look();
        self.tell();
    }

    pub fn failed(&self) -> bool {
        self.queue.failed()
    }

    pub fn outcome(&self) -> Result<(), EngineError> {
        self.queue.outcome()
    }

    /// Waits for a buffer of [`CHUNK`] bytes, into which `fill` puts a piece's bytes; `None` after a failure.
    pub fn buffer(&self, fill: impl FnOnce(&mut [u8])) -> Option<Content> {
        if let Some(mut buffer) = self.spare.try_next() {
            fill(&mut buffer);
            return Some(Content::Own(buffer));
        }
        if self.signals.hurries()
            && let Some(mut buffer) = self.reservoir.take(true)
        {
            fill(&mut buffer);
            return Some(Content::Moved(buffer));
        }
        match self.spare.next() {
            Next::Item(mut buffer) => {
                fill(&mut buffer);
                Some(Content::Own(buffer))
            }
            Next::End => None,
        }
    }

    /// Forgets everything taken so far, for a new image.
    pub fn forget(&self) {
        if self.turns.load(Ordering::Relaxed) > 0 {
            // What it has claimed so far may not be in the new one, nor what others have.
            *self.elsewhere.lock() = None;
        }
        self.table.lock().clear();
        self.tries.lock().clear();
        self.coming.lock().clear();
        self.wrong();
    }

    /// Takes the pieces that differ from their digest, to be copied again.
    pub fn wrong(&self) -> Vec<Job> {
        let mut wrong = self.wrong.lock();
        wrong.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// From now on no piece can be copied again, so a difference fails the save.
    pub fn close(&self) -> Result<(), EngineError> {
        let left = self.wrong.lock().take().unwrap_or_default();
        if let Some(job) = left.first() {
            self.fail(changed(job, 1));
        }
        self.outcome()
    }

    /// Hashes and stores until nothing more comes.
    fn work(&self, helper: usize) {
        let mut gives_way = !helper.is_multiple_of(KEEPS_ITS_SHARE);
        while let Next::Item(Load { job, content }) = self.queue.next() {
            if gives_way && self.stands_back() {
                gives_way = false;
                // If the system refuses, the program's steps take longer, no more.
                fermata_device::stand_back();
            }
            let len = job.order.piece.len;
            let (bytes, written) = match &content {
                Content::Copied(end @ HostEnd::Span(_)) => (&end.bytes()[..len], true),
                Content::Copied(end) => (&end.bytes()[..len], false),
                Content::Own(buffer) | Content::Moved(buffer) => (&buffer[..len], false),
                Content::Image(image) => {
                    let from = job.order.piece.offset as usize;
                    (&image.bytes()[from..from + len], false)
                }
            };
            if let Err(error) = self.store(&job, bytes, written) {
                return self.fail(error);
            }
            if self.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.tell();
            }
            match content {
                Content::Own(buffer) => {
                    // Fails when the queue has ended.
                    let _ = self.spare.push(buffer);
                }
                Content::Moved(buffer) => self.reservoir.put(buffer),
                Content::Copied(_) | Content::Image(_) => {}
            }
        }
    }

    /// Stores bytes that have arrived; `written`: they have arrived in the job's place in a pack.
    fn store(&self, job: &Job, bytes: &[u8], written: bool) -> Result<(), EngineError> {
        let may_lack = job.order.piece.buffer < IMAGE_BUFFERS;
        if may_lack && matches!(job.order.digest, Digest::Unknown) && is_zero(bytes) {
            if let Some(place) = &job.place {
                self.writer.waive(place);
            }
            self.enter(job, None);
            return Ok(());
        }
        let id = match self.name(&job.order, bytes) {
            Ok(id) => id,
            Err(wanted) => return self.differs(job.clone(), &wanted),
        };
        moments::pass("write");
        match &job.place {
            place if !self.is_mine(&id) => place.iter().for_each(|it| self.writer.waive(it)),
            Some(place) => {
                if !written {
                    self.writer.fill(place, bytes)?;
                }
                self.writer.settle(place, &id)?;
            }
            None => {
                let len = bytes.len() as u64;
                if !self.writer.has(&id, len) && !self.pace.wait(len, &|| self.failed()) {
                    return Ok(());
                }
                self.writer.put(&id, bytes)?;
            }
        }
        self.enter(job, Some(id));
        for other in self.coming.lock().remove(&id).unwrap_or_default() {
            self.writer.put_known(&id, bytes.len() as u64);
            self.enter(&other, Some(id));
        }
        Ok(())
    }

    /// The chunk that has arrived for an order.
    ///
    /// # Errors
    /// It is another than this one, which was expected.
    fn name(&self, order: &Order, bytes: &[u8]) -> Result<ChunkId, ChunkId> {
        let Digest::Id(wanted) = order.digest else {
            return Ok(ChunkId::of(bytes));
        };
        let is_it = match order.seal.zip(self.key.get()) {
            Some((seal, key)) if self.lags() => key.fits(&seal, bytes),
            _ => ChunkId::of(bytes) == wanted,
        };
        if is_it { Ok(wanted) } else { Err(wanted) }
    }

    /// Handles bytes that differ from the job's digest: the pieces that waited for this chunk have to be copied, too.
    fn differs(&self, mut job: Job, wanted: &ChunkId) -> Result<(), EngineError> {
        let piece = &job.order.piece;
        let tries = {
            let mut tries = self.tries.lock();
            let tries = tries.entry((piece.buffer, piece.offset)).or_default();
            *tries += 1;
            *tries
        };
        if let Some(place) = job.place.take() {
            self.writer.waive(&place);
        }
        let others = self.coming.lock().remove(wanted).unwrap_or_default();
        match &mut *self.wrong.lock() {
            Some(wrong) if tries < TRIES => {
                wrong.push(job);
                wrong.extend(others);
                Ok(())
            }
            _ => Err(changed(&job, tries)),
        }
    }

    /// The writer and the table, when all helpers have ended.
    pub fn into_parts(self) -> (PackWriter, Chunks) {
        let table = self.table.into_inner().into_iter();
        let chunks = table.filter_map(|(place, (_, chunk))| Some((place, chunk?)));
        (self.writer, chunks.collect())
    }
}

fn changed(job: &Job, tries: u32) -> EngineError {
    EngineError::Changed {
        buffer: job.order.piece.buffer,
        offset: job.order.piece.offset,
        tries,
    }
}

/// The helpers. When dropped they end, and what they have written goes with the flow's writer.
pub(super) struct Team {
    pub flow: Arc<Flow>,
    threads: Vec<JoinHandle<()>>,
}

impl Team {
    pub fn start(writer: PackWriter, helpers: usize, reach: &Reach) -> Result<Self, EngineError> {
        let flow = Arc::new(Flow::new(writer, helpers, reach));
        for _ in 0..OWN_BUFFERS {
            // Their pages are first touched when they are used.
            let _ = flow.spare.push(AlignedBuf::new(CHUNK as usize));
        }
        let mut team = Self {
            flow,
            threads: Vec::new(),
        };
        for helper in 0..helpers {
            let flow = Arc::clone(&team.flow);
            let thread = std::thread::Builder::new()
                .name("sink".to_owned())
                .spawn(move || flow.work(helper));
            let thread = thread.map_err(|error| {
                EngineError::Internal(format!("cannot start a thread that writes chunks: {error}"))
            })?;
            team.threads.push(thread);
        }
        Ok(team)
    }

    /// Waits until everything has been hashed and written.
    pub fn end(mut self) -> Result<(PackWriter, Chunks), EngineError> {
        self.flow.queue.end();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                let what = "a thread that writes chunks has failed";
                self.flow.fail(EngineError::Internal(what.to_owned()));
            }
        }
        self.flow.outcome()?;
        let flow = Arc::clone(&self.flow);
        drop(self);
        let flow = Arc::try_unwrap(flow)
            .map_err(|_| EngineError::Internal("a save is still used".to_owned()))?;
        Ok(flow.into_parts())
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            let what = "the save was given up";
            self.flow.fail(EngineError::Internal(what.to_owned()));
        }
        for thread in self.threads.drain(..) {
            // Its failure does not matter any more.
            let _ = thread.join();
        }
    }
}
