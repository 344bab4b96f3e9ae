//! The gate: parks the program's threads while the session is stopped.
//!
//! ```text
//!              enter (gate open)              leave
//!   outside ───────────────────────► inside ─────────► outside
//!      │ signal, gate closed            │ signal: nothing    │ gate closed
//!      ▼                                ▼                    ▼
//!   parked in the handler            runs on to its end    parked at the gate
//! ```
//! A thread that waits for the worker inside one of our functions rests there while the gate is closed: it counts as
//! parked, keeps its request, and goes on when the gate opens, or at once when its answer has come ([`rest`]).
//!
//! Everything the signal handler touches is a static or a leaked record, found by thread id: a
//! thread-local of a loaded library may need the allocator, which the interrupted code may hold.
//! A thread keeps its record until the last of its destructors (`ending`).

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering, compiler_fence};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::thread::futex;

use crate::thread::alloc;
use crate::thread::block;

/// `GATE`: threads pass.
const OPEN: u32 = 0;
/// `GATE`: threads park.
const CLOSED: u32 = 1;
/// `GATE`: threads pass and are counted, for tests.
const WATCHED: u32 = 2;

static GATE: AtomicU32 = AtomicU32::new(OPEN);
/// The value of `GATE` while it is open: [`OPEN`], or [`WATCHED`] in a test.
static WHEN_OPEN: AtomicU32 = AtomicU32::new(OPEN);
/// How often the gate has been closed.
static STOPS: AtomicU32 = AtomicU32::new(0);
static WATCHER: OnceLock<Watcher> = OnceLock::new();
static RECORDS: AtomicPtr<Record> = AtomicPtr::new(std::ptr::null_mut());

/// Places for the ids of parked threads.
const PLACES: usize = 4096;
/// Threads that rest inside one of our functions.
static RESTING: AtomicU32 = AtomicU32::new(0);
/// Threads that the stopper waits for, see [`await_parked`]; it sleeps on this word.
static EXPECTED: AtomicU32 = AtomicU32::new(0);
/// The thread that stops the others; it never rests.
static STOPPER: AtomicI32 = AtomicI32::new(0);
static PARKED: [AtomicI32; PLACES] = [const { AtomicI32::new(0) }; PLACES];

/// Sees each call before it begins, in tests.
#[derive(Debug)]
pub struct Watcher {
    /// Whether the call must first wait.
    pub arrives: fn() -> bool,
    /// How it waits.
    pub wait: fn(),
}

/// A thread that has called this library. Records are reused, never freed.
#[derive(Debug)]
struct Record {
    /// Thread id, 0 if the record is free.
    tid: AtomicI32,
    /// How many of our functions the thread is inside of.
    depth: AtomicU32,
    next: AtomicPtr<Record>,
}

thread_local! {
    /// The calling thread's record. Without a destructor, so that it can be used until the thread has ended; see `ending`.
    static KNOWN: Cell<Option<&'static Record>> = const { Cell::new(None) };
    /// Whether the record is there for a fork only.
    static FOR_FORK: Cell<bool> = const { Cell::new(false) };
}

/// While this lives, the thread is inside one of our functions.
pub struct Inside {
    record: &'static Record,
}

/// Marks the thread as inside; parks first if the gate is closed.
pub fn enter() -> Inside {
    enter_as(KNOWN.get().unwrap_or_else(|| {
        let record = register();
        KNOWN.set(Some(record));
        record
    }))
}

/// As [`enter`], but `None` at the thread's first call.
#[inline]
pub fn enter_again() -> Option<Inside> {
    KNOWN.get().map(enter_as)
}

#[inline]
fn enter_as(record: &'static Record) -> Inside {
    let depth = record.depth.load(Ordering::Relaxed);
    record.depth.store(depth + 1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    if depth == 0 && GATE.load(Ordering::Acquire) != OPEN {
        wait_outside(record);
    }
    Inside { record }
}

/// Releases the record of a thread that ends.
pub fn let_go() {
    if let Some(record) = KNOWN.take() {
        record.tid.store(0, Ordering::Release);
    }
}

/// Marks the thread as inside until [`thaw`], without parking: around a fork, because a parked thread must not hold the locks
/// that a fork takes.
pub fn freeze() {
    let record = KNOWN.get().unwrap_or_else(|| {
        let record = register();
        KNOWN.set(Some(record));
        FOR_FORK.set(true);
        record
    });
    record.depth.fetch_add(1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
}

/// Ends [`freeze`], in the parent or in the child. Does not park: a callback that forks must end for the stop.
pub fn thaw() {
    let Some(record) = KNOWN.get() else { return };
    compiler_fence(Ordering::SeqCst);
    record.depth.fetch_sub(1, Ordering::Relaxed);
    if FOR_FORK.take() {
        let_go();
    }
}

/// In a forked child: opens the gate, because there is no stopper, and frees all records but the calling thread's, which gets its
/// new thread id.
pub fn after_fork() {
    GATE.store(WHEN_OPEN.load(Ordering::Relaxed), Ordering::SeqCst);
    let own = KNOWN.get().map(std::ptr::from_ref);
    for record in all() {
        let is_own = own == Some(std::ptr::from_ref(record));
        if !is_own {
            record.depth.store(0, Ordering::Relaxed);
        }
        let tid = if is_own { gettid() } else { 0 };
        record.tid.store(tid, Ordering::Release);
    }
}

#[cold]
fn wait_outside(record: &Record) {
    if let Some(watcher) = WATCHER.get()
        && (watcher.arrives)()
    {
        outside(record, watcher.wait);
    }
    while is_closed() {
        outside(record, park);
    }
}

/// Runs `wait` as if the calling thread, which is inside one of our functions, were outside: a stop parks it where it is.
/// `wait` must not use what has to be consistent in a stop. `None` if the thread is inside more than one function, or is
/// the stopper.
pub fn step_outside<T>(wait: impl FnOnce() -> T) -> Option<T> {
    let record = KNOWN.get()?;
    let is_stopper = STOPPER.load(Ordering::Relaxed) == gettid();
    if is_stopper || record.depth.load(Ordering::Relaxed) != 1 {
        return None;
    }
    record.depth.store(0, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    if is_closed() {
        // The stopper may already wait for this thread.
        park();
    }
    let result = wait();
    record.depth.store(1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    while is_closed() {
        outside(record, park);
    }
    Some(result)
}

fn outside(record: &Record, act: fn()) {
    record.depth.store(0, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    act();
    record.depth.store(1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
}

#[inline]
fn is_closed() -> bool {
    GATE.load(Ordering::Acquire) == CLOSED
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        let depth = self.record.depth.load(Ordering::Relaxed).saturating_sub(1);
        self.record.depth.store(depth, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if depth == 0 && is_closed() {
            park();
        }
    }
}

/// Whether the calling thread is inside one of our functions.
pub fn is_inside() -> bool {
    find(gettid()).is_some_and(|record| record.depth.load(Ordering::Relaxed) > 0)
}

/// As [`is_inside`], for code that no signal handler runs: reads only the thread's own record.
pub fn is_current_inside() -> bool {
    KNOWN
        .get()
        .is_some_and(|record| record.depth.load(Ordering::Relaxed) > 0)
}

/// Parks the calling thread if it is outside; called by the signal handler, so async-signal-safe.
pub fn park_if_outside() {
    if is_closed() && !is_inside() && !alloc::is_inside() {
        park();
    }
}

/// Whether more than one living thread has called this library.
pub fn is_shared() -> bool {
    all()
        .filter(|record| record.tid.load(Ordering::Relaxed) != 0)
        .nth(1)
        .is_some()
}

/// Closes the gate: from now on threads park when they come to it.
pub fn close() {
    GATE.store(CLOSED, Ordering::SeqCst);
    STOPS.fetch_add(1, Ordering::SeqCst);
    if WHEN_OPEN.load(Ordering::Relaxed) == WATCHED {
        let _ = futex::wake(&STOPS, futex::Flags::PRIVATE, i32::MAX as u32);
    }
}

/// Opens the gate and wakes every parked thread.
pub fn open() {
    GATE.store(WHEN_OPEN.load(Ordering::Relaxed), Ordering::SeqCst);
    let _ = futex::wake(&GATE, futex::Flags::PRIVATE, i32::MAX as u32);
}

/// Has `watcher` see each call before it begins. To be called before the gate is first closed.
pub fn watch(watcher: Watcher) {
    let _ = WATCHER.set(watcher);
    WHEN_OPEN.store(WATCHED, Ordering::Relaxed);
    GATE.store(WATCHED, Ordering::SeqCst);
}

/// Calls `say`, then waits until the gate is closed again, at most `limit`; for tests, which [`watch`].
pub fn await_stop(limit: Duration, say: impl FnOnce()) {
    let stops = STOPS.load(Ordering::Acquire);
    say();
    wait_while(&STOPS, limit, |now| now == stops);
}

/// Waits until `count` more threads have parked, at most `limit`. The stopper checks all threads afterwards, because some
/// stand still without having parked here.
pub fn await_parked(count: usize, limit: Duration) {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    EXPECTED.store(count, Ordering::SeqCst);
    wait_while(&EXPECTED, limit, |left| left != 0);
    EXPECTED.store(0, Ordering::SeqCst);
}

/// Wakes the thread that sleeps on `word` ([`wait_while`]). Async-signal-safe.
pub fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
}

/// Sleeps on `word` while `waits` accepts its value, at most `limit`. Code that changes the word has to [`wake`] the sleeper.
pub fn wait_while(word: &AtomicU32, limit: Duration, waits: impl Fn(u32) -> bool) {
    let end = Instant::now() + limit;
    loop {
        let value = word.load(Ordering::SeqCst);
        let left = end.saturating_duration_since(Instant::now());
        if !waits(value) || left.is_zero() {
            return;
        }
        let left = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        // Woken or not, the word decides.
        let _ = futex::wait(word, futex::Flags::PRIVATE, value, Some(&left));
    }
}

/// Whether the thread `tid` is parked.
pub fn is_parked(tid: i32) -> bool {
    places(tid).any(|place| place.load(Ordering::SeqCst) == tid)
}

/// Waits until the gate is open. Async-signal-safe.
fn park() {
    park_until(&|| false);
}

/// Waits, inside one of our functions, until the gate is open or `done`; returns at once if it is open. While it waits
/// the thread touches nothing that is shared with the worker but what `done` looks at.
pub fn rest(done: &dyn Fn() -> bool) {
    if !is_closed() || STOPPER.load(Ordering::Relaxed) == gettid() {
        return;
    }
    RESTING.fetch_add(1, Ordering::AcqRel);
    park_until(done);
    RESTING.fetch_sub(1, Ordering::AcqRel);
}

/// Makes the calling thread the stopper.
pub fn is_stopper() {
    STOPPER.store(gettid(), Ordering::Relaxed);
}

/// Has every resting thread check whether its answer has come.
pub fn nudge() {
    let _ = futex::wake(&GATE, futex::Flags::PRIVATE, i32::MAX as u32);
}

/// Parks the calling thread. Until it goes on, no handler of the program runs on it: it could use host memory, which is not mapped
/// while the program is detached.
fn park_until(done: &dyn Fn() -> bool) {
    if is_closed() && !done() {
        block::handlers(|| stand(done));
    }
}

fn stand(done: &dyn Fn() -> bool) {
    let tid = gettid();
    loop {
        let place = places(tid).find(|place| {
            place
                .compare_exchange(0, tid, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        });
        tell_stopper();
        while is_closed() && !done() {
            // Woken or not, the gate decides.
            let _ = futex::wait(&GATE, futex::Flags::PRIVATE, CLOSED, None);
        }
        if let Some(place) = place {
            place.store(0, Ordering::SeqCst);
        }
        // The next stop may have found the thread parked, as it was for the last one.
        if GATE.load(Ordering::SeqCst) != CLOSED || done() {
            return;
        }
    }
}

/// Counts one more parked thread, and wakes the stopper after the last that it waits for. Async-signal-safe.
fn tell_stopper() {
    let one_less = |left: u32| left.checked_sub(1);
    let was = EXPECTED.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
    if was == Ok(1) {
        wake(&EXPECTED);
    }
}

/// Whether the thread `tid` is inside one of our functions while another rests there, which may hold a lock that `tid`
/// waits for.
pub fn may_be_blocked(tid: i32) -> bool {
    let inside = |record: &Record| record.depth.load(Ordering::Acquire) > 0;
    RESTING.load(Ordering::Acquire) > 0 && find(tid).is_some_and(inside)
}

/// The places for a thread id, best first.
fn places(tid: i32) -> impl Iterator<Item = &'static AtomicI32> {
    let start = tid as usize;
    (0..PLACES).map(move |n| &PARKED[(start + n) % PLACES])
}

pub(crate) fn gettid() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

fn find(tid: i32) -> Option<&'static Record> {
    all().find(|record| record.tid.load(Ordering::Acquire) == tid)
}

fn all() -> impl Iterator<Item = &'static Record> {
    let mut at = RECORDS.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: the list holds leaked records only, and is only ever added to at its front.
        let record = unsafe { at.as_ref() }?;
        at = record.next.load(Ordering::Acquire);
        Some(record)
    })
}

/// A record for the calling thread: one with its thread id, a free one, or a new one.
///
/// A signal between the record's creation and the first `depth` finds depth 0 and parks the thread here.
/// That is harmless: no lock is held, and a thread inside the allocator is not parked (see `alloc`).
fn register() -> &'static Record {
    let tid = gettid();
    let take = |from: i32| {
        all().find(|record| {
            record
                .tid
                .compare_exchange(from, tid, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        })
    };
    // A record with this thread id belongs to a thread that has ended: thread ids are unique.
    if let Some(record) = take(tid).or_else(|| take(0)) {
        record.depth.store(0, Ordering::Relaxed);
        return record;
    }
    let record: &'static Record = Box::leak(Box::new(Record {
        tid: AtomicI32::new(tid),
        depth: AtomicU32::new(0),
        next: AtomicPtr::new(std::ptr::null_mut()),
    }));
    let mut head = RECORDS.load(Ordering::Acquire);
    loop {
        record.next.store(head, Ordering::Relaxed);
        let new = std::ptr::from_ref(record).cast_mut();
        match RECORDS.compare_exchange(head, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return record,
            Err(other) => head = other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread::scene::alone;
    use crate::thread::threads;

    #[test]
    fn who_changes_a_word_wakes_the_one_that_waits_for_it() {
        static WORD: AtomicU32 = AtomicU32::new(0);
        wait_while(&WORD, Duration::from_millis(1), |value| value == 0);
        let (told, tell) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            wait_while(&WORD, Duration::from_secs(600), |value| value == 0);
            told.send(()).unwrap();
        });
        WORD.store(1, Ordering::SeqCst);
        wake(&WORD);
        tell.recv_timeout(Duration::from_secs(300)).unwrap();
        waiting.join().unwrap();
    }

    fn await_parking(tid: i32) {
        while !is_parked(tid) {
            await_parked(1, Duration::from_millis(1));
        }
    }

    static HANDLED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn on_user_signal(_: libc::c_int) {
        HANDLED.fetch_add(1, Ordering::SeqCst);
    }

    #[test]
    #[ignore = "closes the gate; run by the test below"]
    fn goes_on_when_the_gate_is_closed_again() {
        // True only once: the thread leaves its place, and finds the gate closed.
        static LEAVES: AtomicU32 = AtomicU32::new(0);
        let (tell, told) = std::sync::mpsc::channel();
        let (say_closed, closed) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _inside = enter();
            tell.send(gettid()).unwrap();
            closed.recv().unwrap();
            rest(&|| LEAVES.swap(0, Ordering::SeqCst) == 1);
            is_closed()
        });
        let tid = told.recv().unwrap();
        close();
        say_closed.send(()).unwrap();
        await_parking(tid);
        LEAVES.store(1, Ordering::SeqCst);
        while LEAVES.load(Ordering::SeqCst) == 1 {
            nudge();
        }
        await_parking(tid);
        open();
        assert!(!thread.join().unwrap(), "it has not parked again");
    }

    #[test]
    fn a_thread_that_goes_on_into_the_next_stop_parks_again() {
        alone("thread::gate::tests::goes_on_when_the_gate_is_closed_again");
    }

    #[test]
    #[ignore = "closes the gate; run by the test below"]
    fn gets_signals_while_it_is_parked() {
        let handler = on_user_signal as extern "C" fn(libc::c_int);
        // SAFETY: the handler only counts.
        unsafe { libc::signal(libc::SIGUSR1, handler as usize) };
        let parks: [fn(&dyn Fn()); 3] = [
            |closed| {
                closed();
                drop(enter());
            },
            |closed| {
                let _inside = enter();
                closed();
            },
            |closed| {
                let _inside = enter();
                closed();
                rest(&|| false);
            },
        ];
        for (count, park) in (1..).zip(parks) {
            let (tell, told) = std::sync::mpsc::channel();
            let (say_closed, closed) = std::sync::mpsc::channel();
            let thread = std::thread::spawn(move || {
                tell.send(gettid()).unwrap();
                park(&|| closed.recv().unwrap());
            });
            let tid = told.recv().unwrap();
            close();
            say_closed.send(()).unwrap();
            await_parking(tid);
            // SAFETY: sends a signal that has a handler.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, libc::SIGUSR1) };
            let blocked = threads::status(tid).unwrap().blocked;
            assert_eq!(blocked >> (libc::SIGUSR1 - 1) & 1, 1);
            assert_eq!(HANDLED.load(Ordering::SeqCst), count - 1);
            open();
            thread.join().unwrap();
            assert_eq!(HANDLED.load(Ordering::SeqCst), count);
        }
    }

    #[test]
    fn a_parked_thread_runs_the_programs_handlers_when_the_gate_is_open() {
        alone("thread::gate::tests::gets_signals_while_it_is_parked");
    }
}
