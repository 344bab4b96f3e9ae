//! Opens and checks the image for a restore, and makes the processes of a session from it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fermata_control::user::{DeviceChoice, Restore, SessionState, Text};
use fermata_control::worker::{FailureKind, ImageDigests, LoadCheck, Pace, ToWorker};
use fermata_store::image::{CHUNKS, ChunkTable, HOST_CHUNKS, Held, Image, STATE, check_name};
use fermata_store::{Owners, Store, is_memory, moments};
use parking_lot::Mutex;
use tracing::warn;

use crate::agent::attach::{AttachmentEnds, go_on, offer, reattach};
use crate::agent::loading::{cannot_load, load, share_common};
use crate::criu::files::ChangedFile;
use crate::criu::kept_logs::{self, keep_hint};
use crate::criu::{self, Criu, RESTORE_LOG};
use crate::daemon::Daemon;
use crate::failure::{Failure, Hint, OrFail, Result, fail, from_store};
use crate::foreign::back::Returning;
use crate::gpu::driver::Driver;
use crate::gpu::visible::{check_first, variables_of_process};
use crate::helpers::modes::Memory;
use crate::helpers::namespace::{self, HostImage, Namespace};
use crate::host::for_criu::PagesForCriu;
use crate::host::stored;
use crate::images::known::now;
use crate::images::record::{self, Place, Record};
use crate::open_files::folders::Made;
use crate::open_files::input;
use crate::open_files::tcp::{dumped, lingering, reuse};
use crate::open_files::temporary::{self, Placed, Temporary};
use crate::parallel::{beside, each_at_once, joined};
use crate::phases::Phases;
use crate::pool::{self, Preload};
use crate::proc::{self, ProcessId};
use crate::progress::Report;
use crate::restore::integrity::{self, Late};
use crate::restore::on_demand;
use crate::session::Detached;
use crate::session::{EXIT_FILE, Session, output};
use crate::worker::{Variables, Worker, variables_of};

/// How an image is restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct How {
    /// Whether host memory is brought on demand.
    pub lazy: bool,
    /// When device data is read: before the program runs, or on demand.
    pub pace: Pace,
}

/// A checked image, with everything that a restore of it needs.
pub(crate) struct Source {
    pub daemon: Arc<Daemon>,
    pub image: Image,
    /// Keeps the image from being removed until all data is present, because the program may have to start again from it.
    held: Mutex<Option<Held>>,
    pub record: Record,
    places: Vec<Place>,
    store: PathBuf,
    driver: Option<Driver>,
    pub(super) device: DeviceChoice,
    replaced: Vec<ChangedFile>,
    /// The number of the pipe that was the program's input, and the pipe that replaces it. Kept as long as the program may be
    /// rolled back to the image.
    pub(super) input: Option<(u32, OwnedFd)>,
    /// Files that are checked only while the processes are made.
    late: Late,
    check: LoadCheck,
    ignore_places: bool,
    pub(super) own_network: bool,
    pub(super) priority: i32,
    /// Environment variables of its workers.
    pub(super) variables: Variables,
    /// All pages as files, while copies of the program are restored from them.
    all_pages: Mutex<Weak<PagesForCriu>>,
    /// The GPUs that replace those that the program names (`--gpus`).
    pub(super) gpus: Option<String>,
    /// Whether the session from this image was restored by an earlier daemon.
    pub(super) found: bool,
    /// For the image of a foreign program: restores its GPU state by the driver.
    pub(super) foreign: Option<Returning>,
}

impl Source {
    /// Opens and checks the image that `request` names.
    ///
    /// # Errors
    /// It is damaged or not trusted, or this host lacks something.
    pub(crate) fn open(
        daemon: &Arc<Daemon>,
        request: &Restore,
        pipe: Option<OwnedFd>,
    ) -> Result<Self> {
        let path = resolve(daemon, &request.image)?;
        let image = Image::open(&path).map_err(|e| from_store(&e))?;
        let held = image.hold().map_err(|e| from_store(&e))?;
        if !request.trust_owner {
            let checked = Owners::trusted().check_image(&image);
            checked.map_err(|e| from_store(&e))?;
        }
        let record = Record::load(image.manifest())?;
        let late = integrity::check_first(&image, &record)?;
        Criu::check_permitted()?;
        daemon.criu()?;
        let device = match (request.device, record.soft) {
            (DeviceChoice::Auto, Some(true)) => DeviceChoice::Soft,
            (DeviceChoice::Auto, Some(false)) => DeviceChoice::Gpu,
            (choice, _) => choice,
        };
        let places = record.places();
        let driver = match places.is_empty() {
            false => Some(Driver::find(device, &daemon.paths.home)?),
            true => None,
        };
        let recorded = record.folder.as_ref().map(Text::to_path);
        let cwd = recorded.unwrap_or_else(|| PathBuf::from(&image.manifest().program.cwd));
        if !cwd.is_dir() {
            let message = format!("the program's working folder `{}` is gone", cwd.display());
            return Err(fail(FailureKind::Host, message).hint("make it again, with its files"));
        }
        let variables = variables_of(record.variables.clone());
        let gpus = request.gpus.clone().or_else(|| record.gpus.clone());
        let foreign = Returning::of(daemon, image.manifest(), device, variables.clone())?;
        if foreign.is_some() && request.gpus.is_some() {
            let message = "the image is of a program that was not started by `fermata run`: its driver finds the GPUs";
            return Err(fail(FailureKind::User, message)
                .hint("leave out `--gpus`; each GPU is taken by another of its model"));
        }
        let store = image.find_store(&[daemon.paths.store()]);
        let store = store.map_err(|e| from_store(&e))?;
        if !request.trust_owner {
            let checked = Owners::trusted().check_store(&store);
            checked.map_err(|e| from_store(&e))?;
        }
        let store = store.dir().to_owned();
        let changed = changed_files(&image.host(), &record.log)
            .or_fail(FailureKind::Damaged, || {
                format!("cannot read `{}`", image.host().display())
            })?;
        if let Some(file) = changed.iter().find(|file| stands_in_the_way(request, file)) {
            return Err(changed_failure(file));
        }
        let priority = record.priority;
        Ok(Self {
            daemon: Arc::clone(daemon),
            image,
            held: Mutex::new(Some(held)),
            store,
            driver,
            device,
            replaced: changed,
            input: record.input.zip(pipe).filter(|_| request.copies == 1),
            record,
            places,
            late,
            check: request.check,
            ignore_places: request.ignore_places,
            own_network: request.own_network,
            variables,
            all_pages: Mutex::default(),
            gpus,
            found: false,
            priority: request.priority.unwrap_or(priority),
            foreign,
        })
    }

    /// Releases the image once all data is present; from then on it may be removed.
    pub(crate) fn let_go(&self) {
        *self.held.lock() = None;
    }

    /// Holds the image once more, which must still be the same.
    ///
    /// # Errors
    /// The image has been removed or replaced.
    pub(crate) fn hold_again(&self) -> Result<()> {
        let mut held = self.held.lock();
        if held.is_none() {
            let image = Image::open(self.image.dir()).map_err(|e| from_store(&e))?;
            let again = image.hold().map_err(|e| from_store(&e))?;
            if image.manifest() != self.image.manifest() {
                let path = self.image.dir().display();
                let message = format!("another image is in the place of `{path}`");
                return Err(fail(FailureKind::NotFound, message));
            }
            *held = Some(again);
        }
        Ok(())
    }

    /// Whether a session from this image may use common memory. For the session of an earlier daemon only its workers know, so the
    /// answer is yes.
    pub(super) fn may_share(&self) -> bool {
        self.found || self.daemon.commons.are_on()
    }

    /// Restores the program into a session that has none.
    ///
    /// # Errors
    /// The reason; processes that were started may have to be ended with the session.
    pub(crate) fn fill(
        &self,
        session: &Arc<Session>,
        how: How,
        phases: &Phases,
        report: &Mutex<&mut Report<'_>>,
    ) -> Result<()> {
        let copy = self.image.dir().join(record::LOG);
        output::bring_back(&copy, &session.log(), self.record.log_length)
            .or_fail(FailureKind::User, || {
                format!("cannot make `{}`", session.log().display())
            })?;
        let folders = Made::again(&self.image.host()).map_err(no_folder)?;
        let files = Placed::again(&self.image.host()).map_err(no_file)?;
        let (served, settled) = std::thread::scope(|scope| {
            let host = beside(scope, "host", || {
                phases.time("host", || self.host(session, files.nameless(), how, phases))
            });
            let sound = beside(scope, "sound", || {
                phases.time("verify", || {
                    self.late.check(&self.image, &self.daemon.known)
                })
            });
            let driver = self.driver.as_ref();
            let workers = driver.map(|driver| {
                let one = |place| {
                    beside(scope, "worker", move || {
                        self.serve(session, driver, place, how, phases, report)
                    })
                };
                self.places.iter().map(one).collect::<Vec<_>>()
            });
            let host = joined(host);
            let settled = self.settle(session, host, joined(sound));
            let served = workers.into_iter().flatten().map(joined);
            (served.collect::<Vec<_>>(), settled)
        });
        // If any part has failed, both the workers and the namespace must be ended.
        let (mut workers, mut failed) = (Vec::new(), None);
        for one in served {
            match one {
                Ok(served) => workers.push(served),
                Err(failure) => failed = failed.or(Some(failure)),
            }
        }
        let served: Vec<(Arc<Worker>, AttachmentEnds)> = workers;
        let processes = match (failed, settled) {
            (None, Ok(processes)) => processes,
            (failed, settled) => {
                served.iter().for_each(|(worker, _)| worker.end());
                return Err(match (failed, settled) {
                    // If a process has ended, its worker has ended for that reason, and its own failure is less precise.
                    (_, Ok(processes)) if processes.contains(&None) => has_ended(),
                    (Some(failure), _) | (None, Err(failure)) => failure,
                    (None, Ok(_)) => has_ended(),
                });
            }
        };
        if served.is_empty() {
            session.set_state(SessionState::Running);
            folders.keep();
            files.keep();
            return Ok(());
        }
        let workers: Vec<_> = served.iter().map(|(worker, _)| worker.clone()).collect();
        let parked = self.parked(&processes);
        let attached = parked.and_then(|parked| {
            {
                let mut inner = session.lock();
                for ((detached, worker), place) in parked.iter().zip(&workers).zip(&self.places) {
                    let member = inner.member_or_new(detached.process);
                    member.detached = Some(*detached);
                    member.sees(worker.process);
                    member.visible.clone_from(&place.agent.visible);
                }
                inner.loading.clear();
            }
            session.save();
            phases.time("reattach", || {
                let seconds = phases.seconds();
                for worker in &workers {
                    on_demand::begin(session, worker, seconds, false)?;
                }
                let attach =
                    |(detached, (worker, ends)): (Detached, (Arc<Worker>, AttachmentEnds))| {
                        reattach(&self.daemon, session, &worker, detached, Some(ends))
                    };
                let all = parked.into_iter().zip(served);
                let attached = each_at_once(all.collect(), "attach", attach);
                go_on(attached).into_iter().collect::<Result<()>>()
            })?;
            session.goes_on();
            Ok(())
        });
        // Starting a driver slows the transfer of data, so this waits until all has come: see `rollback::follow`.
        if let (Some(worker), true) = (
            workers.first(),
            attached.is_err() || !session.lock().rolls_back(),
        ) {
            self.refill(&worker.driver);
        }
        attached.inspect_err(|_| workers.iter().for_each(|it| it.end()))?;
        folders.keep();
        files.keep();
        Ok(())
    }

    /// Has the pool make workers for the next program, and preloaded workers for the next restore of this image.
    pub(super) fn refill(&self, driver: &Driver) {
        let variables = self.variables_of(driver, self.places.first());
        let pool = &self.daemon.pool;
        pool.refill_for(driver, &variables, self.parts(driver));
    }

    /// Has preloaded workers made for this image. Returns how many there are once all that are kept are ready, and how many are
    /// kept. Also reads the processes' memory, and the files that restores read whole, which are known from then on, and keeps what CRIU
    /// reads of that memory.
    ///
    /// # Errors
    /// A file or chunk is damaged.
    pub(crate) fn ready_ahead(&self) -> Result<[u32; 2]> {
        if let Some(driver) = &self.driver {
            self.refill(driver);
        }
        self.late.check(&self.image, &self.daemon.known)?;
        if let Some((table, store)) = self.host_memory()? {
            let asked = now();
            let packs = stored::warm(&table, &store)?;
            self.daemon
                .known
                .add_packs(&self.table_hash(), packs, asked);
            if let Err(failure) = self.daemon.kept.keep(&self.image, &table, &store) {
                // Each restore makes it anew then.
                warn!("{}", failure.message);
            }
        }
        Ok(match &self.driver {
            Some(_) => self.daemon.pool.await_ready(self.image.dir()),
            None => [0, 0],
        })
    }

    /// The folder of the store that has its chunks.
    pub(crate) fn store(&self) -> &Path {
        &self.store
    }

    /// The parts of the image that workers may preload, with the environment variables of these workers.
    fn parts(&self, driver: &Driver) -> Vec<(Variables, Preload)> {
        let places = self.places.iter();
        let fit = places.filter(|it| pool::may_wait(driver, it.agent.kernels_first));
        let part = |it| (self.variables_of(driver, Some(it)), self.preload(it));
        fit.map(part).collect()
    }

    /// Environment variables of the worker of a process.
    fn variables_of(&self, driver: &Driver, place: Option<&Place>) -> Variables {
        let visible = place.and_then(|it| it.agent.visible.as_ref());
        variables_of_process(&self.variables, self.gpus.as_deref(), driver.soft, visible)
    }

    /// The part of the image that a worker may preload for this process.
    fn preload(&self, place: &Place) -> Preload {
        Preload {
            image: self.image.dir().to_owned(),
            part: place.folder(self.image.dir()),
            store: self.store.clone(),
            digests: self.digests(place),
        }
    }

    /// Has a worker load the part of a process, and serve before the process exists.
    fn serve(
        &self,
        session: &Arc<Session>,
        driver: &Driver,
        place: &Place,
        how: How,
        phases: &Phases,
        report: &Mutex<&mut Report<'_>>,
    ) -> Result<(Arc<Worker>, AttachmentEnds)> {
        let load = || self.device(session, driver, place, how.pace, phases, report);
        let worker = phases.time("device", load)?;
        session.loads(worker.process);
        // Done while CRIU restores the process, which then finds a worker that is ready.
        let ends = phases.time("attach", || offer(session, &worker));
        let ends = ends.map_err(|failure| {
            worker.end();
            cannot_load(session, failure)
        })?;
        Ok((worker, ends))
    }

    /// Where the processes that use CUDA wait, in the order of the record.
    fn parked(&self, processes: &[Option<ProcessId>]) -> Result<Vec<Detached>> {
        let all = self.places.iter().zip(processes);
        all.map(|(place, process)| {
            let detached = |process| Detached {
                process,
                wake_block: place.agent.wake_block,
            };
            process.map(detached).ok_or_else(has_ended)
        })
        .collect()
    }

    fn digests(&self, place: &Place) -> ImageDigests {
        let manifest = self.image.manifest();
        let digest = |name| manifest.file(&place.file(name)).map(|it| it.blake3.clone());
        ImageDigests {
            state: digest(STATE).unwrap_or_default(),
            chunks: digest(CHUNKS).unwrap_or_default(),
        }
    }

    /// Watches the restored program from now on, if it and its image are sound. Returns its processes that have an agent; `None`
    /// for one that does not exist.
    fn settle(
        &self,
        session: &Arc<Session>,
        host: Result<Namespace>,
        sound: Result<()>,
    ) -> Result<Vec<Option<ProcessId>>> {
        match (host, sound) {
            (Ok(namespace), Ok(())) => {
                let init = namespace.init;
                watch(session, namespace)?;
                let outer =
                    |it: &Place| proc::outer_pid(init.pid, it.agent.pid).and_then(ProcessId::of);
                Ok(self.places.iter().map(outer).collect())
            }
            (Ok(mut namespace), Err(failure)) => {
                namespace.kill();
                // Its status is of no interest.
                let _ = namespace.wait();
                Err(failure)
            }
            // That the image is damaged is more useful to the user than CRIU's error about it.
            (Err(_), Err(failure)) | (Err(failure), Ok(())) => Err(failure),
        }
    }

    /// The table of the processes' memory and the store with it, if it is in the store.
    fn host_memory(&self) -> Result<Option<(ChunkTable, Store)>> {
        let Some(table) = self.image.host_table().map_err(|e| from_store(&e))? else {
            return Ok(None);
        };
        let store = Store::open(&self.store, false).map_err(|e| from_store(&e))?;
        Ok(Some((table, store)))
    }

    /// Makes the memory that CRIU reads as files in `work`, or links to such files, if it is in the store.
    fn pages(&self, lazy: bool, work: &Path) -> Result<Option<Arc<PagesForCriu>>> {
        let linked = |made: Arc<PagesForCriu>| -> Result<_> {
            let failed = || format!("cannot link to `{}`", work.display());
            made.link(work).or_fail(FailureKind::Internal, failed)?;
            Ok(Some(made))
        };
        if lazy && let Some(kept) = self.daemon.kept.of(&self.image) {
            return linked(kept);
        }
        let Some((table, store)) = self.host_memory()? else {
            return Ok(None);
        };
        if lazy {
            let few = PagesForCriu::few(&self.image, &table, &store, work)?;
            return Ok(Some(Arc::new(few)));
        }
        let mut all = self.all_pages.lock();
        let made = match all.upgrade() {
            Some(made) => made,
            None => {
                // It can be written to, and what a dead daemon has left there is removed.
                let folder = &self.daemon.paths.images;
                Arc::new(PagesForCriu::all(&self.image, &table, &store, folder)?)
            }
        };
        *all = Arc::downgrade(&made);
        linked(made)
    }

    /// The hash of the table of the processes' memory.
    fn table_hash(&self) -> String {
        let record = self.image.manifest().file(HOST_CHUNKS);
        record.map(|it| it.blake3.clone()).unwrap_or_default()
    }

    /// Where memory is that comes on demand, if it is in the store.
    fn memory(&self) -> Memory {
        let cache = self.daemon.cache.as_ref();
        Memory {
            image: self.image.dir().to_owned(),
            store: self.store.clone(),
            copies: cache.map(|it| it.folder().to_owned()),
            known: self.daemon.known.packs(&self.table_hash()),
        }
    }

    /// How much of a disk's time the memory of processes may take while device data comes from there, too, and the program runs: as much as
    /// it is of all.
    fn share(&self, pace: Pace) -> f64 {
        let totals = &self.image.manifest().totals;
        let comes = matches!(pace, Pace::Behind(_)) && self.driver.is_some();
        let beside = match comes && !is_memory(&self.store) {
            true => totals.device_bytes,
            false => 0,
        };
        let own = totals.memory_bytes.max(1);
        own as f64 / (own + beside) as f64
    }

    fn host(
        &self,
        session: &Session,
        nameless: &[Temporary],
        how: How,
        phases: &Phases,
    ) -> Result<Namespace> {
        let criu = self.daemon.criu()?;
        let input = self.input.as_ref().map(|(pipe, end)| (*pipe, end));
        if let Some((pipe, end)) = input {
            input::fill(end, &self.image.host(), pipe).or_fail(FailureKind::Host, || {
                "cannot restore the program's input".into()
            })?;
        }
        session.lock().input = input.and_then(|(_, end)| input::pipe_of(end));
        let work = namespace::work_folder(&session.dir);
        let on_demand = how.lazy && self.image.memory_in_store();
        let image = HostImage {
            files: &self.image.host(),
            work: work.clone(),
            root: self.record.root,
            log: session.log(),
            // A foreign program has a log of its own.
            old_log: Some(self.record.log.clone()).filter(|it| it.is_absolute()),
            replaced: self.replaced.clone(),
            nameless: nameless.to_vec(),
            lazy: how.lazy,
            memory: on_demand.then(|| self.memory()),
            share: self.share(how.pace),
            own_network: self.own_network,
            connected: self.record.connections.is_some(),
            shell_job: self.foreign.is_some(),
            input,
            exit_file: session.dir.join(EXIT_FILE),
            agents: self.daemon.agent_socket(),
        };
        // If the dump cannot be read, CRIU reports it.
        if !self.own_network
            && let Ok(addresses) = dumped::addresses(&self.image.host())
        {
            lingering::forget(&addresses);
        }
        let pages = || phases.time("pages", || self.pages(how.lazy, &work));
        let mut namespace = Namespace::restore(&criu, &image, pages).map_err(|failure| {
            // The session's folder is removed; CRIU's log is kept.
            let said = image.work.join(RESTORE_LOG);
            let copy = kept_logs::keep(&self.daemon.paths.runtime, &session.name, &said);
            explain(keep_hint(failure, &copy))
        })?;
        moments::pass("made");
        if self.record.connections.is_some_and(|ends| ends > 0) {
            // The kernel takes the option away from connections that CRIU has restored.
            reuse::allow(&proc::tree(namespace.root.pid));
        }
        if let Some(foreign) = &self.foreign {
            // Until `keep`, the namespace ends with this daemon.
            let back = phases.time("driver", || {
                foreign.bring_back(&self.daemon, namespace.init)
            });
            if let Err(failure) = back {
                namespace.kill();
                // Its status is of no interest.
                let _ = namespace.wait();
                return Err(failure);
            }
            let (devices, soft) = foreign.devices();
            session.holds(devices, soft);
        }
        let mut inner = session.lock();
        inner.init = Some(namespace.init);
        inner.root = Some(namespace.root).filter(|it| *it != ProcessId::ENDED);
        drop(inner);
        // From here on a next daemon finds the session, and ends it or continues with it.
        let noted = session.note_down().and_then(|()| match namespace.keep() {
            // The program runs already, and may have ended by now.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            kept => kept,
        });
        if let Err(error) = noted {
            namespace.kill();
            // Its status is of no interest.
            let _ = namespace.wait();
            let what = || format!("cannot note down session `{}`", session.name);
            return Err(error).or_fail(FailureKind::User, what);
        }
        moments::pass("restored");
        Ok(namespace)
    }

    fn device(
        &self,
        session: &Session,
        driver: &Driver,
        place: &Place,
        pace: Pace,
        phases: &Phases,
        report: &Mutex<&mut Report<'_>>,
    ) -> Result<Arc<Worker>> {
        let pool = &self.daemon.pool;
        let kernels_first = place.agent.kernels_first;
        let part = self.preload(place);
        let worker = phases.time("device.worker", || {
            let variables = self.variables_of(driver, Some(place));
            pool.take_for(driver, &variables, kernels_first, Some(&part))
        });
        let worker = worker.map_err(|failure| cannot_load(session, failure))?;
        check_first(place.agent.visible.as_ref(), &worker).map_err(|failure| {
            worker.end();
            cannot_load(session, failure)
        })?;
        let request = ToWorker::Load {
            store: part.store,
            image: part.part,
            digests: part.digests,
            pace,
            check: self.check,
            ignore_places: self.ignore_places,
        };
        if matches!(pace, Pace::Behind(_))
            && let Some(socket) = self.daemon.commons.connect(worker.process)
        {
            share_common(&worker, socket).map_err(|failure| {
                worker.end();
                cannot_load(session, failure)
            })?;
        }
        let mut progress = |done, total| report.lock()("device", done, total);
        load(session, &worker, &request, phases, &mut progress)?;
        Ok(worker)
    }
}

/// How long the reason of the program's end may take to become known.
const REASON_TIME: Duration = Duration::from_secs(5);

/// Collects the program's status when it ends.
fn watch(session: &Arc<Session>, namespace: Namespace) -> Result<()> {
    let init = namespace.init;
    let (mut outer, pages) = namespace.split();
    session.lock().pages = Some(pages.clone());
    let watched = session.clone();
    let wait = move || {
        let status = outer.wait().ok().map(crate::helpers::modes::status_code);
        if let Some(reason) = pages.failure(REASON_TIME) {
            let mut inner = watched.lock();
            if inner.init == Some(init) {
                inner.failure = Some(namespace::no_pages(reason));
            }
        }
        watched.tree_ended(init, status);
    };
    std::thread::Builder::new()
        .name("session-watch".into())
        .spawn(wait)
        .map(drop)
        .or_fail(FailureKind::Internal, || {
            format!("cannot watch session `{}`", session.name)
        })
}

fn has_ended() -> Failure {
    fail(FailureKind::Internal, "the restored process has ended")
}

/// Files of the dump in `host` that have another size now. Copies in the image, such as the log, are not among them.
fn changed_files(host: &Path, log: &Path) -> io::Result<Vec<ChangedFile>> {
    let mut files = temporary::list(host)?;
    files.retain(Temporary::is_memory);
    let held = |path: &Path| path == log || files.iter().any(|it| it.path == path);
    criu::files::changed(host, &held)
}

fn no_folder((path, error): (PathBuf, std::io::Error)) -> Failure {
    let message = format!(
        "no folder for the program's sockets and temporary files, `{}`: {error}",
        path.display()
    );
    fail(FailureKind::User, message).hint("make it, with the owner and mode that it had")
}

fn no_file((path, error): (PathBuf, io::Error)) -> Failure {
    let message = format!(
        "cannot make the program's temporary file `{}` again: {error}",
        path.display()
    );
    fail(FailureKind::User, message).hint("make its folder again, or free some space there")
}

/// Whether a file that has changed keeps the program from going on. Instances of a function, which are leased, write to
/// the same files: after the first, these are not what they were when the image was taken.
fn stands_in_the_way(request: &Restore, file: &ChangedFile) -> bool {
    let expected = request.leased && file.written;
    !request.ignore_changed_files && !expected
}

fn changed_failure(file: &ChangedFile) -> Failure {
    let message = format!(
        "`{}`, which the program has open, has {} bytes now and had {} at the checkpoint",
        file.path.display(),
        file.found,
        file.recorded
    );
    fail(FailureKind::User, message)
        .hint("put back the old version, or take it as it is with `--ignore-changed-files`")
}

/// Adds a hint to errors of CRIU that users often meet.
fn explain(failure: Failure) -> Failure {
    let message = failure.message.clone();
    if message.contains("bad size") {
        return fail(FailureKind::User, message).hint(
            "a file that the program has open was changed since: put back the old version, or take it as it is with \
             `--ignore-changed-files`",
        );
    }
    if message.contains("connect inet socket back") || message.contains("bind inet socket back") {
        return fail(FailureKind::User, message).hint(
            "the program has a TCP connection whose addresses are in use, or are not this machine's: end the session \
             that has it (`ss -tanp` lists connections), and restore again",
        );
    }
    if message.contains("Address already in use") {
        return fail(FailureKind::User, message)
            .hint("the program listens on a port that is taken: `ss -lntxp` says by whom; end that, and restore again. If it says none, \
                   connections that ended less than a minute ago hold the port: try again then");
    }
    failure
}

/// The folder of the image that the user has named, by path or name.
pub(crate) fn resolve(daemon: &Daemon, text: &Text) -> Result<PathBuf> {
    let path = text.to_path();
    if let Some(name) = path.file_name() {
        // Refuses names of images that are being written or removed.
        check_name(&name.to_string_lossy()).map_err(|e| from_store(&e))?;
    }
    if path.components().count() == 1 {
        return Ok(daemon.paths.images.join(path));
    }
    if path.is_absolute() {
        return Ok(path);
    }
    let message = format!("`{}` is not an absolute path", path.display());
    Err(fail(FailureKind::User, message))
}
