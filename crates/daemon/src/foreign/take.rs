//! The image of a foreign program.
//!
//! ```text
//!  draft, CRIU ready ─► lock ─► move ─► dump ─► move back, unlock ─► pages into the store, commit
//!                        └──── the program stands still ────────┘
//! ```

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_control::user::{Checkpoint, Checkpointed, Mode, Then, Totals};
use fermata_control::worker::FailureKind;
use fermata_store::image::{
    DeviceRecord, Draft, HostRecord, Image, Manifest, Program, SessionTotals, sweep_drafts,
};
use fermata_store::moments;
use tracing::{info, warn};

use super::examine::Target;
use super::helper::Helper;
use crate::checkpoint::{explain, folder_bytes, no_connection, note_folders, target};
use crate::criu::dump::{Done, Dump, Dumping, HeldTree};
use crate::criu::kept_logs::keep_hint;
use crate::criu::{Criu, DUMP_LOG};
use crate::daemon::Daemon;
use crate::failure::{Failure, Hint as _, OrFail as _, Result, fail, from_store};
use crate::host::stored;
use crate::images::record::{self, Record};
use crate::images::space::{self, MARGIN};
use crate::open_files::tcp::dumped;
use crate::open_files::tcp::live;
use crate::open_files::tcp::reuse;
use crate::open_files::temporary;
use crate::phases::Phases;
use crate::proc;
use crate::progress::Report;
use crate::worker::texts;

/// How long the end of a program that is stopped for good may take.
const STOP_TIME: Duration = Duration::from_secs(15);
/// Where CRIU's log of the last dump of a foreign program is kept, in the runtime folder.
const KEPT_LOG: &str = "foreign-dump.log";

/// A checkpoint under way.
pub(super) struct ByDriver<'a> {
    daemon: &'a Arc<Daemon>,
    target: &'a Target,
    criu: Criu,
    draft: Draft,
    tcp_close: bool,
    /// Whether the program ends with the image: then nothing of it runs between its dump and its end.
    ends: bool,
    phases: Phases,
}

impl<'a> ByDriver<'a> {
    /// Everything that can be made while the program runs.
    ///
    /// # Errors
    /// The reason; nothing is left.
    pub fn prepare(daemon: &'a Arc<Daemon>, of: &'a Target, request: &Checkpoint) -> Result<Self> {
        let criu = daemon.criu()?;
        let (folder, name) = target(daemon, &of.name, request.output.as_ref())?;
        let store = daemon.store()?;
        sweep_drafts(&folder).map_err(|e| from_store(&e))?;
        let bytes = space::resident_bytes(of.root.pid) + of.device_bytes;
        // On one file system not both at once: what is in the store goes from the files.
        space::check_space(&folder, bytes + MARGIN)?;
        space::check_space(store.dir(), bytes + MARGIN)?;
        let draft = Draft::create(&store, &folder, &name).map_err(|e| from_store(&e))?;
        reuse::allow(&proc::tree(of.root.pid));
        Ok(Self {
            daemon,
            target: of,
            criu,
            draft,
            tcp_close: request.tcp_close,
            ends: request.then == Then::Stop,
            phases: Phases::start(),
        })
    }

    /// Takes it.
    ///
    /// # Errors
    /// The reason; the program runs as before, or the reason says that it cannot.
    pub fn take(self, request: &Checkpoint, report: &mut Report<'_>) -> Result<Checkpointed> {
        let of = self.target;
        info!(
            "checkpoint of process {} (`{}`) begins",
            of.root.pid, of.name
        );
        report("host ready", 0, 0);
        let dumping = self.phases.time("host ready", || self.ready())?;
        let begun = Instant::now();
        let taken = self.stopped(dumping, report);
        let back = match (&taken, request.then) {
            (Ok(_), Then::Stop) => Ok(()),
            _ => self.back(report),
        };
        let stopped = begun.elapsed().as_secs_f64();
        let (manifest, held) = taken.map_err(|failure| match &back {
            Ok(()) => failure,
            Err(second) => stands_still(of, second, &failure.message),
        })?;
        let daemon = self.daemon;
        match self.commit(manifest, stopped, report) {
            Ok(image) => {
                let path = image.dir().to_owned();
                if let Err(second) = back {
                    let failure = stands_still(of, &second, "its image is complete");
                    let path = path.display();
                    return Err(failure.hint(format!(
                        "end it, and `fermata restore {path}` brings it back"
                    )));
                }
                if request.then == Then::Stop {
                    end(of, held)?;
                }
                info!(
                    "checkpoint of process {} is `{}`",
                    of.root.pid,
                    path.display()
                );
                Ok(answer(of, image.manifest(), path, request.then))
            }
            Err(failure) => {
                // It was to be ended with the image; without one it goes on.
                drop(held);
                let back = match request.then {
                    Then::Stop => bring_back(daemon, of),
                    Then::Run => back,
                };
                match back {
                    Ok(()) => Err(failure),
                    Err(second) => Err(stands_still(of, &second, &failure.message)),
                }
            }
        }
    }

    /// Has CRIU make ready.
    fn ready(&self) -> Result<Dumping> {
        let how = Dump {
            tcp_close: self.tcp_close,
            shell_job: true,
            held: self.ends,
            ..Dump::default()
        };
        let host = self.draft.host();
        let mut dumping = Dumping::begin(&self.criu, self.target.root.pid, &host, how)
            .map_err(|failure| self.explained(failure))?;
        dumping.ready().map_err(|failure| self.explained(failure))?;
        Ok(dumping)
    }

    /// Locks the program, moves its device memory and dumps it. After a failure it has to be brought back; CRIU then keeps
    /// nothing of it from running.
    fn stopped(
        &self,
        dumping: Dumping,
        report: &mut Report<'_>,
    ) -> Result<(Manifest, Option<HeldTree>)> {
        let Target { helper, using, .. } = self.target;
        // Read now: later a process may have ended.
        let numbers: Vec<u32> = using.iter().filter_map(|it| proc::inner_pid(*it)).collect();
        report("lock", 0, 0);
        self.phases.time("lock", || helper.lock(using))?;
        moments::pass("foreign-locked");
        let before = space::resident_bytes(self.target.root.pid);
        report("driver", 0, self.target.device_bytes);
        let bytes = self.target.device_bytes;
        self.phases
            .time("driver", || helper.checkpoint(using, bytes))?;
        let after = space::resident_bytes(self.target.root.pid);
        let moved = after.saturating_sub(before);
        self.phases.moved("driver", moved);
        moments::pass("foreign-moved");
        self.target.check_closed()?;
        report("host", 0, 0);
        let (connections, held) = self.phases.time("host", || self.dump(dumping))?;
        let processes = in_dump(&self.draft.host(), &numbers)?;
        // Later it may have ended.
        let manifest = describe(self.target, &self.criu.version()?, connections, moved)?;
        let manifest = Manifest {
            driver_processes: processes,
            ..manifest
        };
        Ok((manifest, held))
    }

    /// Has CRIU dump it, and makes the dump fit for a restore. Returns the number of its connections that are whole.
    fn dump(&self, dumping: Dumping) -> Result<(u32, Option<HeldTree>)> {
        let host = self.draft.host();
        let root = self.target.root.pid;
        let nothing = Path::new("");
        let mut still = || {
            temporary::copy(&host, &proc::tree(root), nothing).or_fail(FailureKind::User, || {
                "cannot copy the temporary files of the program".into()
            })
        };
        moments::pass("dump");
        let dumped = dumping.go(&mut still);
        let Done { held, .. } = dumped.map_err(|failure| self.explained(failure))?;
        let tree = proc::tree(root);
        let elsewhere = |ends| live::is_held_elsewhere(ends, &tree);
        let connections =
            dumped::settle(&host, self.tcp_close, elsewhere).map_err(|e| no_connection(&e))?;
        note_folders(&host).or_fail(FailureKind::User, || {
            format!("cannot write to `{}`", host.display())
        })?;
        self.keep_log();
        fs::remove_file(host.join(DUMP_LOG))
            .or_fail(FailureKind::Internal, || "cannot remove CRIU's log".into())?;
        // What the program prints is not Fermata's: an image has a log all the same.
        File::create(self.draft.path().join(record::LOG))
            .or_fail(FailureKind::User, || "cannot make the image's log".into())?;
        Ok((connections, held))
    }

    fn back(&self, report: &mut Report<'_>) -> Result<()> {
        report("driver back", 0, 0);
        moments::pass("foreign-back");
        self.phases
            .time("driver back", || bring_back(self.daemon, self.target))
    }

    fn commit(
        self,
        mut manifest: Manifest,
        stopped_seconds: f64,
        report: &mut Report<'_>,
    ) -> Result<Image> {
        let Self {
            mut draft, phases, ..
        } = self;
        phases.moved("host", folder_bytes(&draft.host()));
        report("pages", 0, 0);
        let put = phases.time("pages", || stored::store(&draft, &[]))?;
        phases.moved("pages", put.new_bytes);
        manifest.totals.memory_bytes = put.bytes;
        manifest.totals.chunks = put.chunks;
        manifest.totals.written_bytes = put.new_bytes;
        report("commit", 0, 0);
        phases
            .time("commit", || draft.seal())
            .map_err(|e| from_store(&e))?;
        manifest.totals.stopped_seconds = stopped_seconds;
        manifest.totals.seconds = phases.seconds();
        manifest.phases = phases.recorded();
        draft.commit(manifest).map_err(|e| from_store(&e))
    }

    /// CRIU's log is kept, and its reason is said in words that users know.
    fn explained(&self, failure: Failure) -> Failure {
        self.keep_log();
        explain(keep_hint(failure, &self.kept()))
    }

    /// The draft disappears after a failure, and CRIU's log with it.
    fn keep_log(&self) {
        // That of an earlier dump says nothing of this one; both steps fail when there is no log.
        let _ = fs::remove_file(self.kept());
        let _ = fs::copy(self.draft.host().join(DUMP_LOG), self.kept());
    }

    fn kept(&self) -> PathBuf {
        self.daemon.paths.runtime.join(KEPT_LOG)
    }
}

/// Brings a program to where it runs; if its helper has ended, by another.
fn bring_back(daemon: &Daemon, of: &Target) -> Result<()> {
    let (driver, bytes) = (&of.helper.driver, of.device_bytes);
    match of.helper.bring_back_held(bytes) {
        Err(failure) if failure.kind == FailureKind::Internal => {
            warn!(
                "another helper brings `{}` back: {}",
                of.name, failure.message
            );
            Helper::start(daemon, driver, &of.variables)?.bring_back(&of.using, bytes)
        }
        done => done,
    }
}

/// Why a program stands still, where it should run.
fn stands_still(of: &Target, why: &Failure, besides: &str) -> Failure {
    let message = format!(
        "process {} ({}) stands still: {}; {besides}",
        of.root.pid, of.name, why.message
    );
    warn!("{message}");
    fail(why.kind, message).hint(why.hint.clone())
}

/// Ends a program whose image is complete.
fn end(of: &Target, held: Option<HeldTree>) -> Result<()> {
    of.helper.forget()?;
    let ended = match &of.session {
        Some(session) => session.ends_held(held, STOP_TIME),
        None => {
            let until = Instant::now() + STOP_TIME;
            let mut killed = held.map(HeldTree::kill).unwrap_or_default();
            killed.push(of.root);
            proc::all_end(&killed, until)
        }
    };
    match ended {
        true => Ok(()),
        false => {
            let message = format!(
                "the image is complete, but process {} ({}) does not end",
                of.root.pid, of.name
            );
            Err(fail(FailureKind::Internal, message))
        }
    }
}

/// Those of these processes that CRIU has dumped to `host`, by their numbers there: the others have ended. For each living
/// process CRIU writes a file `mm-PID.img`.
fn in_dump(host: &Path, numbers: &[u32]) -> Result<Vec<u32>> {
    let mut there = numbers.to_vec();
    there.retain(|number| host.join(format!("mm-{number}.img")).exists());
    match there.is_empty() {
        false => Ok(there),
        true => {
            let message = "the processes of the program that use CUDA have ended";
            Err(fail(FailureKind::NotFound, message))
        }
    }
}

/// What the manifest says of a program that stands still, but for times and the processes that use CUDA.
fn describe(of: &Target, criu: &str, connections: u32, moved: u64) -> Result<Manifest> {
    let uname = rustix::system::uname();
    let root = of.root.pid;
    let words = fs::read(format!("/proc/{root}/cmdline")).unwrap_or_default();
    let words = words.split(|byte| *byte == 0);
    let words = words.map(|word| String::from_utf8_lossy(word).into_owned());
    let mut argv: Vec<String> = words.collect();
    argv.pop();
    let folder = proc::working_folder(root).unwrap_or_default();
    let soft = of.helper.driver.soft;
    let devices = of.devices.iter().map(|it| DeviceRecord {
        name: it.name.clone(),
        uuid: it.uuid.clone(),
        memory: it.memory,
        compute_capability: it.compute_capability,
        driver_version: of.version,
        soft,
    });
    let number = proc::inner_pid(root).unwrap_or(root);
    let mut manifest = Manifest {
        fermata_version: env!("CARGO_PKG_VERSION").into(),
        session: of.name.clone(),
        mode: Mode::Stop.name().into(),
        program: Program {
            argv,
            cwd: folder.to_string_lossy().into_owned(),
            executable: proc::executable(root)
                .map(|p| p.to_string_lossy().into_owned())
                .unwrap_or_default(),
            pid: number,
        },
        host: HostRecord {
            hostname: uname.nodename().to_string_lossy().into_owned(),
            kernel: uname.release().to_string_lossy().into_owned(),
            criu: criu.to_owned(),
        },
        devices: devices.collect(),
        totals: SessionTotals {
            device_bytes: moved,
            ..SessionTotals::default()
        },
        ..Manifest::default()
    };
    let record = Record {
        root: number,
        folder: Some(folder)
            .filter(|it| it.to_str().is_none())
            .map(|it| it.as_path().into()),
        connections: Some(connections),
        soft: Some(soft),
        variables: texts(&of.variables),
        ..Record::default()
    };
    record.store(&mut manifest)?;
    Ok(manifest)
}

fn answer(of: &Target, manifest: &Manifest, image: PathBuf, then: Then) -> Checkpointed {
    let totals = &manifest.totals;
    let dumped = manifest.phases.iter().find(|it| it.name == "host");
    let dumped = dumped.map_or(0, |it| it.bytes);
    Checkpointed {
        session: of.name.clone(),
        image,
        mode: Mode::Stop,
        running: then == Then::Run,
        paused: false,
        foreign: Some(of.root.pid),
        device: Totals {
            device_bytes: totals.device_bytes,
            ..Totals::default()
        },
        host_bytes: dumped.saturating_sub(totals.device_bytes),
        stopped_seconds: totals.stopped_seconds,
        seconds: totals.seconds,
        phases: manifest.phases.iter().map(recorded).collect(),
        overtaken: 0,
        waited: None,
    }
}

fn recorded(phase: &fermata_store::image::Phase) -> fermata_control::user::Phase {
    fermata_control::user::Phase {
        name: phase.name.clone(),
        start: phase.start,
        seconds: phase.seconds,
        bytes: phase.bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_have_ended_before_the_dump_are_not_in_the_image() {
        let host = tempfile::tempdir().expect("a folder");
        // CRIU keeps only the status of one that has ended and was not waited for.
        for name in ["core-7.img", "core-8.img", "mm-8.img"] {
            fs::write(host.path().join(name), "").expect("written");
        }
        let there = in_dump(host.path(), &[7, 8, 9]).map_err(|it| it.message);
        assert_eq!(there, Ok(vec![8]));
        let none = in_dump(host.path(), &[7, 9]).map_err(|it| it.kind);
        assert_eq!(none, Err(FailureKind::NotFound));
    }
}
