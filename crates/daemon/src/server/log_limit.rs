//! Keeps the logs of sessions and workers below a limit, as long as the daemon lives.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fermata_control::{settings, wait};

use crate::daemon::Daemon;
use crate::session::output::shorten;

/// Bytes that are kept of each session's log.
const SETTING: &str = "FERMATA_LOG_LIMIT";
const USUAL_LIMIT: u64 = 64 << 20;
/// How often the logs are looked at.
const TURN: Duration = Duration::from_millis(100);

/// Drops the oldest of what sessions and workers print, as long as the daemon lives.
pub fn limit(daemon: &Arc<Daemon>) {
    let limit = settings::number(SETTING).ok().flatten();
    let limit = limit.unwrap_or(USUAL_LIMIT);
    if limit == 0 {
        return;
    }
    let daemon = Arc::downgrade(daemon);
    let watch = move || {
        let turn = || {
            let Some(daemon) = Weak::upgrade(&daemon) else {
                return Some(());
            };
            let sessions = daemon.sessions();
            let logs = sessions.iter().map(|session| session.log());
            for log in logs.chain([daemon.workers_log()]) {
                // A log that is gone, or a full disk: the next turn tries again.
                let _ = shorten(&log, limit);
            }
            None
        };
        // Polled: the programs and workers write there by themselves, a line at a time.
        wait::until(Duration::MAX, TURN, turn);
    };
    // Without a thread logs grow as they did.
    let _ = std::thread::Builder::new().name("logs".into()).spawn(watch);
}
