//! The sink of every protocol: takes pieces of buffers, and makes the chunks of an image.
//!
//! ```text
//!  protocol ── Order: piece, digest if known ──► Sink::take
//!                │ zero, in the store already, or another worker's ────────► table
//!                └ copy device ─► host ── `read(piece)`: the device memory may change now
//!                                  └► helpers (every core): hash, compare or name, write ─► table
//!  where copies arrive: in a place of a pack, if the registered tier (crate::tier) has one; else in a
//!  staging buffer, from which a helper writes. If the store is slower than the link, waiting chunks move on
//!  to the reservoir, so that staging buffers are free for copies. The reservoir has a limit, but not while
//!  the program waits, so that the program never waits for storage.
//!  Sink::mend    copies again what differs from its digest, while the device memory is still unchanged
//!  Sink::close ─► Behind::finish    waits for the helpers, publishes the chunks, gives the table
//! ```
//! How a protocol uses it:
//! - [`Sink::open`] needs the session; everything after it runs on any one thread, while the program runs.
//!   (If that is the session's own thread, it must call [`Live::forget_current`] afterwards.)
//! - [`Sink::take`] pulls orders lazily, so an iterator may decide at each pull what is most urgent. It
//!   returns when the device bytes of all orders have been read; `read` is called for each, on the calling
//!   thread, in no particular order. It may be called again and again, also with pieces taken before: the
//!   later content counts.
//! - A piece's `source` says where the bytes are now (a copy made on the device, say), its `buffer` and
//!   `offset` where they belong.
//! - A digest must be that of the bytes that are copied. Every chunk is hashed on the processor where it
//!   arrived, or held against its seal if it has one and hashing lags behind; a chunk that differs is
//!   copied again by [`Sink::mend`], or fails the save with [`EngineError::Changed`]. Without a digest the
//!   chunk is named by the bytes that arrived.
//! - Module images are taken by [`Sink::take_images`], last, because [`Sink::renew`] forgets them.
//! - Host memory is taken by [`Sink::take_host`], while the program stands still.
//! - Chunks that several workers of a session have are stored by one of them ([`crate::Elsewhere`]), until the sink is renewed: what has
//!   changed since need not be what another one counts on.
//! - After an error, or when it is dropped early, the sink leaves nothing in the store.

mod behind;
mod order;
mod pace;
mod reservoir;
mod signals;
mod work;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fermata_abi::op::Address;
use fermata_device::{Direction, HostMapping, InFlight, Span};
use fermata_state::ImageBytes;
use fermata_store::{Store, WriteOptions, moments};

pub(crate) use behind::{Behind, Saved};
pub(crate) use order::{Chunks, Order};
pub(crate) use signals::Signals;
use work::{Content, Flow, Job, Team};

use crate::digest::Digest;
use crate::live::Reach;
use crate::pipeline::{STEP_LIMIT, cores, help, helpers};
use crate::protocol::{Engines, Piece, Source};
use crate::seal::SealKey;
use crate::tier::Quiet;
use crate::{EngineError, Live, Tier, stored};

/// Copies under way at once.
const IN_FLIGHT: usize = 8;
/// Copies under way at once straight into packs while the program stands still, when nobody waits for a copy behind them: 60 GiB
/// were copied in 1.21 s, and with 8 in 1.29 s, most likely since this thread shares the cores with as many helpers.
const IN_FLIGHT_STILL: usize = 32;
/// Bytes of pieces that lie one after the other, in a pack too, and are copied with one call while the program stands still: a link
/// gave 53.6 GB/s with copies of 4 MiB, and 54.9 with those of 16.
const RUN: usize = 16 << 20;
/// The longest wait for a staging buffer before the sink checks again whether the program waits.
const TURN: Duration = Duration::from_millis(1);
/// Threads that copy host memory.
const HOST_READERS: usize = 4;

/// See the module.
pub(crate) struct Sink {
    engines: Engines,
    /// Copies under way, oldest first. Declared before the team, so that they end before the helpers do.
    flying: VecDeque<Flight>,
    /// Copies that are begun with one call, because they lie one after the other on the device.
    run: Run,
    team: Team,
    /// The tier in whose ready packs places are claimed, if it has some.
    tier: Option<Arc<Tier>>,
    quiet: Option<Quiet>,
    copied: u64,
}

/// A copy under way.
struct Flight {
    job: Job,
    copy: InFlight,
}

/// See [`Sink::run`]: pieces, and where each goes.
#[derive(Default)]
struct Run {
    jobs: Vec<Job>,
    spans: Vec<Span>,
}

impl Run {
    /// Whether a piece lies behind the last one; true of the first.
    fn is_continued_by(&self, piece: &Piece) -> bool {
        let last = self.jobs.last();
        last.is_none_or(|last| piece.is_behind(&last.order.piece))
    }

    fn bytes(&self) -> usize {
        self.spans.iter().map(|span| span.len()).sum()
    }
}

impl Sink {
    /// A sink into `store` for pieces of the session; `plan` is what will be taken at least once.
    ///
    /// # Errors
    /// What the store or the driver says.
    pub fn open(live: &mut Live, store: &Store, plan: &[Piece]) -> Result<Self, EngineError> {
        prepare(live, plan)?;
        let reach = live.reach_for_image();
        Self::over(reach, live.tier.clone(), store)
    }

    /// As [`Sink::open`], on any thread: pieces are read through `reach`, which must have staging buffers if a piece on a
    /// device will be taken.
    ///
    /// # Errors
    /// As there.
    pub fn over(reach: Reach, tier: Option<Arc<Tier>>, store: &Store) -> Result<Self, EngineError> {
        let quiet = tier.as_ref().map(|tier| tier.quiet());
        let wanted = tier.as_ref().map(|tier| tier.wanted()).unwrap_or_default();
        let tier = tier.filter(|_| !wanted.is_empty());
        // With a tier nothing is written to a disk, so every core hashes.
        let helpers = if tier.is_some() { cores() } else { helpers() };
        let options = WriteOptions {
            wanted,
            ..WriteOptions::default()
        };
        let writer = store.begin_with(options)?;
        Ok(Self {
            team: Team::start(writer, helpers, &reach)?,
            engines: Engines::new(reach, Direction::ToHost),
            flying: VecDeque::new(),
            run: Run::default(),
            tier,
            quiet,
            copied: 0,
        })
    }

    /// Bytes that had to be copied from devices.
    pub fn copied(&self) -> u64 {
        self.copied
    }

    /// The signals that other threads give the sink.
    pub fn signals(&self) -> Arc<Signals> {
        Arc::clone(self.team.flow.signals())
    }

    /// Lowers the priority of helpers, because the program runs from now on.
    pub fn stand_back(&self) {
        self.team.flow.stand_back();
    }

    /// The key of seals with which orders may come from now on, where the processor is what a save waits for. To be called at most
    /// once.
    pub fn seal(&self) -> Option<Arc<SealKey>> {
        self.tier.as_ref()?;
        let key = Arc::new(SealKey::draw()?);
        self.team.flow.seal_with(Arc::clone(&key));
        Some(key)
    }

    /// Saves device and array pieces; see the module. Returns when all their bytes have been read, or it is given up
    /// ([`Signals::give_up`]).
    ///
    /// # Errors
    /// A copy or a write failed, here or in an earlier call; the sink can only be dropped then.
    pub fn take(
        &mut self,
        orders: &mut dyn Iterator<Item = Order>,
        read: &mut dyn FnMut(&Piece),
    ) -> Result<(), EngineError> {
        let taken = self.take_all(orders, read);
        if let Err(error) = taken {
            self.team.flow.fail(error);
        }
        // What a failure has left is not begun any more.
        self.run = Run::default();
        // Waits for copies that a failure has left under way: when this returns, nothing is read any more.
        self.flying.clear();
        self.team.flow.outcome()
    }

    fn take_all(
        &mut self,
        orders: &mut dyn Iterator<Item = Order>,
        read: &mut dyn FnMut(&Piece),
    ) -> Result<(), EngineError> {
        for order in orders {
            if self.has_ended() {
                return Ok(());
            }
            let job = Job::new(order, self.team.flow.turn());
            if self.team.flow.known(&job) {
                read(&order.piece);
                continue;
            }
            self.start(job, read)?;
        }
        self.land_all(read)
    }

    /// Copies that may be under way when this one begins.
    fn most_flying(&self, job: &Job) -> usize {
        match job.place {
            Some(_) if !self.team.flow.stands_back() => IN_FLIGHT_STILL,
            _ => IN_FLIGHT,
        }
    }

    /// Whether the save has failed or been given up.
    fn has_ended(&self) -> bool {
        self.team.flow.failed() || self.team.flow.signals().is_given_up()
    }

    fn start(&mut self, mut job: Job, read: &mut dyn FnMut(&Piece)) -> Result<(), EngineError> {
        moments::pass("copy");
        self.copied += job.order.piece.len as u64;
        if self.tier.is_some() && matches!(job.order.piece.source, Source::Device { .. }) {
            self.team.flow.claim(&mut job)?;
        }
        while self.flying.len() + self.run.jobs.len() >= self.most_flying(&job) {
            self.land(read)?;
        }
        // The program may copy to the host itself, as one does that reads its loss in each step.
        self.engines.leave_gaps(self.team.flow.stands_back());
        let tier = self.tier.as_ref();
        let span = tier.zip(job.place.as_ref());
        if let Some(span) = span.and_then(|(tier, place)| tier.claim(place)) {
            if !self.run.is_continued_by(&job.order.piece) {
                self.start_run()?;
            }
            self.run.jobs.push(job);
            self.run.spans.push(span);
            // While the program runs, somebody may wait for this copy.
            if self.run.bytes() >= RUN || self.team.flow.stands_back() {
                self.start_run()?;
            }
            return Ok(());
        }
        let until = Instant::now() + STEP_LIMIT;
        let buffer = loop {
            if self.has_ended() {
                return Ok(());
            }
            if let Some(buffer) = self.engines.pool()?.try_take() {
                break buffer;
            }
            if self.team.flow.make_room() {
                continue;
            }
            if !self.flying.is_empty() {
                self.land(read)?;
                continue;
            }
            // Only for a short time, because the program may begin to wait meanwhile.
            if let Some(buffer) = self.engines.pool()?.take(TURN) {
                break buffer;
            }
            if Instant::now() >= until {
                let late = "no staging buffer comes back";
                return Err(EngineError::Internal(late.to_owned()));
            }
        };
        let copy = self.engines.start(&job.order.piece, buffer)?;
        self.flying.push_back(Flight { job, copy });
        Ok(())
    }

    /// Begins the copies of the run.
    fn start_run(&mut self) -> Result<(), EngineError> {
        let Run { jobs, spans } = std::mem::take(&mut self.run);
        let Some(first) = jobs.first() else {
            return Ok(());
        };
        let copies = self.engines.start_into(&first.order.piece, spans)?;
        let flights = jobs.into_iter().zip(copies);
        self.flying
            .extend(flights.map(|(job, copy)| Flight { job, copy }));
        Ok(())
    }

    fn land_all(&mut self, read: &mut dyn FnMut(&Piece)) -> Result<(), EngineError> {
        self.start_run()?;
        while !self.flying.is_empty() {
            self.land(read)?;
        }
        Ok(())
    }

    /// Waits for the oldest copy and hands it to the helpers.
    fn land(&mut self, read: &mut dyn FnMut(&Piece)) -> Result<(), EngineError> {
        if self.flying.is_empty() {
            self.start_run()?;
        }
        let Some(Flight { job, copy }) = self.flying.pop_front() else {
            return Ok(());
        };
        let piece = job.order.piece;
        let end = self.engines.finish(&piece, copy)?;
        self.team.flow.push(job.with(Content::Copied(end)));
        read(&piece);
        Ok(())
    }

    /// Saves pieces of host memory, which must not change meanwhile. `read` is called for each, in no order,
    /// from several threads.
    ///
    /// # Errors
    /// As [`Sink::take`].
    pub fn take_host(
        &mut self,
        hosts: &BTreeMap<Address, HostMapping>,
        pieces: &[Piece],
        read: &(dyn Fn(&Piece) + Sync),
    ) -> Result<(), EngineError> {
        if pieces.is_empty() {
            return Ok(());
        }
        let flow = &self.team.flow;
        let turn = flow.turn();
        let next = AtomicUsize::new(0);
        let take = || {
            while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                match host_bytes(flow, hosts, piece) {
                    Ok(Some(content)) => {
                        let order = Order::new(*piece, Digest::Unknown);
                        flow.push(Job::new(order, turn).with(content));
                        read(piece);
                    }
                    Ok(None) => return,
                    Err(error) => return flow.fail(error),
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..HOST_READERS.min(pieces.len()) {
                // If no thread can be started, this one does all.
                let _ = help(scope, take);
            }
            take();
        });
        flow.outcome()
    }

    /// Saves module images, by buffer number, without a copy. They are hashed and written in the background; zeros are
    /// stored, too.
    pub fn take_images(&mut self, images: &[(u64, ImageBytes)]) {
        let flow = &self.team.flow;
        for (buffer, image) in images {
            for (offset, len) in stored::parts(image.bytes().len()) {
                let offset = offset as u64;
                // The bytes come with the job, so the source is never used.
                let source = Source::Host {
                    region: Address::NULL,
                    offset,
                };
                let piece = Piece {
                    buffer: *buffer,
                    offset,
                    len,
                    source,
                };
                let order = Order::new(piece, Digest::Unknown);
                flow.push(Job::new(order, flow.turn()).with(Content::Image(image.clone())));
            }
        }
    }

    /// Copies the pieces again that have turned out to differ from their digest so far. To be called only while all
    /// sources are still unchanged.
    ///
    /// # Errors
    /// As [`Sink::take`]; [`EngineError::Changed`] for a piece that keeps differing.
    pub fn mend(&mut self) -> Result<(), EngineError> {
        loop {
            let wrong = self.team.flow.wrong();
            if wrong.is_empty() {
                return self.team.flow.outcome();
            }
            for job in wrong {
                if self.team.flow.known(&job) {
                    continue;
                }
                let mended = self
                    .start(job, &mut |_| {})
                    .and_then(|()| self.land_all(&mut |_| {}));
                if let Err(error) = mended {
                    self.team.flow.fail(error);
                }
            }
            // They have to be hashed before the next look.
            self.team.flow.wait_until_hashed();
        }
    }

    /// Starts over for the session as it is now: no piece counts as taken, but content that was taken before need not be
    /// copied again.
    ///
    /// # Errors
    /// As [`Sink::open`] and [`Sink::take`].
    pub fn renew(&mut self, live: &mut Live, plan: &[Piece]) -> Result<(), EngineError> {
        self.team.flow.wait_until_hashed();
        self.team.flow.outcome()?;
        self.team.flow.forget();
        prepare(live, plan)?;
        self.engines = Engines::new(live.reach(), Direction::ToHost);
        Ok(())
    }

    /// Whether this content is in the store, or zero, so that taking it would copy nothing.
    pub fn has(&self, order: &Order) -> bool {
        self.team.flow.has(order)
    }

    /// As [`Sink::has`] says the opposite, on any thread.
    pub fn lacks(&self) -> impl Fn(&Piece, Digest) -> bool + Sync + use<> {
        let flow = Arc::clone(&self.team.flow);
        move |piece, digest| !flow.has(&Order::new(*piece, digest))
    }

    /// Waits until everything taken has been hashed, and returns the pieces that differ from their digest. They have
    /// to be taken again, with the digest they have by then.
    ///
    /// # Errors
    /// As [`Sink::take`].
    pub fn differing(&mut self) -> Result<Vec<Piece>, EngineError> {
        self.team.flow.wait_until_hashed();
        self.team.flow.outcome()?;
        let wrong = self.team.flow.wrong();
        Ok(wrong.into_iter().map(|job| job.order.piece).collect())
    }

    /// Ends the taking. What has not been hashed and written yet is done in [`Behind`].
    ///
    /// # Errors
    /// As [`Sink::take`].
    pub fn close(self) -> Result<Behind, EngineError> {
        self.team.flow.close()?;
        if self.team.flow.lags() {
            // Of less the program would notice little, and a pause waits for it.
            self.stand_back();
        }
        Ok(Behind::new(self.team, self.quiet))
    }
}

/// Makes staging buffers if there is anything on a device.
fn prepare(live: &mut Live, plan: &[Piece]) -> Result<(), EngineError> {
    let on_host = |piece: &Piece| matches!(piece.source, Source::Host { .. });
    if !plan.iter().all(on_host) {
        live.prepare_staging()
            .map_err(EngineError::driver("make staging buffers"))?;
    }
    live.forget_current();
    Ok(())
}

/// Copies the bytes of a host piece into memory of the sink's; `None` if the save has failed elsewhere.
fn host_bytes(
    flow: &Arc<Flow>,
    hosts: &BTreeMap<Address, HostMapping>,
    piece: &Piece,
) -> Result<Option<Content>, EngineError> {
    let Source::Host { region, offset } = piece.source else {
        let what = "device memory is not taken as host memory";
        return Err(EngineError::Internal(what.to_owned()));
    };
    let missing = || EngineError::Internal(format!("host region {region:#x} is not mapped"));
    let mapping = hosts.get(&region).ok_or_else(missing)?;
    Ok(flow.buffer(|bytes| mapping.read(offset, &mut bytes[..piece.len])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(buffer: u64, device: u32, address: u64) -> Piece {
        let address = Address::from_raw(address);
        Piece {
            buffer,
            offset: 0,
            len: 0x100,
            source: Source::Device { device, address },
        }
    }

    #[test]
    fn a_run_is_of_one_buffer_and_without_gaps() {
        let mut run = Run::default();
        let first = piece(1, 0, 0x1000);
        assert!(run.is_continued_by(&first));
        run.jobs
            .push(Job::new(Order::new(first, Digest::Unknown), 0));
        assert!(run.is_continued_by(&piece(1, 0, 0x1100)));
        for other in [
            piece(1, 0, 0x1200),
            piece(1, 0, 0x1000),
            piece(1, 1, 0x1100),
            piece(2, 0, 0x1100),
        ] {
            assert!(!run.is_continued_by(&other), "{other:?}");
        }
    }
}
