//! Events: each recording is a mark in a stream.

use std::sync::{Arc, LazyLock};

use fermata_abi::sys::driver as cu;
use parking_lot::Mutex;

use crate::context::Context;
use crate::driver::{self, Driver};
use crate::error::{INVALID_HANDLE, INVALID_VALUE, NOT_READY, Result};
use crate::handle::{self, Table, Tag};
use crate::mark::Mark;
use crate::recordings::Recordings;

/// An event.
#[derive(Debug)]
pub struct Event {
    /// Its handle.
    pub handle: u64,
    /// Its context.
    pub context: Arc<Context>,
    /// `CU_EVENT_*`
    pub flags: u32,
    /// Its recordings, if it is an interprocess event; it then has no `mark`.
    pub between: Option<Arc<Recordings>>,
    mark: Mutex<Option<Arc<Mark>>>,
}

impl Driver {
    /// Events.
    pub fn events(&self) -> &'static Table<Event> {
        static ALL: LazyLock<Table<Event>> = LazyLock::new(Table::default);
        &ALL
    }
}

impl Event {
    /// Makes an event that has not been recorded.
    ///
    /// # Errors
    /// The driver is not running, or there is no memory for an event of several processes.
    pub fn create(context: &Arc<Context>, flags: u32) -> Result<Arc<Self>> {
        let between = match flags & cu::CU_EVENT_INTERPROCESS {
            0 => None,
            _ => Some(Recordings::create()?),
        };
        Self::make(context, flags, between)
    }

    /// Makes an event for an interprocess event of another process.
    ///
    /// # Errors
    /// The driver is not running.
    pub fn open(context: &Arc<Context>, recordings: Recordings) -> Result<Arc<Self>> {
        let flags = cu::CU_EVENT_INTERPROCESS | cu::CU_EVENT_DISABLE_TIMING;
        Self::make(context, flags, Some(recordings))
    }

    fn make(context: &Arc<Context>, flags: u32, between: Option<Recordings>) -> Result<Arc<Self>> {
        let event = Arc::new(Self {
            handle: handle::fresh(Tag::Event),
            context: Arc::clone(context),
            flags,
            between: between.map(Arc::new),
            mark: Mutex::default(),
        });
        driver::get()?
            .events()
            .insert(event.handle, Arc::clone(&event));
        Ok(event)
    }

    /// The event behind a handle.
    ///
    /// # Errors
    /// There is none.
    pub fn resolve(handle: cu::CUevent) -> Result<Arc<Self>> {
        driver::get()?
            .events()
            .get(handle.addr() as u64)
            .ok_or(INVALID_HANDLE)
    }

    /// Begins a recording, which replaces earlier ones.
    pub fn begin(&self) -> Arc<Mark> {
        if let Some(recordings) = &self.between {
            return Mark::of(recordings, recordings.begin());
        }
        let mark = Arc::new(Mark::default());
        *self.mark.lock() = Some(Arc::clone(&mark));
        mark
    }

    /// The last recording.
    pub fn mark(&self) -> Option<Arc<Mark>> {
        let Some(recordings) = &self.between else {
            return self.mark.lock().clone();
        };
        let last = recordings.last();
        (last > 0).then(|| Mark::of(recordings, last))
    }

    /// Whether the last recording has been passed; true when there was none.
    pub fn done(&self) -> bool {
        self.mark().is_none_or(|mark| mark.is_passed())
    }

    /// Waits for the last recording.
    ///
    /// # Errors
    /// The fault the context has met.
    pub fn synchronize(&self) -> Result {
        if let Some(mark) = self.mark() {
            mark.wait();
        }
        self.context.flush_output();
        self.context.check()
    }

    /// Milliseconds from the recording of `start` to that of `end`.
    ///
    /// # Errors
    /// One keeps no time or was never recorded (`INVALID_HANDLE`), or has not been passed yet.
    pub fn elapsed(start: &Self, end: &Self) -> Result<f32> {
        let timed = |event: &Self| event.flags & cu::CU_EVENT_DISABLE_TIMING == 0;
        if !timed(start) || !timed(end) || start.context.id != end.context.id {
            return Err(INVALID_HANDLE);
        }
        let (start, end) = (
            start.mark().ok_or(INVALID_HANDLE)?,
            end.mark().ok_or(INVALID_HANDLE)?,
        );
        let (start, end) = (start.time().ok_or(NOT_READY)?, end.time().ok_or(NOT_READY)?);
        let forward = end.saturating_duration_since(start).as_secs_f64();
        let backward = start.saturating_duration_since(end).as_secs_f64();
        Ok(((forward - backward) * 1e3) as f32)
    }

    /// Whether these flags are ones that exist.
    ///
    /// # Errors
    /// They are not, or ask for an event of several processes that keeps time.
    pub fn check_flags(flags: u32) -> Result {
        let known =
            cu::CU_EVENT_BLOCKING_SYNC | cu::CU_EVENT_DISABLE_TIMING | cu::CU_EVENT_INTERPROCESS;
        // Events of several processes keep no time.
        let untimed = flags & cu::CU_EVENT_DISABLE_TIMING != 0;
        if flags & !known != 0 || flags & cu::CU_EVENT_INTERPROCESS != 0 && !untimed {
            return Err(INVALID_VALUE);
        }
        Ok(())
    }
}
