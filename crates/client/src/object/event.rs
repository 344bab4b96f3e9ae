//! The program's events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fermata_abi::op::{ContextId, EventId, Op, SharedEvent};
use fermata_abi::sys::driver::{
    CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS, CUDA_ERROR_INVALID_HANDLE,
    CUDA_ERROR_NOT_SUPPORTED, CUevent,
};

use crate::handles::{self, Table};
use crate::link;
use crate::link::fault;
use crate::object::context::Context;
use crate::object::graphs::{Graphs, any_capture};
use crate::object::shared;
use crate::result::Result;

/// All events.
#[derive(Debug, Default)]
pub struct Events(Table<EventId, Event>);

/// An event.
#[derive(Debug)]
pub struct Event {
    /// Its handle.
    pub handle: EventId,
    /// The context it was made in.
    pub context: Arc<Context>,
    /// `CUevent_flags`.
    pub flags: u32,
    recorded: AtomicBool,
}

impl Event {
    /// Notes that it has been recorded in a stream that was not being captured.
    pub fn note_recorded(&self) {
        self.recorded.store(true, Ordering::Relaxed);
    }

    /// Whether it is an interprocess event.
    pub fn is_between(&self) -> bool {
        self.flags & CU_EVENT_INTERPROCESS != 0
    }

    /// Sends an operation that creates, records or waits for it. For an interprocess event the driver must have the operation
    /// when the call returns, because other processes see its effect.
    pub fn send(&self, op: &Op<'_>) -> Result {
        match self.is_between() {
            true => link::ask(op, link::nothing),
            false => link::post(op),
        }
    }

    /// Whether it has been recorded.
    pub fn is_recorded(&self) -> bool {
        self.recorded.load(Ordering::Relaxed)
    }
}

impl Events {
    /// A new event, with flags that the driver knows.
    pub fn create(&self, context: &Arc<Context>, flags: u32) -> Result<Arc<Event>> {
        let handle = handles::fresh();
        let event = Event {
            handle,
            context: context.home().clone(),
            flags,
            recorded: AtomicBool::new(false),
        };
        event.send(&Op::EventCreate {
            event: handle,
            context: context.handle,
            flags,
        })?;
        Ok(self.insert(event))
    }

    /// An event of another process.
    pub fn open(&self, context: &Arc<Context>, given: &SharedEvent) -> Result<Arc<Event>> {
        let handle = handles::fresh();
        let op = Op::EventOpen {
            event: handle,
            context: context.handle,
            shared: &given.encode(),
        };
        let opened = link::ask(&op, link::nothing);
        opened.inspect_err(|code| shared::tell("cuIpcOpenEventHandle", "an event", *code))?;
        Ok(self.insert(Event {
            handle,
            context: context.home().clone(),
            flags: CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING,
            // Its owner may have recorded it.
            recorded: AtomicBool::new(true),
        }))
    }

    fn insert(&self, event: Event) -> Arc<Event> {
        let event = Arc::new(event);
        self.0.insert(event.handle, event.clone());
        event
    }

    /// Ends an event.
    pub fn destroy(&self, graphs: &Graphs, event: CUevent) -> Result {
        let event = self
            .0
            .remove(handles::of(event), CUDA_ERROR_INVALID_HANDLE)?;
        if any_capture() {
            graphs.lock().captures.remove_event(event.handle);
        }
        link::post(&Op::EventDestroy {
            event: event.handle,
        })?;
        fault::check(event.context.handle)
    }

    /// The event behind a handle.
    pub fn get(&self, event: CUevent) -> Result<Arc<Event>> {
        self.0.get(handles::of(event), CUDA_ERROR_INVALID_HANDLE)
    }

    /// The event behind a handle, for a node of a graph. Refuses interprocess events: a graph launch does not wait until the
    /// driver has it.
    pub fn get_for_graph(&self, event: CUevent) -> Result<EventId> {
        let event = self.get(event)?;
        match event.is_between() {
            true => Err(CUDA_ERROR_NOT_SUPPORTED),
            false => Ok(event.handle),
        }
    }

    /// Forgets the events of a context that has ended.
    pub fn forget(&self, context: ContextId) {
        self.0.remove_if(|event| event.context.handle == context);
    }
}
