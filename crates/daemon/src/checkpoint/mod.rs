//! Takes an image of a session.
//!
//! ```text
//!  preflight ─► quiesce ─► detach ─┬─► worker: Save ──┬─► reattach ─► worker: Finish ─► commit
//!                  │               └─► CRIU: dump  ───┘   (or stays stopped and is killed last)
//!                  └── program stopped ────────────────────────┘
//! ```
//! Every process of the session that uses CUDA is stopped, detached and saved at the same time, each by its own worker;
//! CRIU dumps all of them at once. This is the protocol `stop`; `concurrent` has the other protocols, and `paused` the checkpoint
//! of a paused session, which has no workers.
//! After a failure the program goes on as before, and there is no image. The exception: if the program cannot go on after the
//! stop, the image is still written.

mod concurrent;
mod finish;
mod halt;
mod host;
mod image;
mod parts;
mod paused;
pub mod preflight;
mod quiesce;
mod settle;
mod settled;
mod stop;
mod sum;
mod taking;

use std::sync::Arc;
use std::time::Duration;

use fermata_control::user::{Checkpoint, Checkpointed, Mode, SessionState, Then};
use fermata_control::worker::{FailureKind, Way};
use fermata_store::image::{Draft, sweep_drafts};
use tracing::info;

pub(crate) use self::finish::finished;
pub(crate) use self::halt::Halt;
use self::halt::workers_of;
pub(crate) use self::host::{explain, no_connection, note_folders};
use self::image::check_space;
pub(crate) use self::image::{devices_of, folder_bytes, newest, target};
use self::parts::Parts;
use self::taking::Taking;
use crate::agent::attach;
use crate::criu::Criu;
use crate::daemon::{Daemon, check_running};
use crate::failure::{Failure, Hint, Result, fail, from_store};
use crate::helpers::namespace;
use crate::host::pages;
use crate::open_files::tcp::reuse;
use crate::phases::Phases;
use crate::proc;
use crate::progress::Report;
use crate::session::{Inner, Session};
use crate::turn::{ATTEMPTS, Others, Present, Turn};

/// How often a checkpoint is tried again because of its moment ([`host::is_passing`]): each attempt stops the program.
const PASSING: u32 = 3;
/// How long the first process of a program that has just been started may take to become known.
const ROOT_TIME: Duration = Duration::from_secs(30);
/// How long host memory of an earlier on-demand restore may take to arrive.
const PAGES_TIME: Duration = Duration::from_secs(300);

/// Takes an image as `request` says.
///
/// # Errors
/// The reason; the program goes on, and there is no image.
pub fn checkpoint(
    daemon: &Arc<Daemon>,
    request: &Checkpoint,
    report: &mut Report<'_>,
) -> Result<Checkpointed> {
    let session = daemon.session_or_pid(&request.session)?;
    let mut turn = Turn::take_settled(&session)?;
    if session.lock().paused().is_none() {
        check_running(&session)?;
    }
    let _quiet = daemon.cache.as_ref().map(|cache| cache.busy());
    let mut how = How {
        ahead: true,
        once: true,
    };
    let mut taken = attempt(daemon, &session, request, how, report);
    let mut passing = 0;
    for _ in 1..ATTEMPTS {
        // Without the copy ahead, an attempt is shorter, so processes that start and end interfere less often.
        how.ahead = match &taken {
            Err((_, Others::Come)) => {
                turn = turn.let_in()?;
                false
            }
            Err((_, Others::Left)) => false,
            Err((failure, Others::Same)) if host::is_passing(failure) && passing < PASSING => {
                info!(session = %session.name, "another attempt: {}", failure.message);
                passing += 1;
                how.once = false;
                true
            }
            _ => break,
        };
        taken = attempt(daemon, &session, request, how, report);
    }
    let taken = taken.map_err(|(failure, _)| failure);
    if let Some(tier) = &daemon.tier {
        tier.refill();
    }
    let taken = taken?;
    if let Some(cache) = &daemon.cache {
        cache.used(&taken.image);
    }
    info!(
        session = %session.name,
        "checkpoint of `{}` is `{}`",
        session.name,
        taken.image.display()
    );
    Ok(taken)
}

/// How an attempt is made.
#[derive(Clone, Copy)]
struct How {
    /// Host memory may be copied before the stop.
    ahead: bool,
    /// Chunks that several workers have may be stored by one of them.
    once: bool,
}

/// Tries to take an image. With a failure it returns whether another attempt may succeed: if the session lives, and meanwhile a
/// process has begun to use CUDA (its connection was in the way), or one that used it has ended.
fn attempt(
    daemon: &Arc<Daemon>,
    session: &Arc<Session>,
    request: &Checkpoint,
    how: How,
    report: &mut Report<'_>,
) -> std::result::Result<Checkpointed, (Failure, Others)> {
    let taking = Taking::prepare(daemon, session, request, how)
        .map_err(|failure| (failure, Others::Same))?;
    let present = Present::of(session);
    info!(session = %session.name, "checkpoint of `{}` begins", session.name);
    taking.take(request, report).map_err(|failure| {
        let root = session.processes().root;
        let runs = check_running(session).is_ok() && root.is_some_and(|it| !it.is_ending());
        let others = match runs {
            true => present.since(session, &failure),
            false => Others::Same,
        };
        (failure, others)
    })
}

impl<'a> Taking<'a> {
    /// Does all checks and preparations that are possible while the program runs.
    fn prepare(
        daemon: &'a Arc<Daemon>,
        session: &'a Arc<Session>,
        request: &Checkpoint,
        how: How,
    ) -> Result<Self> {
        Criu::check_permitted()?;
        let criu = daemon.criu()?;
        // A program may ask for an image before the thread that has started it has noted its first process.
        let known = |it: &Inner| {
            let over = it.state == SessionState::Exited;
            (over || it.root.is_some()).then_some(it.root)
        };
        let root = session
            .wait_for(ROOT_TIME, known)
            .flatten()
            .filter(|it| !it.is_ending())
            .ok_or_else(|| {
                fail(
                    FailureKind::NotFound,
                    format!("session `{}` has ended", session.name),
                )
            })?;
        preflight::check_tree(root.pid, || session.processes(), request.tcp_close)?;
        let (folder, name) = target(daemon, &session.name, request.output.as_ref())?;
        // Remains of a killed checkpoint take space, too: opening the store and sweeping drafts remove them.
        let store = daemon.store()?;
        sweep_drafts(&folder).map_err(|e| from_store(&e))?;
        let ready = daemon.tier.as_ref().map_or(0, |tier| tier.ready_bytes());
        let needed_bytes = check_space(daemon, session, root, &folder, ready)?;
        wait_for_pages(session)?;
        let draft = Draft::create(&store, &folder, &name).map_err(|e| from_store(&e))?;
        reuse::allow(&proc::tree(root.pid));
        Ok(Self {
            daemon,
            session,
            criu,
            folders: vec![draft.path().to_owned()],
            draft,
            root,
            tcp_close: request.tcp_close,
            ends: request.then == Then::Stop,
            // If the program is to be ended, the total time counts, and CRIU alone is faster.
            copies_memory: how.ahead && request.then == Then::Run,
            stores_once: how.once,
            needed_bytes,
            phases: Phases::start(),
        })
    }

    fn take(mut self, request: &Checkpoint, report: &mut Report<'_>) -> Result<Checkpointed> {
        let paused = self.session.lock().paused().cloned();
        if let Some(entry) = paused {
            return self.paused(entry, request.then, report);
        }
        let copy = self.copy_memory(report);
        // Read only now: processes may have ended meanwhile.
        let served = self.session.lock().served();
        if served.is_empty() {
            let ahead = self.ahead(copy, report)?;
            let record = self.record(&[]);
            let dumped = self.phases.time("host", || self.host(&record, ahead))?;
            let parts = Parts {
                copy: dumped.copy,
                held: dumped.held,
                stopped_seconds: dumped.stopped.as_secs_f64(),
                resumed: true,
                saved: true,
                ..Parts::new(record, Mode::Stop)
            };
            return self.finish(parts, request.then, report);
        }
        attach::share_chunks(self.session, workers_of(&served), self.stores_once)?;
        for _ in 1..served.len() {
            let folder = self.draft.add_part().map_err(|e| from_store(&e))?;
            self.folders.push(folder);
        }
        let ready = self.ready(&served, request);
        let taken = ready.and_then(|way| match way {
            None => self.stopped(&served, copy, Mode::Stop, report),
            Some(Way::Recopy) => {
                let began = self.copy_ahead(&served, report)?;
                let parts = self.stopped(&served, copy, Mode::Recopy, report)?;
                Ok(Parts { began, ..parts })
            }
            Some(Way::Snapshot | Way::Cow) => self.behind(&served, copy, request.then, report),
        });
        match taken {
            Ok(parts) => self.finish(parts, request.then, report),
            Err(failure) => {
                self.abandon(&served);
                Err(failure)
            }
        }
    }
}

/// Waits until all host memory of an earlier restore has come: CRIU cannot dump a process whose pages are still missing.
fn wait_for_pages(session: &Session) -> Result<()> {
    let (known, init) = {
        let inner = session.lock();
        (inner.pages.clone(), inner.init)
    };
    let work = namespace::work_folder(&session.dir);
    let there = match (known, init) {
        (Some(known), _) => {
            known.hurry();
            known.wait(PAGES_TIME)
        }
        (None, Some(init)) => pages::are_there(&work, init, PAGES_TIME),
        (None, None) => true,
    };
    if there {
        return Ok(());
    }
    let message = format!(
        "the memory of session `{}` is still coming from its image",
        session.name
    );
    Err(fail(FailureKind::Locked, message).hint("try again later, or restore with `--eager`"))
}
