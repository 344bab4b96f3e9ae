//! What tests with a real CRIU share.

use std::path::Path;
use std::time::{Duration, Instant};

use fermata_daemon::criu::Criu;

/// Until a test gives up: what it waits for comes, however busy the machine is.
pub const LIMIT: Duration = Duration::from_secs(120);

/// The one that `tools/setup.sh` has unpacked.
pub fn criu() -> Criu {
    let helper = Path::new(env!("CARGO_BIN_EXE_fermatad"));
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let packed = repository.join(".deps/criu/criu");
    let root = rustix::process::geteuid().is_root();
    assert!(
        packed.is_file() && root,
        "needs root and `tools/setup.sh criu`"
    );
    Criu::at(packed, helper)
}

/// Waits until a condition holds.
pub fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let until = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < until, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}
