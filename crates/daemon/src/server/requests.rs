//! Serves users' connections, on each one request at a time.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fermata_control::user::{
    DeviceChoice, FromDaemon, Progress, Request, Restore, Resume, Verb, Warmed,
};
use fermata_control::worker::FailureKind;
use fermata_control::{Connection, PROTOCOL};
use fermata_store::image::Image;
use fermata_store::is_memory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use tracing::warn;

use crate::checkpoint::checkpoint;
use crate::daemon::Daemon;
use crate::doctor;
use crate::failure::{Hint, OrFail, Result, fail, next_step};
use crate::foreign;
use crate::gpu::driver::Driver;
use crate::gpu::visible::variables_of_process;
use crate::images::record::Record;
use crate::memory;
use crate::open_files::input;
use crate::open_files::listening;
use crate::pause::{pause, resume};
use crate::pool::spare_workers;
use crate::priority::{self, Gpu, Need};
use crate::restore::{Source, resolve, restore};
use crate::run::run;
use crate::session::Session;
use crate::turn::Patience;
use crate::worker::{Variables, variables_of};

/// A connection with a user's tool.
pub type User = Connection<Request, FromDaemon>;

/// How long to wait for the end of a killed session.
const KILL_TIME: Duration = Duration::from_secs(60);
/// An idle connection is looked at this often.
const IDLE: Duration = Duration::from_secs(3600);
/// Not waiting.
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Serves requests until the user closes the connection or sends something else.
///
/// Sessions that are [leased](fermata_control::user::Restore::leased) end with the connection.
pub fn serve(daemon: &Arc<Daemon>, user: &User) {
    let mut leased = Vec::new();
    serve_all(daemon, user, &mut leased);
    for session in leased {
        end_lease(daemon, &session);
    }
}

fn serve_all(daemon: &Arc<Daemon>, user: &User, leased: &mut Vec<Arc<Session>>) {
    loop {
        let (request, fds) = match user.recv(IDLE) {
            Ok(received) => received,
            Err(e) if e.is_timeout() => continue,
            Err(e) if e.is_closed() => return,
            Err(e) => {
                let message = format!("a request cannot be read: {}", crate::failure::chain(&e));
                warn!("{message}");
                // The user may be gone.
                let _ = user.send(
                    &FromDaemon::Failed(fail(FailureKind::Internal, message)),
                    &[],
                );
                return;
            }
        };
        let end = match request.verb {
            // The main thread waits for this signal, and ends everything.
            Verb::Shutdown { .. } => Some(Signal::TERM),
            // Sessions outlive a daemon that is killed, and the next one takes them over.
            Verb::Leave => Some(Signal::KILL),
            _ => None,
        };
        let leases = matches!(&request.verb, Verb::Restore(restore) if restore.leased);
        let answer = answer(daemon, user, request, fds).unwrap_or_else(|mut failure| {
            warn!("failed: {}", failure.message);
            if failure.hint.is_empty() {
                failure.hint = next_step(failure.kind, &daemon.log);
            }
            FromDaemon::Failed(failure)
        });
        if let (true, FromDaemon::Restored(restored)) = (leases, &answer) {
            let sessions = restored.sessions.iter();
            leased.extend(sessions.filter_map(|it| daemon.session(&it.name).ok()));
        }
        let sent = user.send(&answer, &[]);
        if let (Some(signal), FromDaemon::Done) = (end, &answer) {
            // Fails for no process that asks for itself.
            rustix::process::kill_process(rustix::process::getpid(), signal).ok();
            return;
        }
        if sent.is_err() {
            return;
        }
    }
}

/// Ends a session and forgets it. One that has ended by itself stays in the list, with what it printed.
fn end_lease(daemon: &Daemon, session: &Arc<Session>) {
    // It has ended.
    let _ = session.signal(Signal::KILL.as_raw());
    if session.wait(KILL_TIME) && session.describe().killed {
        daemon.remove(session);
    }
}

fn answer(
    daemon: &Arc<Daemon>,
    user: &User,
    request: Request,
    fds: Vec<OwnedFd>,
) -> Result<FromDaemon> {
    let ends = matches!(request.verb, Verb::Shutdown { .. } | Verb::Leave);
    if request.protocol != PROTOCOL && !ends {
        let message = format!(
            "the tool speaks protocol {}, the daemon {PROTOCOL}",
            request.protocol
        );
        return Err(fail(FailureKind::Internal, message)
            .hint("both must be of one release: `fermata shutdown` ends the daemon, or `fermata shutdown --keep` if sessions run; then try again"));
    }
    let mut last = (String::new(), std::time::Instant::now());
    let mut progress = |phase: &str, done: u64, total: u64| {
        if last.0 == phase && done < total && last.1.elapsed() < Duration::from_millis(50) {
            return;
        }
        last = (phase.to_owned(), std::time::Instant::now());
        tell(user, phase, done, total);
    };
    match request.verb {
        Verb::Run(run_request) => {
            let stdin = fds.into_iter().next().and_then(input::usable);
            Ok(FromDaemon::Session(
                run(daemon, &run_request, stdin)?.describe(),
            ))
        }
        Verb::Ps => Ok(FromDaemon::Sessions(
            daemon.sessions().iter().map(|s| s.describe()).collect(),
        )),
        Verb::Session { name } => Ok(FromDaemon::Session(daemon.session(&name)?.describe())),
        Verb::Memory => Ok(FromDaemon::Memory(memory::of_all(daemon))),
        Verb::SpareWorkers => Ok(FromDaemon::SpareWorkers(spare_workers(daemon))),
        Verb::Listening { name } => Ok(FromDaemon::Listening(listening::listening(
            &*daemon.session(&name)?,
        ))),
        Verb::Kill { name, signal } => kill(&*daemon.session(&name)?, signal),
        Verb::Wait { name } => wait(&*daemon.session(&name)?, user),
        Verb::Checkpoint(request) => {
            let taken = match foreign::checkpoint(daemon, &request, &mut progress)? {
                Some(taken) => taken,
                None => checkpoint(daemon, &request, &mut progress)?,
            };
            Ok(FromDaemon::Checkpointed(taken))
        }
        Verb::Restore(request) => {
            let pipe = fds.into_iter().find(|fd| input::pipe_of(fd).is_some());
            let need = || {
                let image = resolve(daemon, &request.image).ok()?;
                starting(daemon, &request, &image)
            };
            if daemon.sessions().iter().any(|it| it.live())
                && let Some((need, variables)) = need()
            {
                priority::ahead(daemon, &need, &variables);
            }
            let need = || need().map(|it| it.0);
            let restored = priority::retried(daemon, need, || {
                let pipe = pipe.as_ref().map(OwnedFd::try_clone).transpose();
                let pipe = pipe.or_fail(FailureKind::Host, || "cannot pass input on".into())?;
                restore(daemon, &request, pipe, &mut progress)
            });
            restored.map(FromDaemon::Restored)
        }
        Verb::Pause(request) => {
            let paused = pause(daemon, &request, Patience::Usual, &mut progress);
            paused.map(FromDaemon::Paused)
        }
        Verb::Resume(request) => {
            let need = || resuming(daemon, &request);
            let resumed =
                priority::retried(daemon, need, || resume(daemon, &request, &mut progress));
            resumed.map(FromDaemon::Resumed)
        }
        Verb::Warm {
            image,
            trust_owner,
            gpus,
        } => {
            let request = Restore {
                trust_owner,
                gpus,
                // No program goes on from it.
                ignore_changed_files: true,
                ..Restore::of(image)
            };
            warm(daemon, &request, &mut |done, total| {
                progress("cache", done, total);
            })
        }
        Verb::Doctor { name: None } => Ok(FromDaemon::Report(doctor::host(daemon))),
        Verb::Doctor { name: Some(name) } => Ok(FromDaemon::Report(doctor::session(
            daemon,
            &*daemon.session_or_pid(&name)?,
        ))),
        Verb::Status => Ok(FromDaemon::Status(daemon.status())),
        Verb::Shutdown { force } => shutdown(daemon, force),
        Verb::Leave => leave(daemon),
    }
}

/// What a session from an image lacks that cannot start.
fn starting(daemon: &Daemon, request: &Restore, image: &Path) -> Option<(Need, Variables)> {
    let image = Image::open(image).ok()?;
    let record = Record::load(image.manifest()).ok()?;
    let choice = match (request.device, record.soft) {
        (DeviceChoice::Auto, Some(true)) => DeviceChoice::Soft,
        (choice, _) => choice,
    };
    let driver = Driver::find(choice, &daemon.paths.home).ok()?;
    let gpus = request.gpus.as_deref().or(record.gpus.as_deref());
    let first = record.agent.as_ref().and_then(|it| it.visible.as_ref());
    let variables = variables_of(record.variables.clone());
    let variables = variables_of_process(&variables, gpus, driver.soft, first);
    let gpu = Gpu::of(driver.soft, &variables)?;
    let name = request.name.as_deref().unwrap_or(&image.manifest().session);
    let priority = request.priority.unwrap_or(record.priority);
    // How it is spread over several devices is not known here.
    let bytes = match image.manifest().devices.len() {
        1 => image.manifest().totals.device_bytes,
        _ => 0,
    };
    Some((Need::to_start(name, priority, gpu, bytes), variables))
}

/// What a paused session lacks that cannot be resumed.
fn resuming(daemon: &Daemon, request: &Resume) -> Option<Need> {
    let session = daemon.session_or_pid(&request.session).ok()?;
    let gpu = Gpu::of_session(daemon, &session)?;
    let bytes = session.lock().paused()?.data.device_bytes;
    Some(Need::to_start(&session.name, session.priority, gpu, bytes))
}

/// Makes ready for a restore as `request` says.
fn warm(
    daemon: &Arc<Daemon>,
    request: &Restore,
    report: &mut dyn FnMut(u64, u64),
) -> Result<FromDaemon> {
    let source = Source::open(daemon, request, None)?;
    let image = source.image.dir();
    let warmed = match &daemon.cache {
        Some(cache) => cache.warm(image, report)?,
        None => Warmed {
            image: image.to_owned(),
            in_memory: is_memory(source.store()),
            ..Warmed::default()
        },
    };
    let [workers, workers_wanted] = source.ready_ahead()?;
    if warmed.cache.is_none() && workers_wanted == 0 && !source.image.memory_in_store() {
        let why = "the daemon keeps no cache, and no workers for images";
        return Err(fail(FailureKind::User, why)
            .hint(
                "put `cache = \"16G\"` into the configuration file, or `spare_preloaded` and `spare_workers` of 1 or more; `fermata \
                 shutdown --keep` ends this daemon, and the next one reads the file",
            ));
    }
    Ok(FromDaemon::Warmed(Warmed {
        workers,
        workers_wanted,
        ..warmed
    }))
}

/// Tells a user how far a request is. The program may stand still meanwhile: a tool that does not read, because it
/// is stopped or gone, is not waited for, and misses nothing.
fn tell(user: &User, phase: &str, done: u64, total: u64) {
    let mut set = [PollFd::from_borrowed_fd(user.as_fd(), PollFlags::OUT)];
    if !poll(&mut set, Some(&NOW)).is_ok_and(|ready| ready > 0) {
        return;
    }
    let progress = Progress {
        phase: phase.into(),
        done,
        total,
    };
    let _ = user.send(&FromDaemon::Progress(progress), &[]);
}

fn kill(session: &Session, signal: i32) -> Result<FromDaemon> {
    session.signal(signal)?;
    if signal == Signal::KILL.as_raw() && !session.wait(KILL_TIME) {
        let message = format!("session `{}` does not end", session.name);
        return Err(fail(FailureKind::Internal, message)
            .hint("a process may be stuck in the kernel: look at it with `ps`"));
    }
    Ok(FromDaemon::Done)
}

/// Waits for the program's end, or for the user to go away.
fn wait(session: &Session, user: &User) -> Result<FromDaemon> {
    while !session.wait(Duration::from_millis(200)) {
        let mut set = [PollFd::from_borrowed_fd(user.as_fd(), PollFlags::RDHUP)];
        if poll(&mut set, Some(&NOW)).is_ok_and(|ready| ready > 0) {
            break;
        }
    }
    Ok(FromDaemon::Session(session.describe()))
}

fn shutdown(daemon: &Daemon, force: bool) -> Result<FromDaemon> {
    daemon.close_sessions(force).map_err(|live| {
        let message = format!("{} session(s) still run: {}", live.len(), live.join(", "));
        fail(FailureKind::User, message).hint(
            "`fermata kill NAME` ends one, `fermata shutdown --force` all of them; `fermata shutdown --keep` leaves them to the \
             next daemon",
        )
    })?;
    Ok(FromDaemon::Done)
}

/// Whether the daemon can end without harm to sessions that go on.
fn leave(daemon: &Daemon) -> Result<FromDaemon> {
    if std::process::id() == 1 {
        let message = "the daemon is the first process of its container, which ends with it";
        return Err(fail(FailureKind::User, message)
            .hint("`fermata shutdown --force` ends it with all sessions"));
    }
    // Also those that have ended: their last image may still be written.
    let busy = daemon.sessions().into_iter().find(|it| it.is_changing());
    match busy {
        None => Ok(FromDaemon::Done),
        Some(session) => {
            let message = format!(
                "session `{}` is being checkpointed, restored, paused or resumed",
                session.name
            );
            Err(fail(FailureKind::Locked, message).hint("try again when that has ended"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_tool_that_does_not_read_is_not_waited_for() {
        let (ours, mut theirs) = UnixStream::pair().expect("sockets");
        let user = User::new(ours.into(), "the user's tool");
        // More than a socket takes.
        (0..20_000).for_each(|done| tell(&user, "device", done, 20_000));
        drop(user);
        // A message that was waited for in vain would be there in part.
        let mut rest = Vec::new();
        theirs.read_to_end(&mut rest).expect("read");
        let (mut rest, mut told) = (&rest[..], 0);
        while let Some((length, more)) = rest.split_first_chunk() {
            let length = u32::from_le_bytes(*length) as usize;
            assert!(length <= more.len(), "message {told} was waited for");
            (rest, told) = (&more[length..], told + 1);
        }
        assert!(rest.is_empty() && (1..20_000).contains(&told), "{told}");
    }
}
