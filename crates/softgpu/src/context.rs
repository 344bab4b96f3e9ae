//! Contexts: each owns objects on one device, which end with it.
//!
//! A context that has met a fault keeps the fault's code: every call on it returns that code until it is
//! destroyed or, for the primary context, reset.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use fermata_abi::sys::driver as cu;
use parking_lot::Mutex;

use crate::device::Device;
use crate::driver::{self, Driver};
use crate::error::{CuError, INVALID_CONTEXT, INVALID_VALUE, Result};
use crate::handle::{self, Table, Tag};
pub use crate::objects::{Context, Streams};
use crate::objects::{Point, Stream, StreamKind};
use crate::primary::Primary;

/// Device output kept before it is written.
const MOST_OUTPUT: usize = 1 << 20;

/// Default streams of one thread, which end with it.
#[derive(Debug, Default)]
struct OwnStreams(RefCell<Vec<Weak<Stream>>>);

impl Drop for OwnStreams {
    fn drop(&mut self) {
        for stream in self
            .0
            .get_mut()
            .drain(..)
            .filter_map(|stream| stream.upgrade())
        {
            stream.destroy();
        }
    }
}

thread_local! {
    static OWN_STREAMS: OwnStreams = OwnStreams::default();
    /// Handles of the contexts the thread has pushed, the current one last; 0 where none was current.
    static STACK: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

impl Driver {
    /// Contexts.
    pub fn contexts(&self) -> &'static Table<Context> {
        static ALL: LazyLock<Table<Context>> = LazyLock::new(Table::default);
        &ALL
    }
}

impl Context {
    /// A context that is not known yet.
    pub fn new(device: &Arc<Device>, handle: u64, primary: bool, flags: u32) -> Arc<Self> {
        Arc::new(Self {
            handle,
            device: Arc::clone(device),
            primary,
            id: Self::fresh_id(),
            flags: AtomicU32::new(flags),
            stop: AtomicBool::new(false),
            streams: Mutex::default(),
            peers: Mutex::default(),
            limits: Mutex::default(),
            cache_config: AtomicU32::new(0),
            output: Mutex::default(),
            fault: AtomicU32::new(0),
            gone: AtomicBool::new(false),
            attached: AtomicU32::new(0),
        })
    }

    /// A number that no other context has.
    pub fn fresh_id() -> u64 {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        NEXT_ID.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes a context that is not the primary one.
    ///
    /// # Errors
    /// The device is lost.
    pub fn create(driver: &Driver, device: &Arc<Device>, flags: u32) -> Result<Arc<Self>> {
        device.check()?;
        let context = Self::new(device, handle::fresh(Tag::Context), false, flags);
        driver
            .contexts()
            .insert(context.handle, Arc::clone(&context));
        Ok(context)
    }

    /// Whether it may be used.
    ///
    /// # Errors
    /// The code of the fault that killed it, or of its device's loss.
    pub fn check(&self) -> Result {
        match self.fault.load(Ordering::Acquire) {
            0 => self.device.check(),
            code => Err(CuError(code)),
        }
    }

    /// Whether its end has begun.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Ends it by a fault: from now on everything fails with `error`, and queued work is dropped.
    pub fn fail(&self, error: CuError) {
        let _ = self
            .fault
            .compare_exchange(0, error.0, Ordering::AcqRel, Ordering::Acquire);
        self.stop.store(true, Ordering::Relaxed);
        // Calls that would write it fail with the fault from now on.
        self.flush_output();
    }

    /// The legacy default stream.
    pub fn legacy_stream(self: &Arc<Self>) -> Arc<Stream> {
        let mut streams = self.streams.lock();
        let legacy = streams
            .legacy
            .get_or_insert_with(|| Stream::new(self, StreamKind::Legacy, 0, 0));
        Arc::clone(legacy)
    }

    /// The calling thread's own default stream.
    pub fn per_thread_stream(self: &Arc<Self>) -> Arc<Stream> {
        let kind = StreamKind::PerThread(std::thread::current().id());
        let mut streams = self.streams.lock();
        if let Some(stream) = streams.others.iter().find(|stream| stream.kind == kind) {
            return Arc::clone(stream);
        }
        let stream = Stream::new(self, kind, 0, 0);
        streams.others.push(Arc::clone(&stream));
        // A thread that is ending keeps no list any more; its stream stays until the context goes.
        let _ = OWN_STREAMS.try_with(|own| own.0.borrow_mut().push(Arc::downgrade(&stream)));
        stream
    }

    /// Waits for all work.
    ///
    /// # Errors
    /// The fault the context has met.
    pub fn synchronize(self: &Arc<Self>) -> Result {
        // Not under the lock: others may have to submit what this waits for.
        let points = self.streams.lock().ends();
        for point in points {
            point.wait();
        }
        self.flush_output();
        self.check()
    }

    /// All its streams.
    pub fn all_streams(&self) -> Vec<Arc<Stream>> {
        let streams = self.streams.lock();
        streams
            .legacy
            .iter()
            .chain(&streams.others)
            .cloned()
            .collect()
    }

    /// Takes bytes that a kernel printed. They are written when the program synchronises, or when there
    /// are many.
    pub fn print(&self, bytes: &[u8]) {
        let mut output = self.output.lock();
        output.extend_from_slice(bytes);
        if output.len() > MOST_OUTPUT {
            drop(output);
            self.flush_output();
        }
    }

    /// Writes what kernels have printed to standard output.
    pub fn flush_output(&self) {
        let mut output = self.output.lock();
        let mut rest = &output[..];
        while !rest.is_empty() {
            match write_stdout(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Nobody can be told that nobody listens.
                Err(_) => break,
            }
        }
        output.clear();
    }
}

impl Streams {
    /// Where all streams stand now.
    pub fn ends(&self) -> Vec<Point> {
        self.legacy
            .iter()
            .chain(&self.others)
            .map(|stream| stream.end())
            .collect()
    }

    /// The legacy default stream, if it was ever used.
    pub fn legacy(&self) -> Option<&Arc<Stream>> {
        self.legacy.as_ref()
    }
}

/// Writes to standard output past any buffer, so that device output keeps its order with that of others.
fn write_stdout(bytes: &[u8]) -> std::io::Result<usize> {
    // SAFETY: the slice is readable for its length.
    let count = unsafe { libc::write(libc::STDOUT_FILENO, bytes.as_ptr().cast(), bytes.len()) };
    usize::try_from(count).map_err(|_| std::io::Error::last_os_error())
}

/// Handle of the calling thread's current context; 0 when there is none.
pub fn current_handle() -> u64 {
    STACK.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

/// Checks that `handle` can be current: the context exists, or is a primary one, which need not be active.
///
/// # Errors
/// It is neither.
pub fn check_known(handle: u64) -> Result {
    let driver = driver::get()?;
    let known = driver.contexts().get(handle).is_some();
    match known || Primary::device_of(driver, handle).is_some() {
        true => Ok(()),
        false => Err(INVALID_CONTEXT),
    }
}

/// Makes `handle` (0: none) the current context in place of what is current.
pub fn set_current(handle: u64) {
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        if handle != 0 {
            stack.push(handle);
        }
    });
}

/// Makes `handle` current on top of what is current.
pub fn push_current(handle: u64) {
    STACK.with_borrow_mut(|stack| stack.push(handle));
}

/// Pops a context off the stack if it is the current one.
pub fn forget(handle: u64) {
    STACK.with_borrow_mut(|stack| stack.pop_if(|top| *top == handle));
}

/// Pops the current context and returns it.
///
/// # Errors
/// None is current.
pub fn pop_current() -> Result<u64> {
    STACK.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)
}

/// The current context, whatever state it is in.
///
/// # Errors
/// None is current, or it has been destroyed.
pub fn current_any() -> Result<Arc<Context>> {
    let driver = driver::get()?;
    match current_handle() {
        0 => Err(INVALID_CONTEXT),
        handle => driver
            .contexts()
            .get(handle)
            .ok_or(CuError(cu::CUDA_ERROR_CONTEXT_IS_DESTROYED)),
    }
}

/// The current context, in working order.
///
/// # Errors
/// None is current, it has been destroyed, or it has met a fault.
pub fn current() -> Result<Arc<Context>> {
    let context = current_any()?;
    context.check()?;
    Ok(context)
}

/// The context behind a handle; the current one for 0.
///
/// # Errors
/// There is none, or it has met a fault.
pub fn named(handle: u64) -> Result<Arc<Context>> {
    if handle == 0 {
        return current();
    }
    let context = driver::get()?
        .contexts()
        .get(handle)
        .ok_or(INVALID_CONTEXT)?;
    context.check()?;
    Ok(context)
}

/// Whether these `CU_CTX_*` flags are ones that exist.
///
/// # Errors
/// They are not.
pub fn check_flags(flags: u32) -> Result {
    let schedules = [
        0,
        cu::CU_CTX_SCHED_SPIN,
        cu::CU_CTX_SCHED_YIELD,
        cu::CU_CTX_SCHED_BLOCKING_SYNC,
    ];
    let known = cu::CU_CTX_FLAGS_MASK;
    if flags & !known != 0 || !schedules.contains(&(flags & cu::CU_CTX_SCHED_MASK)) {
        return Err(INVALID_VALUE);
    }
    Ok(())
}
