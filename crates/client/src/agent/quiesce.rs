//! Stops every thread of the program at a consistent point.
//!
//! ```text
//!  close the gate ─► all parked, or resting in a wait for the worker ─► worker: all before is taken, the device idle
//!                      ▲                                                      │
//!                      └── an answer has come: its thread ends its call ◄─────┴─► none: stopped
//! ```
//! Operations not yet given to the device stay queued in the worker, in order, as do the requests of threads that rest.

use std::time::{Duration, Instant};

use fermata_abi::op::Op;
use fermata_abi::sys::driver::CUDA_SUCCESS;

use crate::link;
use crate::link::callback;
use crate::thread::gate;
use crate::thread::restart;
use crate::thread::signal;
use crate::thread::threads::{self, Status};

/// The shortest pause before the state of threads is checked again.
const SOON: Duration = Duration::from_micros(50);

/// The longest pause before threads that have not parked are asked again.
const AGAIN: Duration = Duration::from_millis(1);

/// A thread that still blocks the signal after so many checks, [`AGAIN`] apart, does so on purpose. Checks do not count while
/// the thread waits for a core, or waits where no signal reaches it, as the parent does in `posix_spawn`.
const MASK_LOOKS: u32 = 50;

/// Why the program cannot be stopped now.
#[derive(Debug)]
pub struct Refusal {
    /// What prevents the stop.
    pub reason: String,
    /// What the user can do.
    pub hint: String,
}

impl Refusal {
    fn new(reason: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            hint: hint.into(),
        }
    }
}

/// A stopped program.
#[derive(Debug, Clone, Copy)]
pub struct Still {
    /// Threads parked.
    pub threads: u32,
    /// How long the parking took; the wait for the device came after it.
    pub parking: Duration,
}

/// Parks every thread but the caller and waits until the GPU is idle.
///
/// # Errors
/// The reason for a refusal; the program runs on as before.
pub fn quiesce(deadline: Duration) -> Result<Still, Refusal> {
    let begun = Instant::now();
    let end = begun + deadline;
    check_masks(end)?;
    gate::close();
    let done = settle(begun, end);
    if done.is_err() {
        gate::open();
    }
    done
}

/// Parks and drains until every thread has taken its answer: an answer left in the ring would be lost with it.
fn settle(begun: Instant, end: Instant) -> Result<Still, Refusal> {
    let mut parking = None;
    loop {
        let threads = park_all(end)?;
        let parking = *parking.get_or_insert_with(|| begun.elapsed());
        drain(end)?;
        idle(end)?;
        let Ok(link) = link::current() else {
            return Ok(Still { threads, parking });
        };
        if !link.producer.has_answers() {
            // A thread whose answer came during the drain may have left its rest, and runs on inside our functions.
            if are_still()? {
                return Ok(Still { threads, parking });
            }
            continue;
        }
        while link.producer.has_answers() {
            if Instant::now() >= end {
                let hint = "try again later, or with more cores";
                return Err(Refusal::new("a call that is done does not return", hint));
            }
            gate::nudge();
            // A thread that has taken its answer parks at the end of its call.
            gate::await_parked(1, SOON);
        }
    }
}

/// Refuses if a thread keeps the parking signal blocked.
fn check_masks(end: Instant) -> Result<(), Refusal> {
    others()?
        .into_iter()
        .try_for_each(|tid| check_mask(tid, end))
}

/// Refuses if the thread keeps the parking signal blocked; at `end` if it has waited until then, without a core or where no
/// signal reaches it.
fn check_mask(tid: i32, end: Instant) -> Result<(), Refusal> {
    let (mut looks, mut ran) = (0, threads::time_run(tid));
    // A new thread has every signal blocked for a moment, which is long where cores are scarce.
    while let Some(status) = blocking(tid) {
        if looks == MASK_LOOKS {
            let signal = signal::chosen();
            return Err(Refusal::new(
                format!("{} blocks signal {signal}", describe(tid, Some(&status))),
                "choose a signal that the program does not block with FERMATA_PARK_SIGNAL",
            ));
        }
        // Polled: the kernel does not report that a thread has changed its mask.
        std::thread::sleep(AGAIN);
        let before = std::mem::replace(&mut ran, threads::time_run(tid));
        let has_to_wait = match status.state {
            'R' => ran.is_some() && ran == before,
            'D' => ran == before,
            _ => false,
        };
        if !has_to_wait || Instant::now() >= end {
            looks += 1;
        }
    }
    Ok(())
}

/// The status of a thread that has to be parked and blocks the parking signal. A thread may turn out to be this library's own
/// only after it has been listed.
fn blocking(tid: i32) -> Option<Status> {
    let status = threads::status(tid)?;
    let must_not = status.blocked & parking_bit() != 0 && !status.is_dead();
    (must_not && !gate::is_parked(tid) && !callback::is_own_thread(tid)).then_some(status)
}

/// The parking signal's bit in a mask.
fn parking_bit() -> u64 {
    1 << (signal::chosen() - 1)
}

/// Asks until every thread is parked. Threads may have created others before they parked, so it ends after
/// two listings in a row that hold only parked threads.
fn park_all(end: Instant) -> Result<u32, Refusal> {
    let mut quiet: Option<usize> = None;
    let mut pause = SOON;
    loop {
        let (moving, all) = moving()?;
        if moving.is_empty() {
            if quiet == Some(all) {
                return Ok(all as u32);
            }
            quiet = Some(all);
            continue;
        }
        quiet = None;
        if Instant::now() >= end {
            return Err(unparked(moving[0]));
        }
        for tid in &moving {
            ask(*tid);
        }
        if let Ok(link) = link::current() {
            link.producer.nudge();
        }
        gate::await_parked(moving.len(), pause);
        pause = (pause * 2).min(AGAIN);
    }
}

/// Sends the signal, unless the thread blocks it: it would then come at the end of the handler that blocks it, right behind a
/// call which that handler has interrupted, and the program would not see that (`restart`).
fn ask(tid: i32) {
    restart::note(tid);
    let is_deaf = |status: Status| status.blocked & parking_bit() != 0;
    if !threads::status(tid).is_none_or(is_deaf) {
        signal::send(tid);
    }
}

/// The threads that are not still, and how many there are in all.
fn moving() -> Result<(Vec<i32>, usize), Refusal> {
    let mut tids = others()?;
    let all = tids.len();
    tids.retain(|tid| !is_still(*tid));
    Ok((tids, all))
}

/// Whether two listings in a row hold only parked threads.
fn are_still() -> Result<bool, Refusal> {
    Ok(moving()?.0.is_empty() && moving()?.0.is_empty())
}

/// Waits until the worker has executed everything.
fn drain(end: Instant) -> Result<(), Refusal> {
    let lost = |error: &dyn std::fmt::Display| {
        Refusal::new(
            format!("the worker did not drain: {error}"),
            "see `fermata logs`",
        )
    };
    let link = link::current().map_err(|status| lost(&format!("error {status}")))?;
    let left = end.saturating_duration_since(Instant::now());
    let has_room = link.producer.await_room(left);
    if !has_room.map_err(|error| lost(&error))? {
        return Err(Refusal::new(
            "the worker has not come to the program's last calls at the deadline",
            "give it more time, or wait for the running kernels to end",
        ));
    }
    let pending = link
        .producer
        .request(&Op::Drain, None)
        .map_err(|error| lost(&error))?;
    loop {
        if pending.wait_for(AGAIN).map_err(|error| lost(&error))? {
            break;
        }
        if Instant::now() >= end {
            return Err(Refusal::new(
                "the GPU is still busy at the deadline",
                "give it more time, or wait for the running kernels to end",
            ));
        }
    }
    let mut buffer = Vec::new();
    let reply = pending.wait(&mut buffer).map_err(|error| lost(&error))?;
    match reply.status {
        CUDA_SUCCESS => Ok(()),
        status => Err(Refusal::new(
            format!("the GPU reported error {status}: {}", reply.text),
            "the program's CUDA context has failed; it cannot be checkpointed any more",
        )),
    }
}

/// Waits until the callback thread, which is not parked, runs no callback.
fn idle(end: Instant) -> Result<(), Refusal> {
    match callback::await_idle(end.saturating_duration_since(Instant::now())) {
        true => Ok(()),
        false => Err(Refusal::new(
            "a host callback is still running",
            "try again later",
        )),
    }
}

/// Every thread that has to be parked.
fn others() -> Result<Vec<i32>, Refusal> {
    let own = gate::gettid();
    let mut tids = threads::list().map_err(|errno| {
        Refusal::new(
            format!("cannot list the program's threads: {errno}"),
            "mount /proc",
        )
    })?;
    tids.retain(|tid| *tid != own && !callback::is_own_thread(*tid));
    Ok(tids)
}

/// Whether a thread stands still until the gate opens: parked, resting, or waiting for a lock of this library that a
/// resting thread may hold. Once all threads are still, none of them can release a lock.
fn is_still(tid: i32) -> bool {
    gate::is_parked(tid)
        || gate::may_be_blocked(tid) && threads::waits_for_lock(tid)
        || threads::status(tid).is_none_or(|status| status.is_dead())
}

fn unparked(tid: i32) -> Refusal {
    let status = threads::status(tid);
    let who = describe(tid, status.as_ref());
    let call = threads::read(&format!("/proc/self/task/{tid}/syscall")).unwrap_or_default();
    let number = call.split_whitespace().next().unwrap_or("unknown");
    Refusal::new(
        format!("{who} has not stopped in time (system call: {number})"),
        "try again later or with a longer deadline",
    )
}

fn describe(tid: i32, status: Option<&Status>) -> String {
    let name = status.map_or("", |status| status.name.as_str());
    format!("thread {tid} `{name}`")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::thread::block;
    use crate::thread::gate::gettid;

    /// Long enough that no test waits for it.
    const LIMIT: Duration = Duration::from_secs(300);

    /// Runs `act` with the id of a thread that runs `first` and blocks every signal until `act` has returned.
    fn beside_a_deaf_thread<T>(first: fn(), act: impl FnOnce(i32) -> T) -> T {
        let (tell, told) = channel();
        let (release, released) = channel::<()>();
        let deaf = std::thread::spawn(move || {
            block::all(|| {
                first();
                tell.send(gettid()).expect("the test");
                let _ = released.recv();
            });
        });
        let result = act(told.recv().expect("a thread"));
        drop(release);
        deaf.join().expect("it ends");
        result
    }

    #[test]
    fn a_thread_that_becomes_the_callback_thread_after_it_was_listed_does_not_prevent_a_stop() {
        let end = Instant::now() + LIMIT;
        let refused = beside_a_deaf_thread(|| (), |tid| check_mask(tid, end));
        assert!(refused.is_err_and(|refusal| refusal.reason.contains("blocks signal")));
        beside_a_deaf_thread(callback::is_callback_thread, |tid| check_mask(tid, end))
            .expect("the thread is not parked");
    }

    #[test]
    fn a_thread_that_blocks_the_signal_is_not_sent_it() {
        let pending = beside_a_deaf_thread(
            || (),
            |tid| {
                ask(tid);
                std::fs::read_to_string(format!("/proc/self/task/{tid}/status")).expect("read")
            },
        );
        assert!(pending.contains("SigPnd:\t0000000000000000"), "{pending}");
    }

    extern "C" fn takes_long(_: *mut libc::c_void) -> libc::c_int {
        let time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 300_000_000,
        };
        // SAFETY: waits.
        unsafe { libc::syscall(libc::SYS_nanosleep, &time, 0usize) };
        0
    }

    #[test]
    fn a_thread_in_a_slow_posix_spawn_does_not_prevent_a_stop() {
        let (tell, told) = channel();
        let spawns = std::thread::spawn(move || {
            let mut stack = vec![0u128; 4096];
            let top = stack.as_mut_ptr_range().end;
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            let child = block::all(|| {
                tell.send(gettid()).expect("the test");
                // SAFETY: the child has a stack of its own, and calls the kernel only; this thread goes on after its end.
                unsafe { libc::clone(takes_long, top.cast(), flags, std::ptr::null_mut()) }
            });
            // SAFETY: the child is the test's own.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) == child }
        });
        let tid = told.recv().expect("a thread");
        check_mask(tid, Instant::now() + LIMIT).expect("the thread waits for its child");
        assert!(spawns.join().expect("it ends"), "there was no child");
    }
}
