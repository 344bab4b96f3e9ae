//! Events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fermata_abi::op::{ContextId, EventId, Op};
use fermata_abi::sys::driver::{CUDA_ERROR_INVALID_HANDLE, CUevent};

use crate::handles::{self, Table};
use crate::link;
use crate::link::fault;
use crate::object::context::Context;
use crate::object::graphs::{Graphs, any_capture};
use crate::result::Result;

/// All events.
#[derive(Debug, Default)]
pub struct Events(Table<EventId, Event>);

/// An event.
#[derive(Debug)]
pub struct Event {
    /// Its handle.
    pub handle: EventId,
    /// Where it was made.
    pub context: Arc<Context>,
    /// `CUevent_flags`.
    pub flags: u32,
    recorded: AtomicBool,
}

impl Event {
    /// It has been recorded in a stream that was not being captured.
    pub fn note_recorded(&self) {
        self.recorded.store(true, Ordering::Relaxed);
    }

    /// Whether it ever was.
    pub fn is_recorded(&self) -> bool {
        self.recorded.load(Ordering::Relaxed)
    }
}

impl Events {
    /// A new event.
    pub fn create(&self, context: &Arc<Context>, flags: u32) -> Result<Arc<Event>> {
        let handle = handles::fresh();
        link::post(&Op::EventCreate {
            event: handle,
            context: context.handle,
            flags,
        })?;
        let event = Arc::new(Event {
            handle,
            context: context.clone(),
            flags,
            recorded: AtomicBool::new(false),
        });
        self.0.insert(handle, event.clone());
        Ok(event)
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

    /// Forgets the events of a context that is gone.
    pub fn forget(&self, context: ContextId) {
        self.0.remove_if(|event| event.context.handle == context);
    }
}
