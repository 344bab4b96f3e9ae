//! For tests: stops the program at exactly one of its calls, if the environment asks for it.
//!
//! `FERMATA_TEST_QUIESCE_AT=N` makes the thread of the N-th call since `cuInit` (from 1) wait before the call, outside,
//! until the session has been stopped once. `FERMATA_TEST_QUIESCE_MARK=PATH` names the folder that is created when the
//! thread waits. With `N` = 0 no thread waits, and the mark is a file that holds the number of calls so far, eight
//! bytes, little-endian.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use crate::thread::gate::{self, Watcher};

const AT: &str = "FERMATA_TEST_QUIESCE_AT";
const MARK: &str = "FERMATA_TEST_QUIESCE_MARK";
/// The longest wait for the stop. After it the test has failed, and the program goes on.
const PATIENCE: Duration = Duration::from_secs(60);

static CALLS: AtomicU64 = AtomicU64::new(0);
static PLAN: OnceLock<Plan> = OnceLock::new();

enum Plan {
    Stop { at: u64, mark: CString },
    Count { file: OwnedFd },
}

/// Begins to count calls, if the variables ask for it. Called once, when the session begins.
pub fn arm() {
    let at = std::env::var(AT).ok().and_then(|text| text.parse().ok());
    let mark = std::env::var(MARK)
        .ok()
        .and_then(|text| CString::new(text).ok());
    let (Some(at), Some(mark)) = (at, mark) else {
        return;
    };
    let plan = if at > 0 {
        Plan::Stop { at, mark }
    } else {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        match rustix::fs::open(mark, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => Plan::Count { file },
            Err(_) => return,
        }
    };
    if PLAN.set(plan).is_ok() {
        gate::watch(Watcher { arrives, wait });
    }
}

/// Counts a call that is about to begin; returns whether it must first [`wait`].
fn arrives() -> bool {
    let number = CALLS.fetch_add(1, Ordering::Relaxed) + 1;
    match PLAN.get() {
        Some(Plan::Stop { at, .. }) => number == *at,
        Some(Plan::Count { file }) => {
            // A test that cannot read the count says so itself.
            let _ = rustix::io::pwrite(file, &number.to_le_bytes(), 0);
            false
        }
        None => false,
    }
}

/// Makes the mark and waits for a stop. The thread counts as outside and may be parked at any instruction here, so it
/// holds no lock.
fn wait() {
    let Some(Plan::Stop { mark, .. }) = PLAN.get() else {
        return;
    };
    let made = || {
        let _ = rustix::fs::mkdir(mark.as_c_str(), Mode::RWXU);
    };
    gate::await_stop(PATIENCE, made);
}
