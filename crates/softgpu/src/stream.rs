//! Streams: queues of work, each executed in order by a thread of its own.
//!
//! ```text
//!   submit ──► job {after: points of other streams} ──► thread: wait for the points, execute ──► point reached
//! ```
//!
//! A *point* is a place in a stream's queue; waiting for it waits for everything submitted up to there.
//! Points only ever lead to work submitted earlier, so streams cannot wait for each other in a circle.
//! The legacy default stream waits for all blocking streams and they wait for it: both are points taken
//! at submission, under the context's lock.
//!
//! Threads start with the first job and end when idle; they block all signals, which belong to the
//! program's threads.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use fermata_abi::sys::driver as cu;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::context;
use crate::driver::{self, Driver};
use crate::error::{CuError, INVALID_HANDLE, NOT_SUPPORTED, OPERATING_SYSTEM, Result};
use crate::green::Green;
use crate::handle::{self, Table, Tag};
use crate::objects::{Context, Job, Queue, QueueState, Streams, Work};
pub use crate::objects::{Point, Stream, StreamKind};

/// How long a thread waits for more work before it ends.
const IDLE: Duration = Duration::from_millis(500);
/// Streams without a handle or with nothing to do are forgotten when more than this many are known.
const TIDY: usize = 64;

impl Point {
    /// Whether everything up to here is done.
    pub fn reached(&self) -> bool {
        self.queue.state.lock().completed >= self.number
    }

    /// Waits until everything up to here is done. Work of a dead context counts as done.
    pub fn wait(&self) {
        self.wait_until(None);
    }

    /// As [`Point::wait`]; false if it is not done by `until`.
    pub fn wait_until(&self, until: Option<Instant>) -> bool {
        let mut state = self.queue.state.lock();
        while state.completed < self.number {
            let Some(until) = until else {
                self.queue.changed.wait(&mut state);
                continue;
            };
            if self.queue.changed.wait_until(&mut state, until).timed_out() {
                return state.completed >= self.number;
            }
        }
        true
    }
}

impl Driver {
    /// Streams that were created; default streams have no handles.
    pub fn streams(&self) -> &'static Table<Stream> {
        static ALL: LazyLock<Table<Stream>> = LazyLock::new(Table::default);
        &ALL
    }
}

impl Stream {
    /// A stream of `context`, not yet known to it.
    pub fn new(context: &Arc<Context>, kind: StreamKind, flags: u32, priority: i32) -> Arc<Self> {
        Self::new_in(context, None, kind, flags, priority)
    }

    /// As [`Stream::new`], in a green context of `context`.
    pub fn new_in(
        context: &Arc<Context>,
        green: Option<&Arc<Green>>,
        kind: StreamKind,
        flags: u32,
        priority: i32,
    ) -> Arc<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let created = matches!(kind, StreamKind::Blocking | StreamKind::NonBlocking);
        Arc::new(Self {
            handle: if created {
                handle::fresh(Tag::Stream)
            } else {
                0
            },
            context: Arc::clone(context),
            green: green.cloned(),
            kind,
            flags,
            priority: AtomicI32::new(priority),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            queue: Arc::new(Queue {
                state: Mutex::default(),
                changed: Condvar::new(),
            }),
            destroyed: AtomicBool::new(false),
        })
    }

    /// Makes a stream for the program.
    ///
    /// # Errors
    /// The driver is not running, or a green context would have a blocking stream: how that is ordered with the default
    /// streams, no documentation says.
    pub fn create(
        context: &Arc<Context>,
        green: Option<&Arc<Green>>,
        flags: u32,
        priority: i32,
    ) -> Result<Arc<Self>> {
        let non_blocking = flags & cu::CU_STREAM_NON_BLOCKING != 0;
        let kind = if non_blocking {
            StreamKind::NonBlocking
        } else {
            StreamKind::Blocking
        };
        if green.is_some() && !non_blocking {
            return Err(NOT_SUPPORTED);
        }
        let stream = Self::new_in(context, green, kind, flags, priority);
        driver::get()?
            .streams()
            .insert(stream.handle, Arc::clone(&stream));
        context.streams.lock().others.push(Arc::clone(&stream));
        let awaited = green.map(|green| green.awaited.lock().clone());
        for mark in awaited.into_iter().flatten() {
            stream.submit(Work::Wait(mark))?;
        }
        Ok(stream)
    }

    /// The stream a handle means: 0 and 1 are the current context's legacy default stream, 2 is the
    /// thread's own.
    ///
    /// # Errors
    /// No such stream, no current context, or the context is dead.
    pub fn resolve(handle: cu::CUstream) -> Result<Arc<Self>> {
        let stream = Self::resolve_any(handle)?;
        stream.context.check()?;
        Ok(stream)
    }

    /// [`Stream::resolve`] for calls that a dead context still answers.
    ///
    /// # Errors
    /// No such stream or no current context.
    pub fn resolve_any(handle: cu::CUstream) -> Result<Arc<Self>> {
        let driver = driver::get()?;
        match handle.addr() {
            0 | 1 => match Green::current(driver) {
                Some(green) => green.default_stream(),
                None => Ok(context::current_any()?.legacy_stream()),
            },
            // As the driver: see `cuStreamGetCtx_v2`.
            2 if Green::current(driver).is_some() => Err(INVALID_HANDLE),
            2 => Ok(context::current_any()?.per_thread_stream()),
            other => {
                let stream = driver.streams().get(other as u64).ok_or(INVALID_HANDLE)?;
                let green = stream.green.as_ref();
                green.map_or(Ok(()), |green| green.check())?;
                Ok(stream)
            }
        }
    }

    /// Puts work at the end of the queue.
    ///
    /// # Errors
    /// The context is dead, or no thread could be started.
    pub fn submit(&self, work: Work) -> Result<Point> {
        self.submit_after(work, Vec::new())
    }

    /// Puts work at the end of the queue that waits for points of other streams, too.
    ///
    /// # Errors
    /// As [`Stream::submit`].
    pub fn submit_after(&self, work: Work, points: Vec<Point>) -> Result<Point> {
        self.submit_made(points, || work)
    }

    /// As [`Stream::submit_after`], with work that is made under the queue's lock: what `make` publishes is known to others
    /// only when the work has its place in the queue.
    ///
    /// # Errors
    /// As [`Stream::submit`]; nothing was made then.
    pub fn submit_made(
        &self,
        mut points: Vec<Point>,
        make: impl FnOnce() -> Work,
    ) -> Result<Point> {
        self.context.check()?;
        let (streams, mut state) = self.room();
        points.extend(self.implied(&streams));
        if !state.running {
            start(&self.queue, &self.context)?;
            state.running = true;
        }
        state.jobs.push_back(Job {
            after: points,
            work: make(),
        });
        state.submitted += 1;
        let number = state.submitted;
        drop(state);
        drop(streams);
        self.queue.changed.notify_all();
        Ok(Point {
            queue: Arc::clone(&self.queue),
            number,
        })
    }

    /// Waits until the queue has room, and returns both locks for the caller, who adds to it.
    fn room(&self) -> (MutexGuard<'_, Streams>, MutexGuard<'_, QueueState>) {
        let limit = match self.context.device.settings.queue {
            0 => u64::MAX,
            limit => limit,
        };
        loop {
            let streams = self.context.streams.lock();
            let mut state = self.queue.state.lock();
            if state.submitted - state.completed < limit {
                return (streams, state);
            }
            // Other threads must be able to use the context meanwhile.
            drop(streams);
            self.queue.changed.wait(&mut state);
        }
    }

    /// Points that the rules of default streams make the next job wait for.
    fn implied(&self, streams: &Streams) -> Vec<Point> {
        let open = |point: &Point| !point.reached();
        match self.kind {
            StreamKind::NonBlocking => Vec::new(),
            StreamKind::Legacy => {
                let blocking = streams
                    .others
                    .iter()
                    .filter(|stream| stream.kind != StreamKind::NonBlocking);
                blocking.map(|stream| stream.end()).filter(open).collect()
            }
            StreamKind::Blocking | StreamKind::PerThread(_) => streams
                .legacy()
                .map(|stream| stream.end())
                .filter(open)
                .into_iter()
                .collect(),
        }
    }

    /// Executes work and returns when it is done. Where nothing is before it, the calling thread does it
    /// itself, which saves two changes of thread.
    ///
    /// # Errors
    /// As [`Stream::submit`], or the fault that the work met.
    pub fn execute(&self, work: Work) -> Result {
        if !self.borrow()? {
            self.submit(work)?.wait();
            return self.context.check();
        }
        run_work(&work, &self.context);
        let mut state = self.queue.state.lock();
        state.completed += 1;
        state.borrowed = false;
        drop(state);
        self.queue.changed.notify_all();
        self.context.check()
    }

    /// Takes the queue's turn for the next job, if there is nothing to wait for.
    fn borrow(&self) -> Result<bool> {
        self.context.check()?;
        let streams = self.context.streams.lock();
        if !self.implied(&streams).is_empty() {
            return Ok(false);
        }
        let mut state = self.queue.state.lock();
        if state.completed != state.submitted {
            return Ok(false);
        }
        state.submitted += 1;
        state.borrowed = true;
        Ok(true)
    }

    /// The end of the queue as it is now.
    pub fn end(&self) -> Point {
        let number = self.queue.state.lock().submitted;
        Point {
            queue: Arc::clone(&self.queue),
            number,
        }
    }

    /// Points that a synchronisation with this stream waits for: for the legacy default stream, those of
    /// all blocking streams too.
    pub fn ends(&self) -> Vec<Point> {
        if self.kind != StreamKind::Legacy {
            return vec![self.end()];
        }
        let streams = self.context.streams.lock();
        let blocking = streams
            .others
            .iter()
            .filter(|stream| stream.kind != StreamKind::NonBlocking);
        blocking
            .map(|stream| stream.end())
            .chain([self.end()])
            .collect()
    }

    /// Waits for all work submitted so far.
    ///
    /// # Errors
    /// The fault the context has met.
    pub fn synchronize(&self) -> Result {
        for point in self.ends() {
            point.wait();
        }
        self.context.flush_output();
        self.context.check()
    }

    /// Handle of the context that it was created in; of a green one, as a context.
    pub fn context_handle(&self) -> u64 {
        let green = self.green.as_ref();
        green.map_or(self.context.handle, |green| green.converted)
    }

    /// Removes the handle; work already submitted is still executed.
    pub fn destroy(&self) {
        self.destroyed.store(true, Ordering::Relaxed);
        let mut streams = self.context.streams.lock();
        if self.end().reached() {
            streams.others.retain(|stream| stream.id != self.id);
        } else if streams.others.len() > TIDY {
            let done = |s: &Stream| s.destroyed.load(Ordering::Relaxed) && s.end().reached();
            streams.others.retain(|stream| !done(stream));
        }
    }
}

/// Starts the thread of a queue.
fn start(queue: &Arc<Queue>, context: &Arc<Context>) -> Result {
    let (queue, context) = (Arc::clone(queue), Arc::clone(context));
    let blocked = SignalsBlocked::new();
    let thread = std::thread::Builder::new().name("softgpu-stream".to_owned());
    let started = thread.spawn(move || run(&queue, &context));
    drop(blocked);
    started.map(drop).map_err(|_| OPERATING_SYSTEM)
}

fn run(queue: &Queue, context: &Arc<Context>) {
    while let Some(job) = next(queue) {
        for point in &job.after {
            point.wait();
        }
        run_work(&job.work, context);
        // Who waits for the end finds memory freed that only the work has kept. Functions of the program come after it.
        let held = job.work.held();
        drop(job);
        queue.state.lock().completed += 1;
        queue.changed.notify_all();
        drop(held);
    }
}

/// Executes work; a failure ends the context.
fn run_work(work: &Work, context: &Arc<Context>) {
    let run = std::panic::AssertUnwindSafe(|| work.run(context));
    let result = std::panic::catch_unwind(run).unwrap_or(Err(CuError(cu::CUDA_ERROR_UNKNOWN)));
    if let Err(error) = result {
        context.fail(error);
    }
}

/// The next job; nothing when there has been none for a while, and then the thread counts as ended.
fn next(queue: &Queue) -> Option<Job> {
    let mut state = queue.state.lock();
    loop {
        if !state.borrowed
            && let Some(job) = state.jobs.pop_front()
        {
            return Some(job);
        }
        if queue.changed.wait_for(&mut state, IDLE).timed_out() && state.jobs.is_empty() {
            state.running = false;
            return None;
        }
    }
}

/// Blocks all signals in the calling thread while it lives; threads started meanwhile inherit that.
struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    fn new() -> Self {
        // SAFETY: both sets are plain values on this stack; faults stay deliverable because kernels'
        // bad accesses arrive as signals of the thread that runs them.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut old: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut all);
            for fault in [
                libc::SIGSEGV,
                libc::SIGBUS,
                libc::SIGFPE,
                libc::SIGILL,
                libc::SIGTRAP,
            ] {
                libc::sigdelset(&mut all, fault);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
            Self(old)
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: restores the mask that was taken in `new` on this thread.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}
