//! Counts the program's calls if the environment asks for it (see [`fermata_wire::Tally`]).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use fermata_wire::Tally;

static ON: AtomicBool = AtomicBool::new(false);
static TALLY: OnceLock<Tally> = OnceLock::new();

/// Begins to count, if the environment asks for it. Called once, when the session begins.
pub fn arm() {
    if let Some(tally) = Tally::of_environment("program") {
        ON.store(TALLY.set(tally).is_ok(), Ordering::Release);
    }
}

/// Whether calls are counted.
#[inline(always)]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Runs `act` and counts the call.
#[cold]
pub fn measured<T>(name: &str, act: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = act();
    if let Some(tally) = TALLY.get() {
        tally.add(name, begun.elapsed());
    }
    done
}
