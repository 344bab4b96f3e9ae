//! Raises the limit of open files: each region of shared host memory is an open file, a program may have thousands
//! of them, and most shells allow 1024.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The highest limit that is asked for.
const MOST: u64 = 1 << 20;

/// The limit that this process was started with.
static FORMER: OnceLock<Rlimit> = OnceLock::new();

/// Raises the limit as far as this process may.
pub fn raise_limit() {
    let former = *FORMER.get_or_init(|| getrlimit(Resource::Nofile));
    let most = former.maximum.map_or(MOST, |hard| hard.min(MOST));
    if former.current.is_some_and(|soft| soft < most) {
        let current = Some(most);
        // If the limit cannot be raised, an operation that reaches it reports it.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, ..former });
    }
}

/// Restores the limit that this process was started with, in a child between fork and exec.
pub(crate) fn former_limit() {
    if let Some(former) = FORMER.get() {
        // A lower limit can always be set.
        let _ = setrlimit(Resource::Nofile, *former);
    }
}
