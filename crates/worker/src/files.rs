//! How many files this process may have open: each region of shared host memory is one, and a program may have
//! thousands of them, where most shells allow 1024.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// As many as anybody needs.
const MOST: u64 = 1 << 20;

/// The limit as it was.
static FORMER: OnceLock<Rlimit> = OnceLock::new();

/// Raises the limit as far as this process may.
pub fn raise_limit() {
    let former = *FORMER.get_or_init(|| getrlimit(Resource::Nofile));
    let most = former.maximum.map_or(MOST, |hard| hard.min(MOST));
    if former.current.is_some_and(|soft| soft < most) {
        let current = Some(most);
        // One that cannot be raised stays, and is named when it is reached.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, ..former });
    }
}

/// Gives this process the limit back that it was started with: for what it starts, between fork and exec.
pub(crate) fn former_limit() {
    if let Some(former) = FORMER.get() {
        // A lower limit can always be set.
        let _ = setrlimit(Resource::Nofile, *former);
    }
}
