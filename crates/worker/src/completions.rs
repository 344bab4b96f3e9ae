//! Answers that wait for the device.
//!
//! ```text
//!  operation ─► events recorded in the streams it waits for ─► polled ─► follow-up ([`Then`]) ─► answer
//! ```
//! The decode loop goes on meanwhile: nothing here blocks.

use std::sync::atomic::Ordering;

use fermata_abi::op::{ContextId, Op, ReplyBody, STREAM_LEGACY, StreamRef, ends_context};
use fermata_abi::sys::driver as cu;
use fermata_device::{DriverError, EventHandle};

use crate::errors::OpError;
use crate::printing;
use crate::scratch::DONE_AT;
use crate::server::Server;
use crate::waiting::{Mark, Orphans, Then, Waiting};

/// Where the device writes a word at the end of its work, the driver is asked only once in so many looks, for failures.
const BETWEEN_QUERIES: u32 = 64;

enum Check {
    NotYet,
    Over(Result<(), DriverError>),
}

impl Server {
    /// Marks the end of each busy stream's work; the answer waits for all.
    pub(crate) fn mark(&mut self, streams: &[StreamRef]) -> Result<Vec<Mark>, DriverError> {
        let alone = streams.len() == 1;
        let mut marks = Vec::with_capacity(streams.len());
        for stream in streams {
            let Some(count) = self.queues.busy(*stream) else {
                continue;
            };
            if alone {
                self.light += 1;
                marks.push(Mark {
                    stream: *stream,
                    count,
                    event: None,
                });
                continue;
            }
            match self.record_mark(*stream) {
                Ok(event) => marks.push(Mark {
                    stream: *stream,
                    count,
                    event: Some(event),
                }),
                // The operation that waits reports this error.
                Err(error) if self.is_over(stream.context, &error) => drop(error),
                Err(error) => {
                    marks.into_iter().for_each(|mark| self.unmark(mark));
                    return Err(error);
                }
            }
        }
        Ok(marks)
    }

    /// Whether this error means that no work of the context runs any more: the context is dead (recorded here), or gone.
    fn is_over(&mut self, context: ContextId, error: &DriverError) -> bool {
        if !self.site.live.contexts.contains_key(&context) {
            return true;
        }
        if ends_context(error.code) {
            let error = OpError::new(error.code, error.to_string());
            if self.faults.observe(context, &error) {
                self.last_words(context);
            }
            for stream in self.queues.busy_streams(Some(context)) {
                self.queues.complete(stream, u64::MAX);
            }
        }
        self.faults.fatal(context).is_some()
    }

    /// Marks the end of all work, by events.
    pub(crate) fn mark_all(&mut self) -> Result<Vec<Mark>, DriverError> {
        self.mark(&self.queues.busy_streams(None))
    }

    fn unmark(&mut self, mark: Mark) {
        match mark.event {
            // The events of a destroyed context went with it, and this handle may belong to a new event.
            Some(_) if !self.site.live.contexts.contains_key(&mark.stream.context) => {}
            Some(event) => self.events.put(mark.stream.context, event),
            None => self.light -= 1,
        }
    }

    pub(crate) fn record_mark(&mut self, stream: StreamRef) -> Result<EventHandle, DriverError> {
        let handle = self.site.live.stream(stream)?;
        let driver = &self.site.live.driver;
        let event = self.events.take(driver, stream.context)?;
        if let Err(error) = driver.record_event(event, handle, 0) {
            self.events.put(stream.context, event);
            return Err(error);
        }
        Ok(event)
    }

    /// To be called before work is issued to `stream`, or the stream is destroyed: records the event of each mark that
    /// has none yet. Marks of the context's default stream get theirs too, because that stream waits for every other.
    pub(crate) fn firm_up(&mut self, stream: StreamRef) -> Result<(), DriverError> {
        if self.light == 0 {
            return Ok(());
        }
        let concerned = |mark: &Mark| {
            let same = mark.stream == stream;
            mark.event.is_none()
                && (same
                    || mark.stream.stream == STREAM_LEGACY && mark.stream.context == stream.context)
        };
        for index in 0..self.waiting.len() {
            let Some(at) = self.waiting[index].marks.iter().position(concerned) else {
                continue;
            };
            let marked = self.waiting[index].marks[at].stream;
            let event = self.record_mark(marked)?;
            self.waiting[index].marks[at].event = Some(event);
            self.light -= 1;
        }
        Ok(())
    }

    /// Polls every wait once; true if any is over.
    pub(crate) fn poll(&mut self) -> bool {
        let mut progress = false;
        let mut index = 0;
        while index < self.waiting.len() {
            let checked = self.check(index);
            if !matches!(checked, Check::Over(_)) || !self.answers_first(index) {
                self.account();
            }
            match checked {
                Check::NotYet => index += 1,
                Check::Over(outcome) => {
                    let waiting = self.waiting.remove(index);
                    self.complete(waiting, outcome);
                    self.account();
                    progress = true;
                }
            }
        }
        progress
    }

    /// Whether the program gets the answer of a wait that is over before the work is accounted for: nothing that the answer
    /// depends on is, and the program waits for it.
    fn answers_first(&self, index: usize) -> bool {
        let alone = matches!(self.waiting[index].then, Then::Answer | Then::Bytes { .. });
        alone && self.gate.is_none() && self.guard.is_none() && self.printing.is_empty()
    }

    /// Accounts for the marks that were seen to have been passed.
    fn account(&mut self) {
        while let Some(mark) = self.passed.pop() {
            self.queues.complete(mark.stream, mark.count);
            self.unmark(mark);
        }
    }

    fn check(&mut self, index: usize) -> Check {
        let waiting = &mut self.waiting[index];
        if let Then::Bytes {
            buffer, told: true, ..
        } = &waiting.then
        {
            if buffer.word(DONE_AT).load(Ordering::Acquire) != 0 {
                self.passed.append(&mut waiting.marks);
                return Check::Over(Ok(()));
            }
            waiting.looks += 1;
            if !waiting.looks.is_multiple_of(BETWEEN_QUERIES) {
                return Check::NotYet;
            }
        }
        while let Some(mark) = self.waiting[index].marks.last().copied() {
            let live = &mut self.site.live;
            let asked = match mark.event {
                Some(event) => live
                    .enter(mark.stream.context)
                    .and_then(|_| live.driver.query_event(event)),
                None => live
                    .stream(mark.stream)
                    .and_then(|handle| live.driver.query_stream(handle)),
            };
            match asked {
                Ok(()) => {
                    self.waiting[index].marks.pop();
                    self.passed.push(mark);
                }
                Err(error) if error.code == cu::CUDA_ERROR_NOT_READY => return Check::NotYet,
                // Work of other contexts goes on and is waited for, because the follow-up may free memory that it uses.
                Err(error) if self.is_over(mark.stream.context, &error) => {
                    self.waiting[index].marks.pop();
                    self.unmark(mark);
                    if self.waiting[index].context == Some(mark.stream.context) {
                        self.waiting[index].failed = Some(error);
                    }
                }
                Err(error) => return Check::Over(Err(error)),
            }
        }
        if let Some((event, context)) = self.waiting[index].event {
            let live = &mut self.site.live;
            match live
                .enter(context)
                .and_then(|_| live.driver.query_event(event))
            {
                Ok(()) => {}
                Err(error) if error.code == cu::CUDA_ERROR_NOT_READY => return Check::NotYet,
                Err(error) => return Check::Over(Err(error)),
            }
        }
        let waiting = &self.waiting[index];
        let orphans = self.has_orphans(waiting.orphans, index);
        if matches!(waiting.then, Then::Drained) && index > 0 || orphans {
            return Check::NotYet;
        }
        match &waiting.then {
            Then::ModuleLoad(load) if !load.is_done() => return Check::NotYet,
            Then::ImageHold(reading) if !reading.is_done() => return Check::NotYet,
            Then::ContextDestroy(context) if self.is_loading(*context) => return Check::NotYet,
            _ => {}
        }
        let freeing = || {
            self.waiting[..index]
                .iter()
                .any(|it| matches!(it.then, Then::Free(_)))
        };
        if matches!(waiting.then, Then::Allocate { .. }) && (freeing() || self.is_captured()) {
            return Check::NotYet;
        }
        Check::Over(self.waiting[index].failed.take().map_or(Ok(()), Err))
    }

    /// Whether such work of destroyed streams is under way, among the first `count` waits.
    pub(crate) fn has_orphans(&self, which: Orphans, count: usize) -> bool {
        let concerns = |it: &Waiting| match (which, &it.then) {
            (Orphans::All, Then::Orphan { .. }) => true,
            (Orphans::Joined(context), Then::Orphan { apart }) => {
                !apart && it.context == Some(context)
            }
            _ => false,
        };
        let mut first = self.waiting.iter().take(count);
        first.any(concerns)
    }

    fn complete(&mut self, waiting: Waiting, outcome: Result<(), DriverError>) {
        let Waiting {
            ticket,
            context,
            reports,
            marks,
            then,
            event,
            ..
        } = waiting;
        if let Some((event, _)) = event {
            self.let_go(event);
        }
        let failure = outcome.err().map(OpError::from);
        marks.into_iter().for_each(|mark| self.unmark(mark));
        if reports {
            self.flush_output(context);
        }
        let mut bytes = None;
        let outcome = match then {
            Then::Answer => failure.map_or(Ok(()), Err),
            Then::Bytes { buffer, len, .. } => {
                bytes = Some((buffer, len));
                failure.map_or(Ok(()), Err)
            }
            Then::Hold(buffer) => {
                drop(buffer);
                failure.map_or(Ok(()), Err)
            }
            Then::Orphan { .. } => Ok(()),
            Then::Settled(hold) => {
                self.settled = self.settled.max(hold);
                Ok(())
            }
            // A session with a dead context is quiet, and can never be saved.
            Then::Drained => {
                let session = &mut self.site.session;
                session.deferred = self.faults.deferred();
                let contexts = &session.contexts;
                session.deferred.retain(|it| contexts.contains(it.context));
                self.faults
                    .any_fatal()
                    .map_or(Ok(()), |error| Err(error.clone()))
            }
            Then::Free(address) => self.release(address).and(failure.map_or(Ok(()), Err)),
            Then::Unmap(gone) => self.unmap_closed(gone).and(failure.map_or(Ok(()), Err)),
            Then::Allocate { context, size } => {
                let allocated = self
                    .allocate(context, size)
                    .map(|it| ReplyBody::U64(it.raw()));
                let op = Op::MemAlloc { context, size };
                let short = cu::CUDA_ERROR_OUT_OF_MEMORY;
                if allocated.as_ref().is_err_and(|it| it.code == short)
                    && self.park_until_freed(&op, ticket)
                {
                    return;
                }
                self.answer(ticket, Some(context), reports, allocated);
                return;
            }
            Then::ModuleLoad(load) => {
                let loaded = self.loaded(load);
                self.answer(ticket, context, reports, loaded);
                return;
            }
            // The operation has been answered.
            Then::ImageHold(reading) => return self.held(reading),
            Then::HostUnmap(address) => self.release_host(address).and(failure.map_or(Ok(()), Err)),
            Then::ModuleUnload(module) => {
                self.release_module(module).and(failure.map_or(Ok(()), Err))
            }
            Then::ContextDestroy(context) => self.release_context(context),
            Then::GreenDestroy(green) => self.release_green(green),
            Then::ArrayDestroy(array) => self.release_array(array).and(failure.map_or(Ok(()), Err)),
            Then::MipmapDestroy(mipmap, gone) => {
                let released = self.release_mipmap(mipmap, &gone);
                released.and(failure.map_or(Ok(()), Err))
            }
        };
        if let (Some((buffer, len)), Ok(())) = (&bytes, &outcome) {
            let body = ReplyBody::Bytes(&buffer[..*len]);
            self.answer(ticket, context, reports, Ok(body));
            return;
        }
        self.answer(ticket, context, reports, outcome.map(|()| ReplyBody::None));
    }

    /// Whether a module is being loaded into the context.
    fn is_loading(&self, context: ContextId) -> bool {
        self.waiting
            .iter()
            .any(|it| matches!(&it.then, Then::ModuleLoad(load) if load.context == context))
    }

    /// Whether an answer waits for this event.
    pub(crate) fn is_awaited(&self, event: EventHandle) -> bool {
        self.waiting
            .iter()
            .any(|it| it.event.is_some_and(|(awaited, _)| awaited == event))
    }

    /// Destroys an event that was replaced or destroyed while it was waited for.
    fn let_go(&mut self, event: EventHandle) {
        if !self.is_awaited(event)
            && let Some(index) = self.retired.iter().position(|it| *it == event)
        {
            self.retired.swap_remove(index);
            // The program has no handle of the event any more, so a failure is not reported.
            let _ = self.site.live.driver.destroy_event(event);
        }
    }

    /// Has the driver write what the kernels of a dead context have printed, and which assertion has failed.
    pub(crate) fn last_words(&mut self, context: ContextId) {
        if self.site.live.enter(context).is_ok() {
            // It fails with the fault, which is recorded already. No work runs that it could block on.
            let _ = self.site.live.driver.synchronize_context();
        }
    }

    /// The driver prints device `printf` when it synchronises; so this synchronises, once everything is idle anyway.
    fn flush_output(&mut self, context: Option<ContextId>) {
        let Some(context) = context.filter(|context| self.printing.contains(context)) else {
            return;
        };
        let busy = !self.queues.busy_streams(Some(context)).is_empty();
        let idle = !busy && !self.has_orphans(Orphans::All, usize::MAX);
        if self.site.settle_images() {
            self.printing = printing::contexts(&self.site);
        }
        if idle && self.faults.fatal(context).is_none() && self.site.live.enter(context).is_ok() {
            // An error here belongs to work that is done, and has been reported by its event.
            let _ = self.site.live.driver.synchronize_context();
        }
    }
}
