//! Sessions that were paused for others of higher priority, and the lock that lets one thread at a time pause or resume them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fermata_control::settings;
use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

/// How long an allocation waits for room, if no setting says so.
const USUAL_WAIT: u64 = 60;
/// How long a session is left as it is, if no setting says so.
const USUAL_REST: u64 = 10;

/// Why a session is paused: for another one of higher priority.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Yielded {
    /// The other one's name.
    pub to: String,
    /// Seconds since 1970.
    pub since: u64,
}

/// Lets one thread at a time pause or resume sessions by priority.
pub struct Priorities {
    /// How long an allocation waits for room.
    pub wait: Duration,
    /// How long a session that was resumed is left running, and one that was paused is left paused.
    pub rest: Duration,
    turn: Mutex<()>,
    /// Sessions that wait for room.
    asking: AtomicUsize,
    /// When room was last made.
    last: Mutex<Option<Instant>>,
    changes: Mutex<u64>,
    changed: Condvar,
}

/// While this lives, no session is resumed: another one wants its memory.
pub struct Asking<'a>(&'a Priorities);

impl Priorities {
    /// From the settings.
    pub fn from_env() -> Self {
        let seconds = |name, usual| {
            let set = settings::number(name).ok().flatten();
            Duration::from_secs(set.unwrap_or(usual))
        };
        Self {
            wait: seconds("FERMATA_PRIORITY_WAIT", USUAL_WAIT),
            rest: seconds("FERMATA_PRIORITY_REST", USUAL_REST),
            turn: Mutex::default(),
            asking: AtomicUsize::new(0),
            last: Mutex::default(),
            changes: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// The right to pause or resume one.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// A session wants memory.
    pub fn ask(&self) -> Asking<'_> {
        self.asking.fetch_add(1, Ordering::SeqCst);
        Asking(self)
    }

    /// A session has yielded: the one that asked is about to take its memory.
    pub fn made(&self) {
        *self.last.lock() = Some(Instant::now());
        self.tell();
    }

    /// Whether no session wants memory, and none got some within `grace`.
    pub fn is_quiet(&self, grace: Duration) -> bool {
        let asked = self.asking.load(Ordering::SeqCst) > 0;
        !asked && self.last.lock().is_none_or(|it| it.elapsed() >= grace)
    }

    /// Something may have changed: a session has yielded, or was resumed.
    pub fn tell(&self) {
        *self.changes.lock() += 1;
        self.changed.notify_all();
    }

    /// How often something has changed.
    pub fn changes(&self) -> u64 {
        *self.changes.lock()
    }

    /// Waits until more has changed than one has `seen`, at most `limit`.
    pub fn wait_past(&self, seen: u64, limit: Duration) {
        let until = Instant::now() + limit;
        let mut changes = self.changes.lock();
        while *changes == seen {
            if self.changed.wait_until(&mut changes, until).timed_out() {
                return;
            }
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.asking.fetch_sub(1, Ordering::SeqCst);
        self.0.tell();
    }
}
