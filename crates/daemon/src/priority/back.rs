//! Resumes sessions that have yielded, when there is memory for them, those of highest priority first.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_control::user::Resume;
use tracing::{info, warn};

use super::gpu::{self, Gpu};
use crate::daemon::Daemon;
use crate::pause::resume;
use crate::session::Session;

/// How often it is looked whether memory is free, while sessions wait for some: nothing tells when a program frees it.
const TURN: Duration = Duration::from_millis(250);
/// The same while none waits.
const LONG: Duration = Duration::from_secs(3600);
/// The one that a session has yielded to tries again at once: until then its memory is free.
const GRACE: Duration = Duration::from_secs(1);
/// How soon a session that could not be resumed is tried again; twice as late each time.
const AGAIN: Duration = Duration::from_secs(2);
/// The latest.
const LATEST: Duration = Duration::from_secs(300);
/// What a worker takes beside its session's memory: a context, and the driver's own.
const CONTEXT: u64 = 1 << 30;

/// Resumes sessions from now on.
///
/// # Errors
/// No thread can be started.
pub fn keep(daemon: &Arc<Daemon>) -> std::io::Result<()> {
    let daemon = Arc::clone(daemon);
    let work = move || {
        loop {
            let seen = daemon.priorities.changes();
            let waits = look(&daemon);
            let turn = if waits { TURN } else { LONG };
            daemon.priorities.wait_past(seen, turn);
        }
    };
    let named = std::thread::Builder::new().name("priorities".into());
    named.spawn(work).map(drop)
}

/// Resumes what can be; whether some have to wait.
fn look(daemon: &Arc<Daemon>) -> bool {
    loop {
        // Within the turn: what yields meanwhile may come before the others.
        let _turn = daemon.priorities.turn();
        let waiting = waiting(daemon);
        if waiting.is_empty() {
            return false;
        }
        if !daemon.priorities.is_quiet(GRACE) || !one(daemon, &waiting) {
            return true;
        }
    }
}

/// Those that have yielded, in the order in which they are resumed.
fn waiting(daemon: &Daemon) -> Vec<Arc<Session>> {
    let mut waiting = daemon.sessions();
    waiting.retain(|it| {
        let inner = it.lock();
        inner.yielded.is_some() && inner.paused().is_some()
    });
    let since = |it: &Session| it.lock().yielded.as_ref().map_or(0, |it| it.since);
    waiting.sort_by_key(|it| (Reverse(it.priority), since(it)));
    waiting
}

/// Whether one of them was resumed.
fn one(daemon: &Arc<Daemon>, waiting: &[Arc<Session>]) -> bool {
    let mut taken = BTreeSet::new();
    for session in waiting {
        let devices = devices(session);
        // What has more priority and waits for the same device comes first.
        if devices.iter().any(|it| taken.contains(it)) {
            continue;
        }
        if back(daemon, session, &devices) {
            return true;
        }
        taken.extend(devices);
    }
    false
}

fn devices(session: &Session) -> Vec<String> {
    let described = session.describe();
    described.devices.into_iter().map(|it| it.uuid).collect()
}

/// Whether a session was resumed.
fn back(daemon: &Arc<Daemon>, session: &Arc<Session>, devices: &[String]) -> bool {
    let (bytes, since, again) = {
        let inner = session.lock();
        let Some((entry, _)) = inner.paused().zip(inner.yielded.as_ref()) else {
            // Its user has resumed it, or wants it to stay paused.
            return true;
        };
        (
            entry.data.device_bytes,
            inner.yielded_at,
            inner.resume_again,
        )
    };
    let rested = since.is_none_or(|it| it.elapsed() >= daemon.priorities.rest);
    if !rested || again.is_some_and(|(at, _)| Instant::now() < at) {
        return false;
    }
    let Some(gpu) = Gpu::of_session(daemon, session) else {
        return false;
    };
    let spare = match gpu {
        Gpu::Real => CONTEXT,
        Gpu::Shared(_) => 0,
    };
    // Where no worker can say, it is tried: a lack of memory leaves it paused.
    let variables = session.variables_of_first(gpu != Gpu::Real);
    let fits = |it: &String| {
        let free = gpu::free(daemon, &gpu, &variables, it);
        free.is_none_or(|free| free >= bytes + spare)
    };
    if !devices.iter().all(fits) {
        return false;
    }
    let request = Resume {
        session: session.name.clone(),
        eager: false,
        on_demand: false,
    };
    match resume(daemon, &request, &mut |_, _, _| {}) {
        Ok(_) => {
            info!(session = %session.name, "`{}` has its memory back", session.name);
            true
        }
        Err(failure) => {
            let pause = again.map_or(AGAIN, |(_, last)| (last * 2).min(LATEST));
            warn!(
                session = %session.name,
                "`{}` is tried again in {} s: {}",
                session.name, pause.as_secs(), failure.message
            );
            session.lock().resume_again = Some((Instant::now() + pause, pause));
            false
        }
    }
}
