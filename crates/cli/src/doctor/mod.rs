//! Looking at the host without changing it: each check says what was found and, where something is
//! missing, the fix.

mod criu;
mod gpu;
mod installation;
mod limits;
pub mod settings;
mod system;
mod verdict;

use fermata_control::Paths;
use fermata_control::user::{Check, FromDaemon, Verb};
use fermata_control::worker::TierState;
use fermata_report::units;

use self::verdict::{ok, warn};
use crate::daemon::{Daemon, unexpected};
use crate::failure::Failure;
use crate::printer::Printer;
use crate::progress::Progress;

/// All checks that need no daemon.
pub fn host() -> Vec<Check> {
    let paths = Paths::find();
    let mut checks = vec![
        system::kernel(),
        system::userfaultfd(),
        system::rights(),
        system::namespaces(),
        system::host_memory(&paths),
    ];
    checks.extend(criu::checks(&paths));
    checks.push(gpu::check());
    checks.extend(installation::checks(&paths));
    checks.extend([
        limits::locked_memory(),
        limits::shared_memory(),
        limits::disk(&paths),
    ]);
    checks
}

/// That no daemon runs.
pub fn no_daemon() -> Check {
    ok(
        "daemon",
        "not running; the first command that needs it starts it",
    )
}

/// What the daemon says about itself.
pub fn daemon(daemon: &Daemon, printer: &Printer) -> Result<Check, Failure> {
    match daemon.ask(Verb::Status, &Progress::new(printer))? {
        FromDaemon::Status(s) => {
            let mut text = format!(
                "release {}, process {}, {} running",
                s.version, s.pid, s.running
            );
            let Some(tier) = s.memory_tier else {
                return Ok(ok("daemon", text));
            };
            text += &format!(
                "; memory tier: {} ready of {} registered, at most {}",
                units::bytes(tier.ready),
                units::bytes(tier.registered),
                units::bytes(tier.limit)
            );
            if tier.missing > 0 {
                let why = match tier.state {
                    TierState::Full => "the limit is reached",
                    TierState::Paused => "a checkpoint or restore goes first",
                    TierState::Failed => "they are tried again",
                    TierState::Registering | TierState::Complete => "they are coming",
                };
                text += &format!("; {} are not registered, {why}", units::bytes(tier.missing));
            }
            if tier.trouble.is_empty() {
                return Ok(ok("daemon", text));
            }
            let hint = "checkpoints and restores take the ordinary way; `FERMATA_MEMORY_TIER_LIMIT=0` \
                        turns the tier off";
            Ok(warn("daemon", format!("{text}: {}", tier.trouble), hint))
        }
        other => Err(unexpected(&other)),
    }
}
