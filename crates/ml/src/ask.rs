//! One call's question to the daemon, asked again until it is answered.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fermata_control::letter::Home;
use fermata_control::wait;
use fermata_nvml::ask::{Answer, Ask, Call, MOST_BYTES, Outcome, SOCKET, VERSION, decode, encode};
use fermata_nvml::code::Code;
use rustix::io::Errno;

/// How long an answer may take: the driver of a GPU that nobody uses takes seconds to start.
const ANSWER_TIME: Duration = Duration::from_secs(60);
/// After this time it is asked again: a child that was forked in the middle of a call holds the pipe open.
const AGAIN: Duration = Duration::from_secs(15);
/// How long there may be no daemon.
const AWAY_TIME: Duration = Duration::from_secs(5);
/// Between two attempts.
const LOOK: Duration = Duration::from_millis(20);

static NEXT: AtomicU64 = AtomicU64::new(0);

/// Asks.
///
/// # Errors
/// `DRIVER_NOT_LOADED` outside of a session and without a daemon, `TIMEOUT` when no answer comes.
pub fn ask(call: Call) -> Result<Outcome, Code> {
    let mut away = None;
    let mut ask = Ask {
        version: VERSION,
        id: (u64::from(std::process::id()) << 32)
            | (NEXT.fetch_add(1, Ordering::Relaxed) & 0xffff_ffff),
        token: String::new(),
        call,
    };
    let attempt = || {
        let Some(home) = Home::find(SOCKET) else {
            return Some(Err(Code::DRIVER_NOT_LOADED));
        };
        ask.token.clone_from(&home.token);
        match once(&home, &ask) {
            Ok(Some(outcome)) => return Some(Ok(outcome)),
            // It could not answer now, or has ended.
            Ok(None) => away = None,
            Err(Errno::NOENT | Errno::CONNREFUSED) => {
                let since = *away.get_or_insert_with(Instant::now);
                if since.elapsed() > AWAY_TIME {
                    return Some(Err(Code::DRIVER_NOT_LOADED));
                }
            }
            // Its queue is full.
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => {}
            Err(Errno::ACCESS | Errno::PERM) => return Some(Err(Code::NO_PERMISSION)),
            Err(_) => return Some(Err(Code::UNKNOWN)),
        }
        None
    };
    // Polled: nothing of a call may be open in the program but for an answer, so that nothing tells of the next daemon.
    wait::until(ANSWER_TIME, LOOK, attempt).unwrap_or(Err(Code::TIMEOUT))
}

/// The answer, or `None` if none comes.
fn once(home: &Home, ask: &Ask) -> Result<Option<Outcome>, Errno> {
    let bytes = home.ask(&encode(ask), MOST_BYTES, AGAIN)?;
    let answer = decode::<Answer>(&bytes);
    let answer = answer.filter(|it| it.version == VERSION && it.id == ask.id);
    Ok(answer.map(|it| it.outcome))
}
