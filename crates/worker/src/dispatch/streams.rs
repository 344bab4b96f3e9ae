//! Operations on streams and events, and host callbacks.

use std::sync::Arc;

use fermata_abi::op::{ContextId, EventId, ReplyBody, STREAM_LEGACY, StreamId, StreamRef};
use fermata_abi::sys::driver as cu;
use fermata_device::EventHandle;
use fermata_engine::LiveStream;
use fermata_state::{Event, Stream};
use fermata_wire::Ticket;

use super::{DONE, Reaction, Step};
use crate::errors::OpError;
use crate::server::Server;
use crate::waiting::{Orphans, Then, Waiting};

impl Server {
    pub(super) fn stream_create(
        &mut self,
        stream: StreamId,
        context: ContextId,
        flags: u32,
        priority: i32,
    ) -> Step {
        self.check_new_stream(stream)?;
        let live = &mut self.site.live;
        live.enter(context)?;
        let handle = live.driver.create_stream(flags, priority)?;
        live.streams.insert(stream, LiveStream { handle, context });
        self.site.session.streams.insert(
            stream,
            Stream {
                context,
                flags,
                priority,
            },
        )?;
        DONE
    }

    /// Checks that a handle names no stream.
    pub(super) fn check_new_stream(&self, stream: StreamId) -> Result<(), OpError> {
        match self.site.session.streams.contains(stream) || stream == STREAM_LEGACY {
            true => Err(OpError::invalid(format!(
                "there is a stream {stream:#x} already"
            ))),
            false => Ok(()),
        }
    }

    pub(super) fn stream_destroy(&mut self, stream: StreamId) -> Step {
        let Stream { context, flags, .. } = *self.site.session.streams.get(stream)?;
        let key = StreamRef { context, stream };
        // The stream's work goes on, and a wait for the context includes it.
        let marks = self.mark(&[key])?;
        if !marks.is_empty() {
            let apart = flags & cu::CU_STREAM_NON_BLOCKING != 0;
            let then = Then::Orphan { apart };
            let context = Some(context);
            self.waiting.push(Waiting {
                ticket: None,
                context,
                orphans: Orphans::Ignored,
                reports: false,
                marks,
                event: None,
                then,
                failed: None,
                looks: 0,
            });
            self.firm_up(key)?;
        }
        self.site.session.remove_stream(stream)?;
        let live = &mut self.site.live;
        live.enter(context)?;
        if let Some(found) = live.streams.remove(&stream) {
            live.driver.destroy_stream(found.handle)?;
        }
        for pace in self.queues.forget(key) {
            self.events.put(context, pace);
        }
        DONE
    }

    pub(super) fn stream_sync(&mut self, stream: StreamRef, ticket: Option<Ticket>) -> Step {
        self.site.live.stream(stream)?;
        let context = stream.context;
        if stream.stream != STREAM_LEGACY {
            return self.after(&[stream], Some(context), true, Then::Answer, ticket);
        }
        // A wait for the default stream includes all streams that it waits for (CUDA driver API, "Stream synchronization
        // behavior"). Each gets a mark of its own, because an event in the default stream would make the streams wait for
        // each other.
        let joined = self.joined(context);
        let marks = self.mark(&joined)?;
        self.waiting.push(Waiting {
            ticket,
            context: Some(context),
            orphans: Orphans::Joined(context),
            reports: true,
            marks,
            event: None,
            then: Then::Answer,
            failed: None,
            looks: 0,
        });
        Ok(Reaction::Later)
    }

    /// The busy streams that a context's default stream waits for, itself among them.
    fn joined(&self, context: ContextId) -> Vec<StreamRef> {
        let mut streams = self.queues.busy_streams(Some(context));
        let session = &self.site.session;
        streams.retain(|it| {
            let known = session.streams.get(it.stream);
            known.map_or(true, |it| it.flags & cu::CU_STREAM_NON_BLOCKING == 0)
        });
        streams
    }

    pub(super) fn stream_query(&mut self, stream: StreamRef) -> Step {
        let handle = self.site.live.stream(stream)?;
        let context = stream.context;
        let busy = match stream.stream {
            STREAM_LEGACY => {
                !self.joined(context).is_empty()
                    || self.has_orphans(Orphans::Joined(context), usize::MAX)
            }
            _ => self.queues.busy(stream).is_some(),
        };
        if busy {
            self.site.live.driver.query_stream(handle)?;
        }
        DONE
    }

    pub(super) fn stream_wait(&mut self, stream: StreamRef, event: EventId, flags: u32) -> Step {
        let live = &mut self.site.live;
        let event = live.event(event)?;
        let handle = live.stream(stream)?;
        live.driver.stream_wait(handle, event, flags)?;
        self.issued(stream, false, None)
    }

    pub(super) fn event_create(&mut self, event: EventId, context: ContextId, flags: u32) -> Step {
        if self.site.session.events.contains(event) {
            return Err(OpError::invalid(format!(
                "there is an event {event:#x} already"
            )));
        }
        let live = &mut self.site.live;
        live.enter(context)?;
        let handle = live.driver.create_event(flags)?;
        live.events.insert(event, (handle, context));
        self.site.session.events.insert(
            event,
            Event {
                context,
                flags,
                recorded: false,
            },
        )?;
        DONE
    }

    pub(super) fn event_destroy(&mut self, event: EventId) -> Step {
        self.site.session.remove_event(event)?;
        self.keep_offers();
        let live = &mut self.site.live;
        if let Some((handle, context)) = live.events.remove(&event) {
            live.enter(context)?;
            if self.is_awaited(handle) {
                self.retired.push(handle);
            } else {
                self.site.live.driver.destroy_event(handle)?;
            }
        }
        DONE
    }

    pub(super) fn event_record(&mut self, event: EventId, stream: StreamRef, flags: u32) -> Step {
        let handle = self.before_record(event)?;
        let live = &mut self.site.live;
        let on = live.stream(stream)?;
        live.driver.record_event(handle, on, flags)?;
        self.site.session.events.get_mut(event)?.recorded = true;
        self.issued(stream, false, None)
    }

    /// The driver's event to be recorded now for the program's event.
    pub(super) fn before_record(&mut self, event: EventId) -> Result<EventHandle, OpError> {
        let handle = self.site.live.event(event)?;
        if !self.is_awaited(handle) {
            return Ok(handle);
        }
        // Waits under way are for the record before this one. Waits for an event of several processes use another event.
        if self.is_in_graph(event) {
            self.move_waits(event)?;
            return Ok(handle);
        }
        self.replace_event(event)
    }

    /// Has the waits under way for an event wait for another one, which completes with the event's current recording: the
    /// driver's executable graphs name the event, so it cannot be replaced.
    fn move_waits(&mut self, event: EventId) -> Result<(), OpError> {
        let handle = self.site.live.event(event)?;
        let context = self.site.session.events.get(event)?.context;
        let own = self.recording_of(handle, context)?;
        let awaited = self.waiting.iter_mut().filter_map(|it| it.event.as_mut());
        for (awaited, _) in awaited.filter(|(awaited, _)| *awaited == handle) {
            *awaited = own;
        }
        Ok(())
    }

    fn replace_event(&mut self, event: EventId) -> Result<EventHandle, OpError> {
        let Event { context, flags, .. } = *self.site.session.events.get(event)?;
        let live = &mut self.site.live;
        live.enter(context)?;
        let fresh = live.driver.create_event(flags)?;
        if let Some((old, _)) = live.events.insert(event, (fresh, context)) {
            self.retired.push(old);
        }
        Ok(fresh)
    }

    pub(super) fn event_sync(&mut self, event: EventId, ticket: Option<Ticket>) -> Step {
        let Event { context, flags, .. } = *self.site.session.events.get(event)?;
        let mut handle = self.site.live.event(event)?;
        if flags & cu::CU_EVENT_INTERPROCESS != 0 {
            handle = self.recording_of(handle, context)?;
        }
        self.waiting.push(Waiting {
            ticket,
            context: Some(context),
            orphans: Orphans::Ignored,
            reports: true,
            marks: Vec::new(),
            event: Some((handle, context)),
            then: Then::Answer,
            failed: None,
            looks: 0,
        });
        Ok(Reaction::Later)
    }

    /// A new event that completes with the current recording of `event`, whatever is recorded later, here or in another
    /// process. It is destroyed when nothing waits for it any more.
    fn recording_of(
        &mut self,
        event: EventHandle,
        context: ContextId,
    ) -> Result<EventHandle, OpError> {
        let live = &mut self.site.live;
        live.enter(context)?;
        let driver = &live.driver;
        let stream = driver.create_stream(cu::CU_STREAM_NON_BLOCKING, 0)?;
        let own = driver.create_event(cu::CU_EVENT_DISABLE_TIMING);
        let recorded = own.and_then(|own| {
            let behind = driver.stream_wait(stream, event, 0);
            let recorded = behind.and_then(|()| driver.record_event(own, stream, 0));
            recorded.map(|()| own).inspect_err(|_| {
                // The first failure is the one to report.
                let _ = driver.destroy_event(own);
            })
        });
        // Work that is in the stream is still done.
        let gone = driver.destroy_stream(stream);
        let own = recorded?;
        self.retired.push(own);
        gone?;
        Ok(own)
    }

    pub(super) fn event_query(&mut self, event: EventId) -> Step {
        let live = &mut self.site.live;
        let handle = live.event(event)?;
        live.driver.query_event(handle)?;
        DONE
    }

    pub(super) fn event_elapsed(&mut self, start: EventId, end: EventId) -> Step {
        let live = &mut self.site.live;
        let (start, end) = (live.event(start)?, live.event(end)?);
        Ok(Reaction::Answer(ReplyBody::F32(
            live.driver.elapsed(start, end)?,
        )))
    }

    pub(super) fn host_call(&mut self, stream: StreamRef, id: u64) -> Step {
        let live = &mut self.site.live;
        let handle = live.stream(stream)?;
        let callbacks = Arc::clone(&self.callbacks);
        live.driver
            .launch_host(handle, Box::new(move || callbacks.call(id)))?;
        self.issued(stream, false, None)
    }
}
