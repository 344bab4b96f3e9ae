//! Makes, watches and ends the PID namespace of a restored program.

use std::fs;
use std::io::{self, BufRead, BufReader, PipeWriter, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use fermata_control::worker::FailureKind;
use rustix::process::Signal;
use tracing::info;

use crate::criu::files::{self, ChangedFile};
use crate::criu::rpc::InheritFd;
use crate::criu::{self, Criu, Way};
use crate::failure::{Failure, Hint as _, OrFail, Result, fail};
use crate::helpers::modes::{HelperReport, Job, LOG, Memory, OUTER};
use crate::host::pages::Pages;
use crate::open_files::temporary::Temporary;
use crate::parallel::{beside, joined};
use crate::proc::{self, ProcessId};
use crate::sys::{self, Extra};

/// How long the namespace may take to come up.
const START_TIME: Duration = Duration::from_secs(60);
/// How long its last words may take.
const WORDS_TIME: Duration = Duration::from_millis(200);
/// The folder in a session's folder in which CRIU works.
const WORK: &str = "criu";

/// What a host process is restored from.
#[derive(Debug)]
pub struct HostImage<'a> {
    /// Folder with CRIU's files.
    pub files: &'a Path,
    /// A new folder for links to them and for CRIU's logs.
    pub work: PathBuf,
    /// The root's process id when it was dumped, in its namespace.
    pub root: u32,
    /// The log of the new session: an existing file, opened for appending.
    pub log: PathBuf,
    /// The log that the program had open, which `log` replaces.
    pub old_log: Option<PathBuf>,
    /// Files that CRIU takes as they are now, although they have changed.
    pub replaced: Vec<ChangedFile>,
    /// Memory shared by name that the program gets without one.
    pub nameless: Vec<Temporary>,
    /// Bring pages in on demand.
    pub lazy: bool,
    /// Where these are, if not in `files`.
    pub memory: Option<Memory>,
    /// The part of a disk's time that they may take while device data comes from there, too.
    pub share: f64,
    /// Whether the program gets a network of its own.
    pub own_network: bool,
    /// Whether the image holds TCP connections whole; else they come back closed.
    pub connected: bool,
    /// Whether the program was of the session of a shell that is not in the image: then it is of process 1's.
    pub shell_job: bool,
    /// A pipe in place of the one with this number.
    pub input: Option<(u32, &'a OwnedFd)>,
    /// File that gets the status of the program.
    pub exit_file: PathBuf,
    /// The daemon's socket for agents.
    pub agents: PathBuf,
}

/// A restored program with its namespace. It ends when this process does or when this is dropped, until
/// [`Namespace::keep`].
#[derive(Debug)]
pub struct Namespace {
    /// Process 1 of the namespace.
    pub init: ProcessId,
    /// The program.
    pub root: ProcessId,
    outer: Child,
    pages: Pages,
    lifeline: Option<PipeWriter>,
}

impl Namespace {
    /// Restores the program of `image`. While the namespace is made, `files` makes what is not among the image's files, in the folder in
    /// which CRIU works. What it gives is dropped when CRIU has read it.
    ///
    /// # Errors
    /// With CRIU's reason; then nothing is left running.
    pub fn restore<P: Send>(
        criu: &Criu,
        image: &HostImage<'_>,
        files: impl FnOnce() -> Result<P> + Send,
    ) -> Result<Self> {
        link_files(image.files, &image.work).or_fail(FailureKind::Internal, || {
            format!("cannot link to `{}`", image.files.display())
        })?;
        files::take_as_they_are(&image.work, &image.replaced)
            .or_fail(FailureKind::Internal, || {
                format!("cannot change CRIU's list in `{}`", image.work.display())
            })?;
        std::thread::scope(|scope| {
            let made = beside(scope, "pages", files);
            Self::make(criu, image, || joined(made))
        })
    }

    /// Makes it; `made` waits for the files that CRIU lacks.
    fn make<P>(
        criu: &Criu,
        image: &HostImage<'_>,
        made: impl FnOnce() -> Result<P>,
    ) -> Result<Self> {
        let job = Job {
            criu: criu.command().to_vec(),
            dir: image.work.clone(),
            lazy: image.lazy,
            memory: image.memory.clone(),
            share: image.share,
            own_network: image.own_network,
            shell_job: image.shell_job,
            root: image.root,
            log: image.log.clone(),
            nameless: image.nameless.clone(),
            input: image.input.is_some(),
            exit_file: image.exit_file.clone(),
            agents: image.agents.clone(),
        };
        let pipe = image.input.map(|(_, pipe)| pipe.try_clone()).transpose();
        let pipe = pipe.or_fail(FailureKind::Host, || "no descriptor is left".into())?;
        let (ours, theirs) = criu::channel()?;
        let pages = Pages::new(image.lazy);
        let (mut outer, reports, lifeline) = start(criu, &job, theirs, pipe, pages.clone())
            .or_fail(FailureKind::Host, || "cannot make a PID namespace".into())?;
        let mut init = None;
        match bring_up(&ours, image, &reports, &pages, made, &mut init) {
            Ok((init, root)) => Ok(Self {
                init,
                root,
                outer,
                pages,
                lifeline: Some(lifeline),
            }),
            Err(failure) => {
                match init {
                    Some(init) => init.signal(Signal::KILL),
                    // Without its report, pid 1 is the only child of `__outer`.
                    None => kill_tree(outer.id()),
                }
                let _ = outer.wait();
                Err(failure)
            }
        }
    }

    /// Lets the program live on without this process, which has noted down where it is. Its memory comes with [`HostImage::share`] until
    /// the daemon needs all of it, or has no other use for the disk.
    ///
    /// # Errors
    /// Its namespace has ended.
    pub fn keep(&mut self) -> io::Result<()> {
        if let Some(mut lifeline) = self.lifeline.take() {
            lifeline.write_all(&[1])?;
            self.pages.share_disk(lifeline);
        }
        Ok(())
    }

    /// Waits until the program has ended, and gives its status.
    ///
    /// # Errors
    /// The status was taken by somebody else.
    pub fn wait(&mut self) -> io::Result<i32> {
        self.outer.wait().map(crate::helpers::modes::status_code)
    }

    /// Ends everything in the namespace.
    pub fn kill(&self) {
        self.init.signal(Signal::KILL);
    }

    /// Takes the part that [`Namespace::wait`] needs, so that another thread can wait; what is not kept ends.
    pub fn split(self) -> (Child, Pages) {
        (self.outer, self.pages)
    }
}

/// Where CRIU works for the session whose folder is `session`.
pub fn work_folder(session: &Path) -> PathBuf {
    session.join(WORK)
}

/// CRIU writes logs and sockets beside the image's files: it gets a folder of links.
fn link_files(files: &Path, work: &Path) -> io::Result<()> {
    fs::create_dir(work)?;
    for entry in fs::read_dir(files)? {
        let entry = entry?;
        std::os::unix::fs::symlink(entry.path(), work.join(entry.file_name()))?;
    }
    Ok(())
}

fn start(
    criu: &Criu,
    job: &Job,
    socket: OwnedFd,
    input: Option<OwnedFd>,
    pages: Pages,
) -> io::Result<(Child, Receiver<u32>, PipeWriter)> {
    let (reader, writer) = io::pipe()?;
    let (theirs, lifeline) = io::pipe()?;
    let mut command = Command::new(criu.helper());
    command
        .arg(OUTER)
        .arg(serde_json::to_string(job)?)
        .current_dir("/");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    criu::environment::clean(&mut command);
    let mut fds = vec![socket, writer.into(), theirs.into()];
    fds.extend(input);
    sys::prepare(
        &mut command,
        Extra {
            unshare: true,
            setsid: true,
            kernel: criu.kernel(),
            ..Extra::fds(fds)
        },
    );
    let child = command.spawn()?;
    let (sender, reports) = channel();
    let dir = job.dir.clone();
    std::thread::Builder::new()
        .name("restore-reports".into())
        .spawn(move || {
            for line in BufReader::new(reader).lines() {
                let Ok(line) = line else { break };
                match serde_json::from_str(&line) {
                    // The receiver may have given up.
                    Ok(HelperReport::Init(pid)) => drop(sender.send(pid)),
                    Ok(HelperReport::PagesFailed(reason)) => pages.failed(reason),
                    Ok(HelperReport::PagesThere { seconds, faults }) => {
                        info!(dir = %dir.display(), seconds, faults, "host memory is there");
                        pages.over();
                    }
                    Err(_) => {}
                }
            }
            pages.over();
        })?;
    Ok((child, reports, lifeline))
}

fn bring_up<P>(
    socket: &OwnedFd,
    image: &HostImage<'_>,
    reports: &Receiver<u32>,
    pages: &Pages,
    made: impl FnOnce() -> Result<P>,
    init: &mut Option<ProcessId>,
) -> Result<(ProcessId, ProcessId)> {
    let gone = || fail(FailureKind::Internal, "the restored process ended at once");
    let pid = reports.recv_timeout(START_TIME).map_err(|_| {
        let none = || {
            fail(
                FailureKind::Host,
                "a process in a new PID namespace does not start",
            )
        };
        pages.failure(WORDS_TIME).map_or_else(none, no_pages)
    })?;
    let process = ProcessId::of(pid).ok_or_else(gone)?;
    *init = Some(process);
    let mut inherit = Vec::new();
    if let Some(log) = &image.old_log {
        inherit.push(inherited(log, LOG));
    }
    let mut numbers = LOG + 1..;
    for (file, number) in image.nameless.iter().zip(&mut numbers) {
        inherit.push(inherited(&file.path, number));
    }
    if let Some(((pipe, _), fd)) = image.input.zip(numbers.next()) {
        let key = format!("pipe:[{pipe}]").into_bytes();
        inherit.push(InheritFd { key, fd });
    }
    let files = made()?;
    let how = Way {
        lazy: image.lazy,
        connected: image.connected,
        shell_job: image.shell_job,
    };
    let restored = Criu::restore(socket, &image.work, how, inherit);
    drop(files);
    if restored.is_err()
        && let Some(reason) = pages.failure(WORDS_TIME)
    {
        return Err(no_pages(reason));
    }
    // A program may have done all it had to do.
    let root = proc::outer_pid(pid, restored?).and_then(ProcessId::of);
    Ok((process, root.unwrap_or(ProcessId::ENDED)))
}

/// Descriptor `fd` of CRIU in place of the file at `path`.
fn inherited(path: &Path, fd: i32) -> InheritFd {
    InheritFd {
        key: path
            .strip_prefix("/")
            .unwrap_or(path)
            .as_os_str()
            .as_bytes()
            .to_vec(),
        fd,
    }
}

/// Why a program whose memory was to come on demand has ended.
pub fn no_pages(reason: String) -> Failure {
    let message = format!("its memory cannot be brought on demand: {reason}");
    fail(FailureKind::Host, message)
        .hint("verify the image with `fermata images verify`, or restore with `--eager`")
}

/// Ends a process and everything below it.
fn kill_tree(root: u32) {
    for id in proc::tree(root).into_iter().filter_map(ProcessId::of) {
        id.signal(Signal::KILL);
    }
}
