//! Runs the daemon: makes its folders, lock and sockets, and serves each connection in a thread.

mod leave;
pub mod letters;
mod log;
mod log_limit;
mod program;
mod requests;

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use fermata_control::{Connection, Paths, private_folder, settings};
use rustix::fs::{FlockOperation, Mode};
use tracing::{info, warn};

pub use self::leave::leave_session;
use crate::agent::arrivals;
use crate::daemon::Daemon;
use crate::gpu::nvml;
use crate::metrics;
use crate::parallel::breathe;
use crate::priority;
use crate::sys;
use crate::takeover::returning;

/// Another daemon holds the lock of the folder, or the last threads of a killed daemon still hold it.
#[derive(Debug, thiserror::Error)]
#[error("another daemon runs in `{}`", .runtime.display())]
pub struct Taken {
    runtime: PathBuf,
}

/// Runs the daemon until it is told to end.
///
/// # Errors
/// [`Taken`] when another daemon of this user runs; else folders and sockets cannot be made.
pub fn serve() -> anyhow::Result<()> {
    sys::block_end_signals();
    // What it makes is its user's alone, whatever mask it was started with; programs get the mask of their own `fermata run`.
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let unknown = settings::load().context("a setting cannot be used")?;
    let paths = Paths::find();
    let executable = std::env::current_exe().context("cannot find the daemon's own executable")?;
    sys::raise_limits().map_err(anyhow::Error::msg)?;
    private_folder(&paths.runtime).with_context(|| {
        format!(
            "cannot use the runtime folder `{}`",
            paths.runtime.display()
        )
    })?;
    let _alone = lock(&paths.runtime)?;
    let log = paths.runtime.join("fermatad.log");
    log::begin(log.clone()).context("cannot open the log")?;
    info!(
        "started, version {}, process {}",
        env!("CARGO_PKG_VERSION"),
        std::process::id()
    );

    for setting in unknown {
        warn!("{setting}");
    }
    let daemon = Daemon::new(paths, executable, log);
    let agents = listen(&daemon.agent_socket())?;
    let workers = listen(&daemon.worker_socket())?;
    // This socket comes last: a process that finds it finds the others, too.
    let users = listen(&daemon.paths.socket())?;
    let uid = rustix::process::getuid().as_raw();
    // Until the daemon has reloaded its sessions, clients wait in the sockets' backlogs, and none is told that there is none.
    daemon.adopt();
    sweep(&daemon);
    nvml::serve(&daemon)?;
    program::serve(&daemon)?;
    metrics::serve(&daemon)?;
    log_limit::limit(&daemon);
    priority::keep(&daemon).context("cannot start a thread")?;
    accept(agents, "agents", {
        let daemon = daemon.clone();
        move |socket| {
            let link = Connection::new(socket, "the program");
            match link.peer_uid() {
                Ok(peer) if peer == uid => arrivals::receive(&daemon, link),
                _ => warn!("refused a program of another user"),
            }
        }
    })?;
    accept(workers, "workers", {
        let daemon = daemon.clone();
        move |socket| {
            let link = Connection::new(socket, "worker");
            match link.peer_uid() {
                Ok(peer) if peer == uid => returning::worker(&daemon, link),
                _ => warn!("refused a worker of another user"),
            }
        }
    })?;
    accept(users, "users", {
        let daemon = daemon.clone();
        move |socket| {
            let connection = Connection::new(socket, "the user's tool");
            match connection.peer_uid() {
                Ok(peer) if peer == uid || peer == 0 => requests::serve(&daemon, &connection),
                _ => warn!("refused a request of another user"),
            }
        }
    })?;
    sys::wait_for_end();
    end(&daemon);
    Ok(())
}

/// Removes, in the background, drafts that a killed daemon has left.
fn sweep(daemon: &Arc<Daemon>) {
    let daemon = Arc::clone(daemon);
    let work = move || {
        // What is in use is left alone; a checkpoint says what stands in its way.
        let _ = fermata_store::image::sweep_drafts(&daemon.paths.images);
        let _ = fermata_store::Store::open(&daemon.paths.store(), false);
    };
    // Without a thread the next checkpoint does it.
    let _ = std::thread::Builder::new().name("sweep".into()).spawn(work);
}

/// Ends everything the daemon has started, and its sockets.
fn end(daemon: &Daemon) {
    info!("ends");
    // Nobody new; all fail only when they are gone already.
    let _ = fs::remove_file(daemon.paths.socket());
    let _ = fs::remove_file(daemon.agent_socket());
    let _ = fs::remove_file(daemon.worker_socket());
    let _ = fs::remove_file(daemon.nvml_socket());
    let _ = fs::remove_file(daemon.program_socket());
    daemon.close();
    info!("ended");
}

/// One daemon per runtime folder; the lock ends with its process.
fn lock(runtime: &Path) -> anyhow::Result<File> {
    let path = runtime.join("lock");
    let file = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("cannot open `{}`", path.display()))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Taken {
            runtime: runtime.to_owned(),
        }
        .into()),
        Err(e) => Err(e).with_context(|| format!("cannot lock `{}`", path.display())),
    }
}

/// Listens at `path`; a socket that a dead daemon left there is replaced. Only under the lock.
fn listen(path: &Path) -> anyhow::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            return Err(e).with_context(|| format!("cannot replace `{}`", path.display()));
        }
        _ => {}
    }
    // A name beside it first, so that nobody connects before the permissions are right.
    let temporary: PathBuf = path.with_extension("new");
    let _ = fs::remove_file(&temporary);
    let listener = UnixListener::bind(&temporary)
        .with_context(|| format!("cannot listen at `{}`", path.display()))?;
    fs::set_permissions(&temporary, Permissions::from_mode(0o600))?;
    fs::rename(&temporary, path)?;
    Ok(listener)
}

fn accept(
    listener: UnixListener,
    name: &str,
    serve: impl Fn(OwnedFd) + Send + Sync + 'static,
) -> anyhow::Result<()> {
    let serve = Arc::new(serve);
    let work = move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                breathe();
                continue;
            };
            let serve = serve.clone();
            // Without a thread the connection is closed, which its peer sees.
            let _ = std::thread::Builder::new()
                .name("connection".into())
                .spawn(move || serve(stream.into()));
        }
    };
    std::thread::Builder::new()
        .name(name.into())
        .spawn(work)
        .map(drop)
        .context("cannot start a thread")
}
