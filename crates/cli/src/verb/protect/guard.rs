//! The loop: watch, checkpoint, restore.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fermata_control::Paths;
use fermata_control::user::{
    self, Checkpoint, Checkpointed, FromDaemon, Mode, Session, SessionState, Then, Validate, Verb,
};
use serde_json::json;

use super::bucket::Copied;
use super::costs::Costs;
use super::events::Events;
use super::images::{Images, News, remove};
use crate::daemon::{Daemon, unexpected};
use crate::failure::{DAMAGED, DEVICE_LOST, Failure, LOCKED, NOT_FOUND, USER};
use crate::printer::Printer;
use crate::progress::Progress;
use fermata_report::units;

/// How often a session is looked at.
const TURN: Duration = Duration::from_millis(100);
/// How long a session may take to come back to the next daemon.
const ORPHANED: Duration = Duration::from_secs(60);
/// Failures in a row, without a new image between them, after which it is given up.
const LIMIT: usize = 4;
/// The most time between a failure and the restart from it.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How soon a checkpoint that failed is tried again, at least.
const AGAIN: Duration = Duration::from_secs(1);
/// How long another's use of an image or a session is waited for.
const LOCK_TIME: Duration = Duration::from_secs(60);

/// What the user allows, where images or restores are refused otherwise.
#[derive(Debug, Clone, Copy)]
pub struct Allowed {
    /// Restores go on although files of the program have changed since the image.
    pub changed_files: bool,
    /// Images leave out TCP connections to others.
    pub tcp_close: bool,
}

/// Guards a session.
pub struct Guard {
    name: String,
    images: Images,
    costs: Costs,
    events: Events,
    allowed: Allowed,
    printer: Printer,
    daemon: Daemon,
    due: Instant,
    /// When the newest image was taken.
    newest: Option<Instant>,
    /// Failures since the last image, for the report.
    failures: Vec<String>,
    /// All of them.
    seen: usize,
    orphaned: Option<Instant>,
    /// How often the session was lost before it was guarded, or restored.
    losses: u32,
}

/// What the watch has ended with.
enum Seen {
    Due,
    Ended(Box<Session>),
    Broken(&'static str, Box<Session>),
    Gone,
}

impl Guard {
    /// Begins to guard session `name`, which must run.
    pub fn new(
        name: String,
        images: Images,
        costs: Costs,
        events: Events,
        allowed: Allowed,
        printer: &Printer,
    ) -> Result<Self, Failure> {
        let mut guard = Self {
            name,
            images,
            costs,
            events,
            allowed,
            printer: printer.clone(),
            daemon: Daemon::reach(printer)?,
            due: Instant::now(),
            newest: None,
            failures: Vec::new(),
            seen: 0,
            orphaned: None,
            losses: 0,
        };
        let session = guard.session()?;
        guard.losses = session.losses;
        if session.state == SessionState::Exited {
            let text = format!("session `{}` has ended", guard.name);
            return Err(Failure::new(NOT_FOUND, text).hint("`fermata ps` lists the sessions"));
        }
        let text = format!("protecting session `{}`", guard.name);
        guard
            .events
            .tell("protecting", &text, json!({ "pid": session.pid }));
        Ok(guard)
    }

    /// Guards until the program has ended by itself; its exit status.
    pub fn run(mut self) -> Result<u8, Failure> {
        loop {
            match self.watch()? {
                Seen::Due => self.checkpoint()?,
                Seen::Ended(session) => match (session.exit_status, session.killed) {
                    (Some(0), _) => {
                        let text = format!("session `{}` has ended", self.name);
                        self.events.tell("ended", &text, json!({ "status": 0 }));
                        return Ok(0);
                    }
                    (status, true) => {
                        let text = format!("session `{}` was ended by `fermata kill`", self.name);
                        self.events
                            .tell("killed", &text, json!({ "status": status }));
                        return Ok(status.and_then(|it| u8::try_from(it).ok()).unwrap_or(137));
                    }
                    (Some(status), false) => {
                        self.recover(
                            "program",
                            &format!("ended with status {status}"),
                            Some(&session),
                        )?;
                    }
                    (None, false) => {
                        self.recover("program", "ended while no daemon saw it", Some(&session))?;
                    }
                },
                Seen::Broken(what, session) => {
                    let why = session.note.clone();
                    let why =
                        why.unwrap_or_else(|| "it was lost, and its process has ended".into());
                    self.recover(what, &why, Some(&session))?;
                }
                Seen::Gone => self.recover("daemon", "does not know the session any more", None)?,
            }
        }
    }

    /// Looks until there is something to do.
    fn watch(&mut self) -> Result<Seen, Failure> {
        loop {
            self.tell_news();
            let session = match self.session() {
                Err(e) if e.status == NOT_FOUND => return Ok(Seen::Gone),
                other => other?,
            };
            match session.state {
                SessionState::Exited => return Ok(Seen::Ended(Box::new(session))),
                SessionState::Lost => return Ok(Seen::Broken("worker", Box::new(session))),
                SessionState::Orphaned => {
                    let since = *self.orphaned.get_or_insert_with(Instant::now);
                    if since.elapsed() > ORPHANED {
                        return Ok(Seen::Broken("daemon", Box::new(session)));
                    }
                }
                // A process whose worker was lost has ended since. The others may wait for it.
                SessionState::Running if self.has_lost(&session) => {
                    return Ok(Seen::Broken("worker", Box::new(session)));
                }
                SessionState::Running => {
                    self.orphaned = None;
                    if Instant::now() >= self.due {
                        return Ok(Seen::Due);
                    }
                }
                SessionState::Stopped | SessionState::Paused | SessionState::Restoring => {
                    self.orphaned = None;
                }
            }
            // Polled: no message of the daemon tells of each of these states.
            self.daemon.pause(TURN);
        }
    }

    fn checkpoint(&mut self) -> Result<(), Failure> {
        let path = self.images.next();
        let begun = Instant::now();
        let verb = Verb::Checkpoint(Checkpoint {
            session: self.name.clone(),
            output: Some(path.as_path().into()),
            mode: Mode::Auto,
            then: Then::Run,
            pool_bytes: None,
            validate: Validate::default(),
            tcp_close: self.allowed.tcp_close,
        });
        match self.ask(verb) {
            // It may lack a process, for which the others wait. One that cannot be removed is passed over all the same.
            Ok(FromDaemon::Checkpointed(done))
                if self.session().is_ok_and(|it| self.has_lost(&it)) =>
            {
                drop(remove(&done.image));
            }
            Ok(FromDaemon::Checkpointed(done)) => self.taken(&done, begun),
            Ok(other) => return Err(unexpected(&other)),
            // Before anything is protected, what stands in the way is an error.
            Err(e) if self.newest.is_none() && self.seen == 0 && !passes(&e) && self.runs() => {
                return Err(e);
            }
            // The program may never use the GPU again, and so never end.
            Err(e) if e.status == DEVICE_LOST => return self.recover_device(&e.message),
            Err(e) => {
                self.due = Instant::now() + self.costs.interval().clamp(AGAIN, LONGEST_PAUSE);
                let text = format!("no image of session `{}`: {}", self.name, e.message);
                let detail = json!({ "message": e.message, "hint": e.hint });
                self.events.tell("checkpoint-failed", &text, detail);
            }
        }
        Ok(())
    }

    /// Goes on after a GPU was lost, unless the program was ended meanwhile: the watch sees that.
    fn recover_device(&mut self, why: &str) -> Result<(), Failure> {
        match self.session() {
            Ok(session) if session.state != SessionState::Exited => {
                self.recover("device", why, Some(&session))
            }
            Err(e) if e.status != NOT_FOUND => Err(e),
            _ => Ok(()),
        }
    }

    /// Whether it has lost a worker since it was guarded, or restored.
    fn has_lost(&self, session: &Session) -> bool {
        session.losses > self.losses
    }

    fn taken(&mut self, done: &Checkpointed, begun: Instant) {
        self.images.taken(&done.image);
        let lost = done.stopped_seconds + done.device.stall.waited_seconds;
        self.costs.image(lost, done.seconds);
        self.newest = Some(begun);
        self.failures.clear();
        let interval = self.costs.interval();
        self.due = begun + interval;
        let text = format!(
            "image `{}` in {}, of which the program lost {}; the next in {}",
            done.image.display(),
            units::seconds(done.seconds),
            units::seconds(lost),
            units::seconds(interval.as_secs_f64())
        );
        let detail = json!({ "image": done.image.display().to_string(), "seconds": done.seconds,
            "lost_seconds": lost, "interval": interval.as_secs_f64() });
        self.events.tell("checkpoint", &text, detail);
    }

    /// Restores the newest image that can be restored.
    fn recover(&mut self, what: &str, why: &str, session: Option<&Session>) -> Result<(), Failure> {
        let died = Instant::now();
        self.orphaned = None;
        self.losses = 0;
        self.costs.failure();
        self.seen += 1;
        let log = session.and_then(|it| self.save_log(&it.log));
        let text = format!("{what} of session `{}` failed: {why}", self.name);
        let detail = json!({ "what": what, "why": why, "status": session.and_then(|it| it.exit_status),
            "log": log.as_ref().map(|it| it.display().to_string()) });
        self.events.tell("failure", &text, detail);
        self.note_failure(text)?;
        if session.is_some_and(|it| it.state != SessionState::Exited) {
            self.end()?;
        }
        loop {
            let mut images = self.images.to_restore();
            if images.is_empty() {
                images.extend(self.fetch()?);
            }
            for image in images {
                match self.restore(&image) {
                    Ok(()) => {
                        self.restored(&image, died);
                        return Ok(());
                    }
                    Err(e) if e.status == DAMAGED => {
                        self.images.damaged(&image);
                        self.tell_damaged(&image, &e.message);
                    }
                    // Somebody has removed it: that says nothing about the older ones.
                    Err(e) if e.status == NOT_FOUND && !image.exists() => self.images.gone(&image),
                    Err(e) => {
                        let text = format!(
                            "image `{}` was not restored: {}",
                            image.display(),
                            e.message
                        );
                        let detail =
                            json!({ "image": image.display().to_string(), "message": e.message });
                        self.events.tell("restore-failed", &text, detail);
                        self.note_failure(text)?;
                        break;
                    }
                }
            }
        }
    }

    /// An image from the bucket, where none here can be restored.
    fn fetch(&mut self) -> Result<Option<PathBuf>, Failure> {
        match self.images.fetch() {
            Ok(Some(image)) => {
                let text = format!("brought image `{}` from the bucket", image.display());
                let detail = json!({ "image": image.display().to_string() });
                self.events.tell("fetched", &text, detail);
                Ok(Some(image))
            }
            Ok(None) => Err(self.give_up("there is no image to restore")),
            Err(e) => {
                let text = format!("no image was brought from the bucket: {}", e.message);
                let detail = json!({ "message": e.message, "hint": e.hint });
                self.events.tell("fetch-failed", &text, detail);
                self.note_failure(text)?;
                Ok(None)
            }
        }
    }

    fn restored(&mut self, image: &Path, died: Instant) {
        let seconds = died.elapsed().as_secs_f64();
        self.costs.restart(seconds);
        let interval = self.costs.interval();
        self.due = Instant::now() + interval;
        let repeated = self
            .newest
            .map(|it| died.saturating_duration_since(it).as_secs_f64());
        let text = format!(
            "session `{}` runs again from `{}` after {}",
            self.name,
            image.display(),
            units::seconds(seconds)
        );
        let detail = json!({ "image": image.display().to_string(), "seconds": seconds,
            "repeated_seconds": repeated, "interval": interval.as_secs_f64() });
        self.events.tell("restored", &text, detail);
    }

    fn restore(&mut self, image: &Path) -> Result<(), Failure> {
        let verb = Verb::Restore(user::Restore {
            name: Some(self.name.clone()),
            ignore_changed_files: self.allowed.changed_files,
            ..user::Restore::of(image)
        });
        let until = Instant::now() + LOCK_TIME;
        loop {
            match self.ask(verb.clone()) {
                Ok(FromDaemon::Restored(_)) => return Ok(()),
                Ok(other) => return Err(unexpected(&other)),
                // The daemon died: it may have been restored all the same.
                Err(e) if e.hung_up && self.runs() => return Ok(()),
                Err(e) if passes(&e) && Instant::now() < until => self.daemon.pause(TURN),
                Err(e) => return Err(e),
            }
        }
    }

    /// Ends what is left of a session that has lost its worker or its daemon.
    fn end(&mut self) -> Result<(), Failure> {
        let verb = Verb::Kill {
            name: self.name.clone(),
            signal: 9,
        };
        match self.ask(verb) {
            Err(e) if e.status != NOT_FOUND => Err(e),
            _ => Ok(()),
        }
    }

    /// Waits a while that grows with the failures in a row; after too many it is over.
    fn note_failure(&mut self, text: String) -> Result<(), Failure> {
        self.failures.push(text);
        if self.failures.len() >= LIMIT {
            return Err(self.give_up("it fails again and again without a new image between"));
        }
        let pause = match self.failures.len() {
            0 | 1 => Duration::ZERO,
            n => Duration::from_secs(1 << (n - 2).min(5)),
        };
        // What makes it fail may pass with time, and tells nobody.
        std::thread::sleep(pause.min(LONGEST_PAUSE));
        Ok(())
    }

    fn give_up(&self, why: &str) -> Failure {
        let report = self.failures.join("\n  ");
        let text = format!(
            "session `{}` is protected no more: {why}\n  {report}",
            self.name
        );
        let images: Vec<String> = self
            .images
            .to_restore()
            .iter()
            .map(|it| it.display().to_string())
            .collect();
        let detail = json!({ "why": why, "failures": self.failures, "images": images });
        // The failure says the same.
        self.events.tell("gave-up", "", detail);
        let hint = match images.first() {
            Some(image) => format!("its images are kept: `fermata restore {image}` tries again"),
            None => "`fermata images verify` says what is damaged".to_owned(),
        };
        Failure::new(USER, text).hint(hint)
    }

    fn tell_news(&mut self) {
        for news in self.images.news() {
            match news {
                News::Valid => {}
                News::Damaged(path, why) => self.tell_damaged(&path, &why),
                News::Copied(copied) => self.tell_copied(&copied),
                News::Removed(path) => {
                    let text = format!("removed image `{}`", path.display());
                    let detail = json!({ "image": path.display().to_string() });
                    self.events.tell("removed", &text, detail);
                }
            }
        }
    }

    fn tell_copied(&self, copied: &Copied) {
        let (image, address) = (copied.image.display().to_string(), &copied.address);
        match &copied.result {
            Ok(Some(pushed)) => {
                let text = format!(
                    "copied to `{address}`: {} in {}",
                    units::bytes(pushed.written_bytes),
                    units::seconds(copied.seconds)
                );
                let detail = json!({ "image": image, "address": address, "bytes": pushed.bytes,
                    "written_bytes": pushed.written_bytes, "seconds": copied.seconds });
                self.events.tell("copied", &text, detail);
            }
            Ok(None) => {}
            Err(e) => {
                let text = format!(
                    "image `{image}` was not copied to `{address}`: {}",
                    e.message
                );
                let detail = json!({ "image": image, "address": address, "message": e.message, "hint": e.hint });
                self.events.tell("copy-failed", &text, detail);
            }
        }
        if let Err(e) = &copied.thinned_out {
            let text = format!("older images stay in the bucket: {}", e.message);
            let detail = json!({ "message": e.message, "hint": e.hint });
            self.events.tell("not-thinned-out", &text, detail);
        }
    }

    fn tell_damaged(&self, path: &Path, why: &str) {
        let text = format!("image `{}` is damaged: {why}", path.display());
        let detail = json!({ "image": path.display().to_string(), "message": why });
        self.events.tell("image-damaged", &text, detail);
    }

    /// Keeps what the program has printed: the session that follows has a log of its own.
    fn save_log(&self, log: &Path) -> Option<PathBuf> {
        let folder = Paths::find().runtime.join("protect").join(&self.name);
        fs::create_dir_all(&folder).ok()?;
        let kept = folder.join(format!("{}.log", self.seen));
        fs::copy(log, &kept).ok()?;
        Some(kept)
    }

    fn runs(&mut self) -> bool {
        let live = |it: &Session| it.state != SessionState::Exited;
        self.session().is_ok_and(|it| live(&it))
    }

    fn session(&mut self) -> Result<Session, Failure> {
        let verb = Verb::Session {
            name: self.name.clone(),
        };
        for _ in 0..3 {
            match self.ask(verb.clone()) {
                Ok(FromDaemon::Session(session)) => return Ok(session),
                Ok(other) => return Err(unexpected(&other)),
                Err(e) if e.hung_up => {}
                Err(e) => return Err(e),
            }
        }
        let text = format!(
            "the daemon ends each time it is asked for session `{}`",
            self.name
        );
        Err(Failure::new(USER, text).hint("its log says why: `fermatad.log` in its folder"))
    }

    /// Asks the daemon; if it has ended, the next one is started for whatever is asked then.
    fn ask(&mut self, verb: Verb) -> Result<FromDaemon, Failure> {
        let answer = self.daemon.ask(verb, &Progress::new(&self.printer));
        if answer.as_ref().is_err_and(|e| e.hung_up) {
            let text = "the daemon has ended; the next one is started";
            self.events.tell("daemon-ended", text, json!({}));
            self.daemon = Daemon::reach(&self.printer)?;
        }
        answer
    }
}

/// Whether the same may work in a moment.
fn passes(failure: &Failure) -> bool {
    failure.status == LOCKED || failure.hung_up
}
