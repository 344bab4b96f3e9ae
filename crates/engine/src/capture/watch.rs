//! The gate of a capture: nothing the image needs is overwritten before it is copied.
//!
//! ```text
//!  operation ─► what does it write? ─┬─ nothing the image needs ───────────────► go
//!               (access sets)        ├─ untouched pieces ─► copy aside; its stream waits for that
//!                                    ├─ pieces being copied aside already ─► its stream waits for them
//!                                    ├─ pieces being copied to the host ─► ask again
//!                                    └─ no room aside ─► these pieces next; ask again
//! ```
//! (PhoenixOS, section 4.2.) Isolated copies go into a stream of our own on the piece's device, which waits for no
//! other stream. In the operation's stream they would come after all that this stream waits for, and another stream
//! that writes the same piece would wait for it too, which the program has never asked for. For an image of the
//! end (`Purpose::End`), writes are noted instead, and no operation waits. Memory is shared with another process only when it
//! has been copied, because what that process writes passes no gate.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_abi::op::{Address, ExecId, FunctionId, Launch, MemoryId, Op, StreamRef};
use fermata_abi::sys::driver as cu;
use fermata_device::{
    ContextHandle, Driver, DriverError, EventHandle, HIGHEST_PRIORITY, StreamHandle,
};
use fermata_state::Session;

use super::aside::copy_aside;
use super::checker::Checker;
use super::map::{Slot, State, device_of};
use super::pool::DevicePool;
use super::purpose::Purpose;
use super::shared::{Inner, MarkEvent, Shared};
use crate::access::{AccessSet, Predictor, kernels_of};
use crate::link;
use crate::live::Exposed;
use crate::{EngineError, Gate, Passage, Site};

/// An operation that has waited for this long waits no longer: a stop takes what it overwrites.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest wait for the copying to end.
const ENDING: Duration = Duration::from_secs(30);
/// Copies of the program from this many bytes up go before ours.
const NOTABLE: u64 = 1 << 20;
/// Bytes a second that a link is taken to move, when transfers of the program are given way to.
const LINK: f64 = 50e9;

/// See the module.
pub(crate) struct Watch {
    shared: Arc<Shared>,
    predictor: Box<Predictor>,
    /// Physical memory made reachable for the copies.
    exposed: Option<Exposed>,
    /// For copies aside, by context.
    streams: HashMap<ContextHandle, StreamHandle>,
    touched: Vec<usize>,
    waiting_since: Option<Instant>,
    /// Launches instrumented kernels, if they are to vouch for the image.
    checker: Option<Checker>,
    /// What is foreseen of the operation at hand.
    set: AccessSet,
    /// The kernels of the graph that is about to be launched.
    kernels: Vec<FunctionId>,
}

impl Watch {
    pub(crate) fn new(
        shared: Arc<Shared>,
        exposed: Exposed,
        predictor: Box<Predictor>,
        checker: Option<Checker>,
    ) -> Self {
        Self {
            checker,
            set: AccessSet::nothing(),
            kernels: Vec::new(),
            shared,
            predictor,
            exposed: Some(exposed),
            streams: HashMap::new(),
            touched: Vec::new(),
            waiting_since: None,
        }
    }

    /// Everything must have been copied before this operation.
    fn wait_for_all(&mut self) -> Passage {
        if self.shared.purpose == Purpose::End {
            // What is not copied by now is copied when the program stops.
            self.shared.give_up(EngineError::Internal(
                "objects with content have been destroyed".to_owned(),
            ));
        }
        {
            let mut inner = self.shared.inner.lock();
            inner.press(true);
            inner.relieved = None;
        }
        self.waits_too_long();
        // Even after the attempt is given up, what is being read must stay until it has been read.
        Passage::NotYet
    }

    fn not_yet(&mut self) -> Passage {
        match self.waits_too_long() {
            true => self.go(),
            false => Passage::NotYet,
        }
    }

    /// Before another process may write a buffer, which this gate would not see: what the image needs of it must have been
    /// read.
    fn before_sharing(&mut self, site: &mut Site, buffer: u64) -> Passage {
        if self.shared.purpose == Purpose::End {
            // The stop digests everything.
            return Passage::Go;
        }
        let shared = Arc::clone(&self.shared);
        let mut inner = shared.inner.lock();
        let Inner { map, marks, .. } = &mut *inner;
        let mut late = false;
        for index in map.indices() {
            if map.piece(index).buffer != buffer {
                continue;
            }
            late |= match map.state(index) {
                State::Done | State::Draining(_) => false,
                State::Copying => true,
                State::Isolated { mark, .. } => !Inner::has_passed(marks, &site.live.driver, mark),
                State::Untouched => {
                    map.want(index);
                    true
                }
            };
        }
        site.live.forget_current();
        if late {
            inner.press(true);
        }
        drop(inner);
        match late {
            true => {
                self.shared.changed.notify_all();
                self.not_yet()
            }
            false => self.go(),
        }
    }

    /// Counts the wait; true if it has been too long, and the attempt has been given up for it.
    fn waits_too_long(&mut self) -> bool {
        let since = *self.waiting_since.get_or_insert_with(Instant::now);
        self.shared.inner.lock().waiting.get_or_insert(since);
        let long = since.elapsed() > PATIENCE;
        if long {
            self.shared.make_way(&format!(
                "an operation of the program would have waited longer than {} s",
                PATIENCE.as_secs()
            ));
        }
        long
    }

    /// The stream for copies aside in `context`, which is current.
    fn aside_stream(
        &mut self,
        driver: &Driver,
        context: ContextHandle,
    ) -> Result<StreamHandle, DriverError> {
        if let Some(stream) = self.streams.get(&context) {
            return Ok(*stream);
        }
        // The program's operations wait for what is in it.
        let stream = driver.create_stream(cu::CU_STREAM_NON_BLOCKING, HIGHEST_PRIORITY)?;
        self.streams.insert(context, stream);
        Ok(stream)
    }

    fn go(&mut self) -> Passage {
        if self.waiting_since.take().is_some() {
            let mut inner = self.shared.inner.lock();
            inner.count_wait();
            inner.press(false);
            inner.relieved = inner.relieved.map(|_| Instant::now());
        }
        Passage::Go
    }

    /// Takes what instrumented kernels have found: now, or if it is time.
    fn look(&mut self, site: &mut Site, now: bool) {
        if let Some(checker) = &mut self.checker {
            checker.look(site, &mut self.predictor, &self.shared, now);
        }
    }

    /// Notes which kernels run while data is copied.
    fn note_launch(&mut self, site: &Site, op: &Op<'_>) {
        let complete = self.set.complete;
        match op {
            Op::Launch { launch, .. } => {
                let mut inner = self.shared.inner.lock();
                *inner.launched.entry(launch.function).or_insert(true) &= complete;
            }
            Op::GraphLaunch { exec, .. } => {
                self.kernels = kernels_of(&site.session, *exec);
                let mut inner = self.shared.inner.lock();
                for function in &self.kernels {
                    *inner.launched.entry(*function).or_insert(true) &= complete;
                }
            }
            _ => {}
        }
    }

    /// Notes what is about to be written.
    fn soil(&mut self) {
        let mut inner = self.shared.inner.lock();
        for index in self.touched.drain(..) {
            inner.map.soil(index);
        }
    }

    /// Makes sure that what is about to be written stays for the image.
    fn keep(&mut self, site: &mut Site, stream: StreamRef) -> Result<Passage, DriverError> {
        let begun = Instant::now();
        let handle = site.live.stream(stream)?;
        let driver = Arc::clone(&site.live.driver);
        let shared = Arc::clone(&self.shared);
        let mut inner = shared.inner.lock();
        let inner = &mut *inner;
        let mut aside: BTreeMap<u32, Vec<(usize, Slot)>> = BTreeMap::new();
        let mut waits: Vec<EventHandle> = Vec::new();
        let mut late = false;
        for index in self.touched.drain(..) {
            match inner.map.state(index) {
                State::Done | State::Draining(_) => {}
                State::Copying => late = true,
                State::Isolated { mark, .. } => {
                    let mark = inner.marks.get(mark);
                    if let Some(mark) = mark.filter(|it| !it.passed && it.stream != stream) {
                        waits.push(mark.event);
                    }
                }
                State::Untouched => {
                    let piece = *inner.map.piece(index);
                    let device = device_of(&piece);
                    let pool = inner.pool(device);
                    match pool.and_then(|pool| pool.take(piece.len as u64)) {
                        Some(slot) => aside.entry(device).or_default().push((index, slot)),
                        None => {
                            inner.map.want(index);
                            late = true;
                        }
                    }
                }
            }
        }
        waits.sort_unstable();
        waits.dedup();
        for event in waits {
            driver.stream_wait(handle, event, 0)?;
        }
        for (device, aside) in aside {
            let context = site.live.enter_device(device)?.handle;
            let copies = self.aside_stream(&driver, context)?;
            let mark = inner.marks.len();
            // Noted first: whatever fails from here on, the pool is not given back before its copies end.
            inner.marks.push(MarkEvent {
                event: driver.create_event(cu::CU_EVENT_DISABLE_TIMING)?,
                context,
                copies,
                stream,
                passed: false,
            });
            copy_aside(&driver, |index| *inner.map.piece(index), &aside, copies)?;
            driver.record_event(inner.marks[mark].event, copies, 0)?;
            site.live.enter(stream.context)?;
            driver.stream_wait(handle, inner.marks[mark].event, 0)?;
            for (index, slot) in &aside {
                inner.map.set_isolated(*index, *slot, mark);
                let bytes = inner.map.piece(*index).len as u64;
                inner.cost.isolated_bytes += bytes;
                inner.cost.timeline.put_aside(bytes);
            }
        }
        let used = inner.pools.iter().map(DevicePool::used).sum::<u64>();
        inner.cost.pool_bytes = inner.cost.pool_bytes.max(used);
        inner.cost.issuing += begun.elapsed();
        if late {
            inner.press(true);
        }
        Ok(if late {
            self.shared.changed.notify_all();
            Passage::NotYet
        } else {
            Passage::Go
        })
    }
}

/// The stream of an operation that touches memory.
fn stream_of(op: &Op<'_>) -> Option<StreamRef> {
    match op {
        Op::Copy { stream, .. }
        | Op::Copy3d { stream, .. }
        | Op::Fill { stream, .. }
        | Op::WriteValue { stream, .. }
        | Op::Launch { stream, .. }
        | Op::GraphLaunch { stream, .. } => Some(*stream),
        _ => None,
    }
}

/// The buffer that an operation lets other processes have.
fn shared_by(op: &Op<'_>, session: &Session) -> Option<u64> {
    let Op::MemShare {
        address, memory, ..
    } = op
    else {
        return None;
    };
    match *memory {
        MemoryId::NULL => session.allocations.get(*address).ok().map(|it| it.buffer),
        memory => session.memories.get(memory).ok().map(|it| it.buffer),
    }
}

/// Whether an operation takes away what the copies read from.
fn takes_away(op: &Op<'_>) -> bool {
    matches!(
        op,
        Op::ContextDestroy { .. }
            | Op::ModuleUnload { .. }
            | Op::MemUnmap { .. }
            | Op::MemCloseAsync { .. }
            | Op::MemSetAccess { .. }
            | Op::PeerDisable { .. }
    )
}

impl Gate for Watch {
    fn rests(&mut self) {
        self.shared.set_rests(true);
    }

    fn before(&mut self, site: &mut Site, op: &Op<'_>) -> Result<Passage, EngineError> {
        if self.shared.is_over() || self.shared.given_up() && !takes_away(op) {
            return Ok(self.go());
        }
        if takes_away(op) {
            return Ok(self.wait_for_all());
        }
        if let Some(buffer) = shared_by(op, &site.session) {
            return Ok(self.before_sharing(site, buffer));
        }
        let Some(stream) = stream_of(op) else {
            return Ok(Passage::Go);
        };
        self.shared.set_rests(false);
        self.look(site, false);
        self.set = self.predictor.predict(op, site);
        if self.waiting_since.is_none() {
            self.note_launch(site, op);
            if self.shared.purpose == Purpose::Start {
                self.shared.inner.lock().first_use.note(&self.set);
            }
            let moved = link::bytes(op);
            if moved >= NOTABLE {
                self.shared
                    .yield_for(Duration::from_secs_f64(moved as f64 / LINK));
            }
            if !self.set.complete {
                self.shared.inner.lock().cost.incomplete += 1;
            }
        }
        self.touched.clear();
        // For an image of the end, what was copied and is written has to be copied again.
        let end = self.shared.purpose == Purpose::End;
        {
            let inner = self.shared.inner.lock();
            for target in &self.set.writes {
                inner.map.touched(target, end, &mut self.touched);
            }
        }
        if self.touched.is_empty() {
            return Ok(self.go());
        }
        self.touched.sort_unstable();
        self.touched.dedup();
        if end {
            self.soil();
            return Ok(Passage::Go);
        }
        match self.keep(site, stream) {
            Ok(Passage::Go) => Ok(self.go()),
            Ok(Passage::NotYet) => Ok(self.not_yet()),
            Err(error) => {
                self.shared.give_up(EngineError::driver(
                    "copy aside what the program is about to write",
                )(error));
                Ok(self.go())
            }
        }
    }

    fn holds(&self, address: Address) -> bool {
        if self.shared.is_over() {
            return false;
        }
        let mut inner = self.shared.inner.lock();
        match self.shared.purpose {
            Purpose::Start => inner.map.holds(address),
            Purpose::End => !inner.map.give_up(address),
        }
    }

    fn lets_go(&mut self, address: Address, now: bool) -> bool {
        if self.shared.is_over() {
            return true;
        }
        let reads = self.shared.inner.lock().map.reads(address);
        if reads && now {
            let why = "memory that other sessions have, too, is about to be made the session's own";
            self.shared.make_way(why);
        }
        !reads
    }

    fn launch(
        &mut self,
        site: &mut Site,
        launch: &Launch<'_>,
        stream: StreamRef,
    ) -> Result<bool, DriverError> {
        match &mut self.checker {
            Some(checker) if !self.shared.is_over() => {
                checker.launch(site, launch, stream, &self.set, &self.shared)
            }
            _ => Ok(false),
        }
    }

    fn launch_graph(
        &mut self,
        site: &mut Site,
        exec: ExecId,
        stream: StreamRef,
    ) -> Result<bool, DriverError> {
        let Some(checker) = &mut self.checker else {
            return Ok(false);
        };
        let graph = (exec, self.kernels.as_slice());
        checker.launch_graph(site, graph, stream, &self.set, &self.shared)
    }

    fn finished(&self) -> bool {
        self.shared.is_over() && (self.checker.is_none() || self.shared.is_settled())
    }

    fn close(&mut self, site: &mut Site) {
        if !self.shared.is_over() {
            self.shared.give_up(EngineError::Internal(
                "the program has ended or stopped while it was copied".to_owned(),
            ));
            let until = Instant::now() + ENDING;
            let mut inner = self.shared.inner.lock();
            while !self.shared.is_over() {
                if self
                    .shared
                    .changed
                    .wait_until(&mut inner, until)
                    .timed_out()
                {
                    // Memory that a thread of ours may still read is not given back.
                    return;
                }
            }
        }
        let driver = Arc::clone(&site.live.driver);
        let (marks, pools, unsettled) = {
            let mut inner = self.shared.inner.lock();
            (
                std::mem::take(&mut inner.marks),
                std::mem::take(&mut inner.pools),
                inner.checked_in.clone(),
            )
        };
        // Instrumented kernels that were launched before the end of the copying have been waited for; the program's own
        // work since then may need this thread to go on. Else it has ended or stands still.
        let settled = self.shared.is_settled();
        for context in unsettled.into_iter().filter(|_| !settled) {
            // A dead context has nothing to report.
            let _ = driver
                .set_current(context)
                .and_then(|()| driver.synchronize_context());
        }
        site.live.forget_current();
        self.look(site, true);
        if let Some(checker) = self.checker.take() {
            checker.close(site);
        }
        self.shared.inner.lock().closed = true;
        self.shared.changed.notify_all();
        for mark in marks {
            if !mark.passed && driver.set_current(mark.context).is_ok() {
                // Memory must not go before the copies into it have ended; a dead context has none.
                let _ = driver.synchronize_stream(mark.copies);
            }
            let _ = driver.destroy_event(mark.event);
        }
        for (context, stream) in std::mem::take(&mut self.streams) {
            if driver.set_current(context).is_ok() {
                let _ = driver.destroy_stream(stream);
            }
        }
        site.live.forget_current();
        // Nothing is copied to them any more; they go behind.
        drop(pools);
        site.live.lasting.put(std::mem::take(&mut self.predictor));
        if let Some(exposed) = self.exposed.take() {
            // Addresses that stay mapped go with the process.
            let _ = site.live.conceal(exposed);
        }
    }
}
