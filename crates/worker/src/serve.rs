//! The decode loop: takes operations off the ring in order, gives them to the driver, and sends the answers that are due.
//!
//! It never blocks on the device. While answers wait it spins for a short time, then sleeps for longer and longer spans,
//! and spins again when the wait is likely to end. So a launch with a synchronisation costs little latency, and a long
//! kernel costs no core.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fermata_abi::op::{ContextId, Op, Reply, ReplyBody, ToProgram};
use fermata_wire::{Advice, Consumer, Event, Ticket, WireError};

use crate::dispatch::Reaction;
use crate::errors::{OpError, context_of, reports, stream_changed};
use crate::parked::Hold;
use crate::queues::Work;
use crate::server::{Ended, Held, Requests, Server};
use crate::threads::pause_beside_device;

/// How long the loop sleeps when nothing is due; it is woken for messages and requests.
const IDLE: Duration = Duration::from_millis(500);
/// How long it sleeps at most while nothing is taken off the ring, because requests do not wake it then.
const STUFFED: Duration = Duration::from_micros(200);
/// Messages taken before answers are looked at again.
const BATCH: usize = 64;

impl Server {
    /// Serves until asked to stop, or until the program is gone. Returns the session as it is then, and why serving ended.
    pub fn run(mut self, mut consumer: Consumer, requests: &Requests) -> (Held, Ended) {
        self.site.live.forget_current();
        requests
            .learns
            .store(self.guard.is_some(), Ordering::Release);
        // Sleeps are short, so the kernel must not lengthen them by its usual 50 us. If this fails, they are longer.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1000));
        self.callbacks
            .attach(Arc::clone(&self.side), consumer.callbacks());
        let ended = match self.welcome().and_then(|()| self.requeue()) {
            Ok(()) => self.decode(&mut consumer, requests),
            // The program has died, or its daemon before the program came: the session is unchanged.
            Err(_) if consumer.check_program().is_err() => Ended::ProgramGone,
            Err(error) => Ended::Broken(error),
        };
        let ended = match ended {
            Ended::ProgramGone if consumer.has_left() => Ended::ProgramLeft,
            other => other,
        };
        let ended = match ended {
            Ended::Detached | Ended::ProgramLeft if !self.lot.is_empty() && !self.may_keep() => {
                Ended::Unfinished
            }
            other => other,
        };
        if self.may_keep() && !self.lot.is_empty() {
            self.keep_queue();
        }
        self.callbacks.detach();
        if matches!(ended, Ended::ProgramGone) {
            self.look_last();
        }
        requests.learns.store(false, Ordering::Release);
        self.leave();
        drop(consumer);
        let held = Held {
            site: self.site,
            faults: self.faults,
            staging: self.staging,
            scratch: self.scratch,
            guard: self.guard,
        };
        (held, ended)
    }

    /// Tells the program which shared regions exist.
    fn welcome(&mut self) -> Result<(), WireError> {
        if self.site.live.enter_any().is_ok()
            && let Err(error) = self
                .site
                .live
                .at_home(|driver| self.staging.register(driver))
        {
            self.note(None, &error.into());
        }
        for (address, mapping) in &self.site.live.hosts {
            if !self.site.session.owns_host_region(*address) {
                continue;
            }
            let region = ToProgram::Region {
                address: *address,
                size: mapping.size(),
            };
            self.side.send_to_program(&region, Some(mapping.fd()))?;
        }
        self.ask_for_shared()?;
        self.side.send_to_program(&ToProgram::RegionsEnd, None)
    }

    /// Releases what belongs to the attachment.
    fn leave(&mut self) {
        self.close_gate();
        self.abandon_loads();
        self.abandon_parked();
        self.light = 0;
        if let Some(recorder) = self.recorder.take() {
            recorder.park(&mut self.site);
        }
        if self.site.live.enter_any().is_ok() {
            let Server {
                events,
                site,
                queues,
                ..
            } = self;
            for context in site.live.contexts.keys() {
                for pace in queues.forget_context(*context) {
                    events.put(*context, pace);
                }
                events.drain(&site.live.driver, *context);
            }
        }
        self.site.live.forget_current();
    }

    /// Whether the parked operations can be carried over to another attachment: the device has finished all before them.
    fn may_keep(&self) -> bool {
        self.hold.is_whole() || !self.come
    }

    /// Whether the program has announced itself.
    pub(crate) fn has_come(&mut self) -> bool {
        if !self.come && self.presence.has_come() {
            self.comes();
        }
        self.come
    }

    /// Called when the program has announced itself: maps the memory that it shares with other processes before the first
    /// operation is performed.
    fn comes(&mut self) {
        self.come = true;
        self.map_shared();
    }

    /// Whether nothing is taken off the ring for now.
    fn is_stuffed(&self) -> bool {
        self.is_lot_full() && self.hold != Hold::Closing
    }

    fn decode(&mut self, consumer: &mut Consumer, requests: &Requests) -> Ended {
        let mut quiet_since = Instant::now();
        let mut naps = 0u32;
        loop {
            if self.condemned {
                requests.learns.store(false, Ordering::Release);
                return self.await_rollback(consumer, requests);
            }
            if self.gone {
                return Ended::ProgramGone;
            }
            let mut progress = false;
            for _ in 0..BATCH {
                if self.is_stuffed() {
                    break;
                }
                match consumer.next(Duration::ZERO) {
                    Ok(Event::Message(message)) => {
                        self.execute(&message.op, message.ticket);
                        progress = true;
                    }
                    Ok(Event::Idle) => break,
                    Ok(Event::Closed) => return Ended::ProgramGone,
                    Err(error) => return ended_by(error),
                }
            }
            let answered = self.poll() && !progress;
            progress |= answered | self.unpark();
            // A stop holds all streams first; then parked operations become part of the image. Else they are issued first.
            let may_stop = self.lot.is_empty() || self.may_keep();
            if requests.stop.load(Ordering::Acquire) && !progress && may_stop {
                return Ended::Detached;
            }
            // While work is nearly done the loop polls only the device, and looks for errands every 16th time.
            if progress || naps.is_multiple_of(16) {
                self.run_errands(requests);
            }
            if self.gate.as_ref().is_some_and(|gate| gate.finished()) {
                self.close_gate();
            }
            if progress {
                // Time spent executing operations does not count as a wait.
                if answered {
                    self.rhythm.learn(quiet_since.elapsed());
                }
                if self.queues.is_idle()
                    && let Some(gate) = &mut self.gate
                {
                    gate.rests();
                }
                quiet_since = Instant::now();
                naps = 0;
                continue;
            }
            if self.queues.is_idle() {
                self.look_if_due();
            }
            let Some(nap) = self.nap(quiet_since, &mut naps) else {
                continue;
            };
            if self.is_stuffed() {
                if let Err(error) = consumer.check_program() {
                    return ended_by(error);
                }
                pause_beside_device(nap.min(STUFFED));
                continue;
            }
            match consumer.next(nap) {
                Ok(Event::Message(message)) => {
                    self.execute(&message.op, message.ticket);
                    quiet_since = Instant::now();
                    naps = 0;
                }
                Ok(Event::Idle) => {}
                Ok(Event::Closed) => return Ended::ProgramGone,
                Err(error) => return ended_by(error),
            }
        }
    }

    /// How long to sleep now; `None` to look again at once.
    fn nap(&self, quiet_since: Instant, naps: &mut u32) -> Option<Duration> {
        let issues = !self.lot.is_empty() && !self.hold.is_whole();
        if self.waiting.is_empty() && !issues {
            return Some(IDLE);
        }
        *naps += 1;
        if *naps < 16 {
            return None;
        }
        let quiet = quiet_since.elapsed();
        if self.waiting.is_empty() {
            return self.nap_beside_work(quiet);
        }
        let longest = match self.rhythm.advice(quiet) {
            Advice::Spin(_) => {
                std::hint::spin_loop();
                return None;
            }
            Advice::Sleep(span) => span,
            Advice::Unknown => IDLE,
        };
        let nap = match quiet.as_micros() {
            // Yielding the core costs more time than a small kernel takes, so it is done only on machines with few cores.
            0..1000 if self.many_cores => {
                std::hint::spin_loop();
                return None;
            }
            0..100 => {
                std::thread::yield_now();
                return None;
            }
            100..5000 => Duration::from_micros(20),
            // A copy of a gigabyte takes 20 ms, so oversleeping its end would be noticed.
            5000..40_000 => Duration::from_micros(50),
            _ => Duration::from_micros(200),
        };
        Some(nap.min(longest))
    }

    /// As [`Server::nap`], while only parked operations wait: the device has enough work, unless it has finished sooner than
    /// estimated.
    fn nap_beside_work(&self, quiet: Duration) -> Option<Duration> {
        match quiet.as_micros() {
            0..100 if self.many_cores => {
                std::hint::spin_loop();
                None
            }
            0..1000 => Some(Duration::from_micros(20)),
            _ => Some(Duration::from_micros(200)),
        }
    }

    fn run_errands(&mut self, requests: &Requests) {
        let Some(mut errands) = requests.errands.try_lock() else {
            return;
        };
        let due = std::mem::take(&mut *errands);
        drop(errands);
        for errand in due {
            errand(self);
        }
    }

    fn execute(&mut self, op: &Op<'_>, ticket: Option<Ticket>) {
        // A program that sends an operation has come.
        if !self.come {
            self.comes();
        }
        if !self.holds_back(op, ticket) {
            self.perform(op, ticket);
        }
    }

    /// Gives an operation whose turn it is to the driver.
    pub(crate) fn perform(&mut self, op: &Op<'_>, ticket: Option<Ticket>) {
        let context = context_of(op, &self.site.session);
        let reports = reports(op);
        self.work = Work::of(op);
        if let Some(fatal) = context.and_then(|context| self.faults.fatal(context)) {
            let error = fatal.clone();
            // Without a ticket the error is reported by the context's next answer, and no other context is affected.
            if ticket.is_some() {
                self.answer(ticket, None, false, Err(error));
            }
            return;
        }
        if self.light > 0
            && let Some(stream) = stream_changed(op, &self.site.session)
            && let Err(error) = self.firm_up(stream)
        {
            self.answer(ticket, context, reports, Err(error.into()));
            return;
        }
        if self.gate.is_some()
            && let Err(error) = self.pass_gate(op)
        {
            self.answer(ticket, context, reports, Err(error));
            return;
        }
        if self.guard.is_some()
            && let Err(error) = self.pass_guard(op)
        {
            self.answer(ticket, context, reports, Err(error));
            return;
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.before(&mut self.site, op);
        }
        let begun = self.clock();
        match self.dispatch(op, ticket) {
            Ok(Reaction::Answer(body)) => self.answer(ticket, context, reports, Ok(body)),
            Ok(Reaction::Later) => {}
            Err(error) => self.answer(ticket, context, reports, Err(error)),
        }
        if let (Some(tally), Some(begun)) = (&self.tally, begun) {
            tally.add_op(op, begun.elapsed());
        }
    }

    /// Sends the answer, or records the error of an operation without one.
    pub(crate) fn answer(
        &mut self,
        ticket: Option<Ticket>,
        context: Option<ContextId>,
        reports: bool,
        outcome: Result<ReplyBody<'_>, OpError>,
    ) {
        let watched = self.gate.is_some() || self.guard.is_some();
        if watched && self.is_condemned(context, reports, &outcome) {
            return;
        }
        let Some(ticket) = ticket else {
            if let Err(error) = outcome {
                self.note(context, &error);
            }
            return;
        };
        let outcome = match (outcome, context) {
            (Ok(body), Some(context)) if reports => self.faults.take(context).map_or(Ok(body), Err),
            (Err(error), Some(context)) => {
                if self.faults.observe(context, &error) {
                    self.last_words(context);
                }
                Err(error)
            }
            (outcome, _) => outcome,
        };
        let (status, body, text) = match &outcome {
            Ok(body) => (0, body.clone(), ""),
            Err(error) => (error.code, ReplyBody::None, error.text.as_str()),
        };
        if let Err(error) = self.replier.answer(ticket, &Reply { status, body, text }) {
            // The answer did not fit its slot. An error is sent instead, so that the program does not wait for ever.
            let error = OpError::from(error);
            let reply = Reply {
                status: error.code,
                body: ReplyBody::None,
                text: "the answer does not fit",
            };
            let _ = self.replier.answer(ticket, &reply);
        }
    }

    pub(crate) fn note(&mut self, context: Option<ContextId>, error: &OpError) {
        let context = context.or_else(|| {
            self.site
                .session
                .contexts
                .iter()
                .next()
                .map(|(handle, _)| handle)
        });
        if let Some(context) = context
            && self.faults.defer(context, error.clone())
        {
            self.last_words(context);
        }
    }
}

fn ended_by(error: WireError) -> Ended {
    match error {
        WireError::PeerGone(_) => Ended::ProgramGone,
        error => Ended::Broken(error),
    }
}
