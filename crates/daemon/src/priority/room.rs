//! Makes room for a session: ends spare workers, then pauses sessions of lower priority, the lowest first, until the session that
//! asks has its memory.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_control::user::{Pause, SessionState};
use fermata_control::worker::FailureKind;
use fermata_store::image::unix_now;
use tracing::{info, warn};

use super::gpu::{self, Gpu};
use crate::daemon::Daemon;
use crate::failure::{Result, fail, lacks_memory};
use crate::pause::pause;
use crate::priority::yielded::Yielded;
use crate::session::Session;
use crate::turn::Patience;
use crate::worker::Variables;

/// How soon to look again at sessions that are just being stopped or started.
const TURN: Duration = Duration::from_millis(100);
/// The least memory that a start needs: a context.
const CONTEXT: u64 = 1 << 30;

/// The device memory that a session lacks.
#[derive(Debug, Clone)]
pub struct Need {
    /// The session's name, for users.
    pub name: String,
    /// Its priority.
    pub priority: i32,
    /// Where.
    pub gpu: Gpu,
    /// The device's UUID; none for any.
    pub device: Option<String>,
    /// Bytes.
    pub bytes: u64,
    /// Of these, bytes that are free.
    pub free: u64,
}

impl Need {
    /// Of a session that cannot start for want of `bytes` at least, on whatever device.
    pub fn to_start(name: &str, priority: i32, gpu: Gpu, bytes: u64) -> Self {
        let bytes = match gpu {
            Gpu::Real => bytes.max(CONTEXT),
            Gpu::Shared(_) => bytes,
        };
        Self {
            name: name.to_owned(),
            priority,
            gpu,
            device: None,
            bytes,
            // Nothing is known of it: a start that fails again asks again.
            free: bytes,
        }
    }
}

/// A session that may be paused.
struct Victim {
    session: Arc<Session>,
    bytes: u64,
}

/// What has come of an attempt.
enum Step {
    /// One is paused.
    Made,
    /// None can be now, for this reason, but perhaps at this time.
    Later(Instant, String),
    /// There is no room to be had.
    None,
}

/// Tries `act` again after each session that is paused for it, as long as it fails for want of memory. `need` is asked for
/// when it has.
///
/// # Errors
/// Those of `act`.
pub fn retried<T>(
    daemon: &Arc<Daemon>,
    need: impl Fn() -> Option<Need>,
    mut act: impl FnMut() -> Result<T>,
) -> Result<T> {
    loop {
        let failure = match act() {
            Err(failure) if lacks_memory(&failure) => failure,
            other => return other,
        };
        let made = need().map(|it| make(daemon, &it));
        if !matches!(made, Some(Ok(()))) {
            return Err(failure);
        }
    }
}

/// Makes room before a session is restored, whose data would come while it runs and find that there is none: as far as it is known
/// what is free on the first device of a worker with these variables.
pub fn ahead(daemon: &Arc<Daemon>, need: &Need, variables: &Variables) {
    while let Some((device, free)) = gpu::first_free(daemon, &need.gpu, variables) {
        if free >= need.bytes {
            return;
        }
        let need = Need {
            device: Some(device),
            free,
            ..need.clone()
        };
        // It is tried all the same.
        if make(daemon, &need).is_err() {
            return;
        }
    }
}

/// Ends the workers that wait for sessions, if there are some; else pauses one session of lower priority, if that helps, and waits for
/// it as long as the setting says. What could not be paused is in the log.
///
/// # Errors
/// Why there is no room.
pub fn make(daemon: &Arc<Daemon>, need: &Need) -> Result<()> {
    if daemon.pool.give_way(need.gpu != Gpu::Real) {
        info!(
            "no workers wait for sessions any more: `{}` lacks {} bytes",
            need.name, need.bytes
        );
        return Ok(());
    }
    let _asking = daemon.priorities.ask();
    let until = Instant::now() + daemon.priorities.wait;
    let mut skipped = BTreeSet::new();
    loop {
        let seen = daemon.priorities.changes();
        let step = {
            let _turn = daemon.priorities.turn();
            attempt(daemon, need, &mut skipped)
        };
        let why = match step {
            Step::Made => return Ok(()),
            Step::Later(at, _) if at <= until => {
                let wait = at.saturating_duration_since(Instant::now());
                daemon.priorities.wait_past(seen, wait.min(TURN));
                continue;
            }
            Step::Later(_, why) => why,
            Step::None => "sessions of lower priority do not have that much".to_owned(),
        };
        let message = format!(
            "no room is made for {} bytes of `{}`, which has priority {}: {why}",
            need.bytes, need.name, need.priority
        );
        return Err(fail(FailureKind::User, message));
    }
}

fn attempt(daemon: &Arc<Daemon>, need: &Need, skipped: &mut BTreeSet<String>) -> Step {
    let (victims, busy) = victims(daemon, need, skipped);
    let soon = |why| Step::Later(Instant::now() + TURN, why);
    let possible = victims.iter().map(|it| it.bytes).sum::<u64>();
    if victims.is_empty() || possible.saturating_add(need.free) < need.bytes {
        let named = |name: String| soon(format!("`{name}` is being stopped or started"));
        return busy.map_or(Step::None, named);
    }
    let rest = daemon.priorities.rest;
    let free_from = |it: &Victim| it.session.lock().resumed_at.map(|at| at + rest);
    let now = Instant::now();
    let rested = |it: &&Victim| free_from(it).is_none_or(|at| at <= now);
    let Some(victim) = victims.iter().find(rested) else {
        let first = victims.iter().filter_map(free_from).min();
        let why = "they were resumed only just now".to_owned();
        return Step::Later(first.unwrap_or(now), why);
    };
    let session = &victim.session;
    match yield_to(daemon, session, need) {
        Ok(()) => {
            info!(
                session = %session.name,
                "`{}`, which has priority {}, is paused for `{}`, which has {} and lacks {} bytes",
                session.name, session.priority, need.name, need.priority, need.bytes
            );
            session.lock().yielded_at = Some(Instant::now());
            daemon.priorities.made();
            Step::Made
        }
        Err(failure) if failure.kind == FailureKind::Locked => soon(failure.message),
        Err(failure) => {
            warn!(
                session = %session.name,
                "`{}` cannot be paused for `{}`: {}",
                session.name, need.name, failure.message
            );
            skipped.insert(session.name.clone());
            Step::Later(Instant::now(), failure.message)
        }
    }
}

fn yield_to(daemon: &Arc<Daemon>, session: &Arc<Session>, need: &Need) -> Result<()> {
    {
        let mut inner = session.lock();
        if inner.state != SessionState::Running {
            let message = format!("`{}` is being stopped or started", session.name);
            return Err(fail(FailureKind::Locked, message));
        }
        // Noted down with the pause itself: a daemon that finds it paused resumes it.
        inner.yielded = Some(Yielded {
            to: need.name.clone(),
            since: unix_now(),
        });
    }
    let request = Pause {
        session: session.name.clone(),
        to: None,
    };
    // A new process of the session may hold its turn and wait for the lock of priorities, which this thread holds.
    let paused = pause(daemon, &request, Patience::None, &mut |_, _, _| {});
    if paused.is_err() {
        session.lock().yielded = None;
        session.save();
    }
    paused.map(drop)
}

/// Those that could yield, the first to do so first; and one that cannot now, but perhaps soon.
fn victims(
    daemon: &Daemon,
    need: &Need,
    skipped: &BTreeSet<String>,
) -> (Vec<Victim>, Option<String>) {
    let mut busy = None;
    let mut victims = Vec::new();
    for session in daemon.sessions() {
        let less = session.priority < need.priority && session.live();
        if !less || skipped.contains(&session.name) {
            continue;
        }
        if Gpu::of_session(daemon, &session).as_ref() != Some(&need.gpu) {
            continue;
        }
        let state = session.lock().state;
        match state {
            SessionState::Running => {}
            SessionState::Stopped | SessionState::Restoring => {
                busy = Some(session.name.clone());
                continue;
            }
            _ => continue,
        }
        match gpu::held(&session, need.device.as_deref()) {
            Some(0) => {}
            Some(bytes) => victims.push(Victim { session, bytes }),
            None => busy = Some(session.name.clone()),
        }
    }
    // Of equals, the one that was started last.
    victims.sort_by_key(|it| (it.session.priority, Reverse(it.session.started())));
    (victims, busy)
}

#[cfg(test)]
mod tests {
    use fermata_control::worker::{Device, FromWorker, Totals};

    use super::*;
    use crate::daemon::scene;
    use crate::proc::ProcessId;
    use crate::session::Plan;
    use crate::worker::scene::played;

    #[test]
    fn a_session_whose_new_process_is_getting_its_worker_keeps_no_other_one_waiting() {
        const PATIENCE: Duration = Duration::from_secs(60);
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = scene::daemon(folder.path());
        let shared = ("FERMATA_SOFTGPU_SHARED".to_owned(), "shared".into());
        let plan = |name, dir| Plan {
            variables: [shared].into(),
            ..scene::plan(name, dir)
        };
        let low = daemon.add(Some("low"), "", plan).expect("added");
        let (mut worker, other) = played();
        let device = Device {
            name: "a device".to_owned(),
            uuid: "GPU-0".to_owned(),
            memory: 1 << 30,
            compute_capability: 90,
        };
        let only = Arc::get_mut(&mut worker).expect("no other has it");
        only.devices.push(device);
        let process = ProcessId::of(std::process::id()).expect("it runs");
        low.lock().member_or_new(process).worker = Some(worker);
        low.holds(&[], true);
        let need = Need::to_start("high", 5, Gpu::Shared("shared".into()), 1);
        // As while its new process is served, which may wait for room as well.
        let _busy = low.busy.lock();
        let begun = Instant::now();
        let step = std::thread::scope(|scope| {
            scope.spawn(|| {
                other.recv(PATIENCE).expect("asked");
                let totals = Totals {
                    memory: vec![1 << 20],
                    ..Totals::default()
                };
                let described = FromWorker::Description(totals);
                other.send(&described, &[]).expect("sent");
            });
            attempt(&daemon, &need, &mut BTreeSet::new())
        });
        let Step::Later(_, why) = step else {
            panic!("it cannot be paused now, and can soon");
        };
        assert!(why.contains("is still starting"), "{why}");
        assert!(begun.elapsed() < PATIENCE / 2, "it was waited for");
    }

    #[test]
    fn what_lacks_no_memory_is_not_tried_again_and_what_gets_none_fails_as_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = scene::daemon(folder.path());
        let need = || Some(Need::to_start("x", 5, Gpu::Real, 1));
        let mut tries = 0;
        let failed: Result<()> = retried(&daemon, need, || {
            tries += 1;
            Err(fail(
                FailureKind::User,
                "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY",
            ))
        });
        assert!(
            failed
                .expect_err("no session")
                .message
                .contains("cuMemAlloc")
        );
        let other: Result<()> = retried(&daemon, need, || {
            tries += 1;
            Err(fail(FailureKind::User, "another reason"))
        });
        other.expect_err("another reason");
        assert_eq!(tries, 2);
    }
}
